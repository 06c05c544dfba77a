"""What looks after the training of a rank: the hooks of zeusrun itself, and the parts of the job.

``WorkerEnvironment.agents`` is the one list of them. Each agent gets what it needs when it is
made, and overrides what it wants to hear of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager
    from types import ModuleType

    from zeusrun.worker.batches import Batches, MicroBatch
    from zeusrun.worker.passes import Feed, Pass
    from zeusrun.worker.rates import Rates


class RankAgent:
    """One of those that look after the training of this rank.

    Attributes:
        modules: Those of torch that it hooks into.
        must_hook: Whether a training without its hooks would be wrong, so that an error of
            ``hook`` ends the script.
        rates: Changes the learning rate of each step; ``None`` if it stays.
        loader_control: Changes what ``run.loader`` yields; ``None`` if that stays.
    """

    modules: ClassVar[AbstractSet[str]] = frozenset()
    must_hook: ClassVar[bool] = False
    rates: Rates | None = None
    loader_control: LoaderControl | None = None

    def hook(self, module: ModuleType) -> None:
        """Hook into one of ``modules``, which has just been executed."""

    def watch(self, model: object) -> None:
        """Take in a model that the script gives to ``zeusrun.watch``."""

    def build(self, optimizer: Any) -> None:
        """Take in that the script builds an optimizer."""

    def before_step(self) -> None:
        """Take in that an optimizer is about to step."""

    def after_step(self) -> None:
        """Take in that an optimizer has stepped; also one whose steps do not count."""

    def count_step(self, optimizer: Any) -> None:
        """Take in a step that counts, once the observer has credited it to a loader."""

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """Take in that a pass over a loader begins."""

    def feed(self, feed: Feed, *, early: bool) -> None:
        """Take in that a loader feeds optimizer steps; ``early``: among the first of the run."""

    def go_on(self, fed: Pass | None) -> None:
        """Take in that the training goes on: a step has been made, fed by a pass.

        ``None``: another pass over the training data begins, or no pass has fed the step.
        """

    def end_pass(self, part: Pass) -> None:
        """Take in that all batches of a pass have been yielded."""

    def end_epoch(self) -> None:
        """Take in that all ranks end an epoch here, or are about to evaluate."""

    def count(self) -> tuple[int | None, int | None] | None:
        """Return the samples and the optimizer steps so far; ``None`` if it does not count them."""
        return None

    def conclude(self) -> None:
        """Record what is not recorded yet, at the end of the script."""

    def agree_on_stop(self, *, wishes: bool) -> bool | None:
        """Return whether all ranks stop now; ``None`` to let a collective call decide.

        ``wishes``: whether this rank wants to.
        """
        del wishes
        return None

    def step(self) -> AbstractContextManager[None] | None:
        """Return the context of a step for ``run.step``; ``None`` if it needs none."""
        return None


class LoaderControl:
    """Changes what ``run.loader`` yields; this one changes nothing."""

    def prepare(self, batch_size: int) -> None:
        """Take in the first batch size, over all ranks.

        Raises:
            RuntimeError: If a class of the job file's policy cannot be created.
        """

    def is_training(self, loader: object, epoch: int | None) -> bool:
        """Whether a loader that begins to yield batches yields those of an epoch's training."""
        del loader, epoch
        return False

    def begin_epoch(
        self, loader: object, epoch: int | None, samples: int, *, drop_last: bool
    ) -> int | None:
        """Begin an epoch of the training; return its number, ``None`` to leave it to the loader.

        Args:
            loader: Yields its batches.
            epoch: Its number, from 1, if the script has set it.
            samples: In the epoch.
            drop_last: Whether a batch that is not full is left out.
        """

    def enter(self, exchange: Callable[[Any], Any]) -> None:
        """Begin a pass, an evaluation with the same loader included.

        ``exchange`` returns where the loader is in its epoch; with an argument, it continues there.
        """

    def before_step(self) -> None:
        """Take in that the batches of a step begin."""

    def after_batch(self, micro: MicroBatch, batches: Batches) -> bool:
        """Take in that a micro-batch was used; return whether batch size or ranks have changed."""
        if micro.is_last:
            batches.position = micro.end
        return False

    def after_epoch(self) -> None:
        """Take in that all batches of an epoch have been used."""

    def end_pass(self, loader: object) -> None:
        """End a pass: the loader yields no more batches, or the script has left the loop."""

    def sizes(self, first: int, limit: int | None) -> tuple[int, int | None]:
        """Return the present batch size, over all ranks, and the most samples of a micro-batch.

        ``first``, ``limit``: those of the first step; ``None``: any number of samples.
        """
        return first, limit

    def change_ranks(self) -> None:
        """Take in that the batches are divided among other ranks from now on."""

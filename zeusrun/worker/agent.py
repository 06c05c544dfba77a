"""Agents that follow the training of a rank, and what they change: learning rates and batches.

``WorkerEnvironment.agents`` is the only list of them. An agent gets the objects that it needs when
it is created, and overrides the methods of the events that it handles.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager
    from types import ModuleType

    from zeusrun.worker.batches import Batches, MicroBatch
    from zeusrun.worker.passes import Feed, Pass


class RankAgent:
    """Follows the training of this rank. Hooks call its methods; by default, they do nothing.

    Attributes:
        modules: The names of the torch modules that it hooks into.
        must_hook: Whether an error in ``hook`` ends the script, because a training without the
            hooks would be wrong.
        rates: Changes the learning rate of each step; ``None`` if the agent does not change it.
        loader_control: Changes the batches of ``run.loader``; ``None`` if the agent does not.
    """

    modules: ClassVar[AbstractSet[str]] = frozenset()
    must_hook: ClassVar[bool] = False
    rates: Rates | None = None
    loader_control: LoaderControl | None = None

    def hook(self, module: ModuleType) -> None:
        """Install hooks in one of ``modules``, which has just been imported."""

    def watch(self, model: object) -> None:
        """Handle a model that the script passes to ``zeusrun.watch``."""

    def build(self, optimizer: Any) -> None:
        """Handle an optimizer that the script creates."""

    def before_step(self) -> None:
        """Handle the start of an optimizer step."""

    def after_step(self) -> None:
        """Handle the end of an optimizer step, even of an optimizer whose steps are not counted."""

    def count_step(self, optimizer: Any) -> None:
        """Handle a counted step, after the observer has found the loader that fed it."""

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """Handle the start of a pass over a loader."""

    def feed(self, feed: Feed, *, early: bool) -> None:
        """Handle a loader that feeds optimizer steps.

        ``early``: whether this step is one of the first steps of the run.
        """

    def go_on(self, fed: Pass | None) -> None:
        """Handle a sign that the training continues: a step that the pass ``fed`` has fed.

        ``fed`` is ``None`` if no pass has fed the step, or if another pass over the training data
        begins.
        """

    def end_pass(self, part: Pass) -> None:
        """Handle the end of a pass: the loader has yielded all batches."""

    def end_epoch(self) -> None:
        """Handle a point at which all ranks end an epoch or are about to evaluate."""

    def count(self) -> tuple[int | None, int | None] | None:
        """Return the samples and optimizer steps so far; ``None`` if it does not count them."""
        return None

    def conclude(self) -> None:
        """Record, at the end of the script, everything that is not recorded yet."""

    def agree_on_stop(self, *, wishes: bool) -> bool | None:
        """Return whether all ranks stop now; ``None`` to let a collective call decide.

        ``wishes``: whether this rank wants to stop.
        """
        del wishes
        return None

    def step(self) -> AbstractContextManager[None] | None:
        """Return a context manager for ``run.step``; ``None`` if the agent needs no context."""
        return None


class LoaderControl:
    """Changes the batches that ``run.loader`` yields. This base class changes nothing."""

    def prepare(self, batch_size: int) -> None:
        """Set the batch size of the first step, in samples over all ranks.

        Raises:
            RuntimeError: If a class of the job file's policy cannot be created.
        """

    def is_training(self, loader: object, epoch: int | None) -> bool:
        """Whether a loader is about to yield the training batches of an epoch."""
        del loader, epoch
        return False

    def begin_epoch(
        self, loader: object, epoch: int | None, samples: int, *, drop_last: bool
    ) -> int | None:
        """Begin a training epoch; return its number, or ``None`` to let the loader number it.

        Args:
            loader: The loader that yields the batches of the epoch.
            epoch: The number of the epoch, from 1; ``None`` if the script has not set it.
            samples: The number of samples in the epoch.
            drop_last: Whether the last batch is dropped if it is not full.
        """

    def enter(self, exchange: Callable[[Any], Any]) -> None:
        """Begin a pass over the loader, for training or for evaluation.

        ``exchange(None)`` returns the position of the loader in its epoch; ``exchange(position)``
        lets the loader continue at that position.
        """

    def before_step(self) -> None:
        """Handle the first micro-batch of a step, before the loader yields it."""

    def after_batch(self, micro: MicroBatch, batches: Batches) -> bool:
        """Handle a used micro-batch; return whether the batch size or the ranks have changed."""
        if micro.is_last:
            batches.position = micro.end
        return False

    def after_epoch(self) -> None:
        """Handle the end of an epoch: the script has used all batches."""

    def end_pass(self, loader: object) -> None:
        """End a pass: the loader yields no more batches, or the script has left the loop."""

    def sizes(self, first: int, limit: int | None) -> tuple[int, int | None]:
        """Return the present batch size over all ranks, and the largest micro-batch, in samples.

        ``first`` and ``limit`` are the two values at the first step. ``None`` instead of the
        largest micro-batch means that its size is not limited.
        """
        return first, limit

    def change_ranks(self) -> None:
        """Handle a change of the ranks among which the batches are divided."""


def find_factor(rule: str, ratio: float) -> float:
    """Return the factor of the learning rate for a rule: ``none``, ``linear`` or ``sqrt``.

    ``ratio``: the batch size divided by the first batch size.
    """
    return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(rule, 1.0)


class Rates:
    """Scales the learning rate of every optimizer while the batch size is not the first one.

    Each change lasts for one optimizer step. So the script's scheduler and its checkpoints contain
    the unchanged values.

    Attributes:
        factor: The factor by which the learning rate is multiplied.
        scheduled: The learning rate that the script has set for the first parameter group; ``None``
            before the first step.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self.scheduled: float | None = None
        self._first: Callable[[], Any] = lambda: None  # weak reference to the first optimizer
        self._changes: list[tuple[Any, Any, Any]] = []  # group, old and new rate

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group in a step."""
        return None if self.scheduled is None else self.scheduled * self.factor

    def before(self, optimizer: Any) -> None:
        """Change the rates of an optimizer that is about to step."""
        if self._first() is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self.read()
        for group in optimizer.param_groups:
            if self.factor != 1 and "lr" in group:
                old, group["lr"] = group["lr"], group["lr"] * self.factor
                self._changes.append((group, old, group["lr"]))

    def read(self) -> None:
        """Read the learning rate: a scheduler may have changed it since the last step."""
        groups = getattr(self._first(), "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if rate is not None:
            self.scheduled = float(rate)

    def after(self) -> None:
        """Restore the rates, unless the step itself has changed them."""
        for group, old, new in self._changes:
            if group.get("lr") is new:
                group["lr"] = old
        self._changes = []

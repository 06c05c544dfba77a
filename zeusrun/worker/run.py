"""``zeusrun.current()``: the choices for a training script, and its reports."""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from zeusrun.sidecar.events import Reported
from zeusrun.worker.agent import LoaderControl
from zeusrun.worker.environment import as_float, current_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import Dataset

    from zeusrun.sidecar.plan import RankPlan
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.loader import AdaptiveLoader


class Run:
    """What a training script needs of its run.

    Attributes:
        active: Whether zeusrun started this process.
        job: Name of the recurring job; ``None`` outside zeusrun.
        trial: Identity of this trial; ``None`` outside zeusrun.
        checkpoint_dir: Where this trial saves its checkpoints; ``None`` outside zeusrun.
    """

    def __init__(self, environment: WorkerEnvironment) -> None:
        self.active = environment.active
        plan = environment.plan
        self.job, self.trial = plan.job, plan.trial
        self.checkpoint_dir = Path(plan.checkpoint_dir) if plan.checkpoint_dir else None
        self._environment = environment
        self._reports = 0

    @property
    def rank(self) -> int:
        """This process among all, from 0."""
        return self._environment.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self._environment.world_size

    def local_batch_size(self, default: int) -> int:
        """Return this rank's samples per optimizer step; ``default`` outside zeusrun."""
        chosen = self._ask("batch_size").batch_size
        return chosen // self.world_size if chosen else default

    def micro_batch_size(self, default: int) -> int:
        """Return this rank's samples per forward pass; ``default`` outside zeusrun."""
        return self._ask("batch_size").micro_batch_size or default

    def accumulation_steps(self, default: int = 1) -> int:
        """Return the micro-batches in an optimizer step; ``default`` outside zeusrun."""
        return self._environment.plan.accumulation_steps or default

    def global_batch_size(self, default: int) -> int:
        """Return the samples per optimizer step over all ranks; ``default`` outside zeusrun."""
        return self._ask("batch_size").batch_size or default

    def learning_rate(self, default: float) -> float:
        """Return the learning rate for the batch size; ``default`` if the job names none."""
        chosen = self._ask("learning_rate").learning_rate
        return float(default) if chosen is None else chosen

    def _ask(self, choice: str) -> RankPlan:
        """Record that the script reads a choice of the launcher; return all choices."""
        self._environment.record_asked(choice)
        return self._environment.plan

    def loader(self, dataset: Dataset[Any], batch_size: int, **options: Any) -> AdaptiveLoader:  # noqa: ANN401 - of a DataLoader
        """Return a ``DataLoader`` for training whose batch size may change between steps.

        It divides the samples among the ranks, draws them in another order in each epoch, and
        yields each sample once an epoch. Every rank must iterate over it in its main thread.

        Args:
            dataset: One with a length.
            batch_size: Of this rank; for outside zeusrun, as ``default`` elsewhere.
            options: ``shuffle`` (``True``), ``seed`` (0), ``drop_last`` (``False``), and those of a
                ``DataLoader``, without those that choose the samples of a batch.

        Raises:
            TypeError: If the dataset has no length.
            ValueError: If there are fewer samples than ranks, an option chooses the samples of a
                batch, or the ranks have different data.
            RuntimeError: If a class of the job file's policy cannot be created.
        """
        from zeusrun.worker.loader import AdaptiveLoader  # noqa: PLC0415 - imports torch

        environment, size = self._environment, self.local_batch_size(batch_size)
        if environment.slot is not None:
            size = max(1, size)  # more ranks than samples have no part of their own
        controls = (agent.loader_control for agent in environment.agents)
        control = next(filter(None, controls), LoaderControl())
        return AdaptiveLoader(environment, control, dataset, size, **options)

    def step(self) -> AbstractContextManager[None]:
        """Return the context of a step: all from the forward pass to that of the optimizer.

        In an elastic training, a step within which another rank is lost is made again with those
        that are left, and the error that shows the loss is not raised. The batches come from
        ``loader``, in epochs of ``epochs``.
        """
        contexts = (agent.step() for agent in self._environment.agents)
        return next(filter(None, contexts), contextlib.nullcontext())

    def epochs(self, default: int, done: int = 0) -> Iterator[int]:
        """Yield 1, 2, 3, … until the last epoch, the target, or a stop by zeusrun.

        Every rank must iterate over it; it ends after the same epoch on every rank.

        Args:
            default: Number of epochs outside zeusrun.
            done: Epochs in the checkpoint that the script has restored; begin with ``done + 1``.
        """
        environment, epoch = self._environment, done
        last = environment.plan.max_epochs or default
        while epoch < last and not self.should_stop():
            epoch += 1
            environment.epoch = epoch
            yield epoch
            if environment.slot is not None:
                epoch = environment.epoch or epoch  # that of the others, which it has joined

    def report(self, epoch: int | None = None, **metrics: SupportsFloat) -> None:
        """Report the metrics after an epoch.

        Only rank 0 writes; the values of other ranks and outside zeusrun are ignored.

        Args:
            epoch: Epochs completed; by default the current one of ``epochs``, else one more than
                at the last report.
            metrics: Numbers, NaN included, or anything but text that ``float`` takes, such as a
                tensor of one number.

        Raises:
            TypeError: If a metric is not a number.
            ValueError: If it is an array of more than one number.
        """
        environment = self._environment
        environment.look_for_groups()
        if not self.active or self.rank != 0:
            return
        values = {name: _number(name, value) for name, value in metrics.items()}
        self._reports += 1
        completed = (environment.epoch or self._reports) if epoch is None else int(epoch)
        counted = (agent.count() for agent in environment.agents)
        samples, steps = next(filter(None, counted), (None, None))
        event = Reported(time.monotonic(), completed, values, samples=samples, steps=steps)
        environment.report(event)

    def should_stop(self) -> bool:
        """Whether training should end now: at the target, or because zeusrun stops it.

        A collective call with the same answer on every rank, so every rank must call it.
        ``epochs`` calls it before each epoch; only a loop of your own needs it.
        """
        return self._environment.should_stop()[0]


@functools.cache
def current_run() -> Run:
    """Return the one ``Run`` of this process."""
    return Run(current_environment())


def _number(name: str, value: SupportsFloat) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"zeusrun: metric {name!r} is {value!r}, not a number")
    try:
        return as_float(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"zeusrun: metric {name!r} is not one number: {error}") from None

"""Which data loader feeds the optimizer steps of this rank, and with how many samples a step."""

from __future__ import annotations

import math
import time
import weakref
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Built, Loading, Observed
from zeusrun.worker.passes import NOTHING, Feed, Pass, Taken

if TYPE_CHECKING:
    from zeusrun.worker.environment import WorkerEnvironment

_ENOUGH = 8  # steps, after which the first observation is recorded
_AGAIN = 1000  # steps between records, for loaders that never end


class Observer:
    """Credits every optimizer step to the loader that yielded last; called in the training loop.

    Attributes:
        current: The pass that yielded last.
        previous: The pass over another loader that yielded before it.
        switches: How often a pass has yielded after one that is not over, since the last step.
        steps: Optimizer steps of this rank; of several optimizers, those of one count.
        others: Passes over loaders that did not feed the steps when they began.
        has_optimizer: Whether the script has built an optimizer.
        training: The loader that feeds the optimizer steps; ``None`` before the first one.
        is_separate: Whether a library has said that this process trains by itself.
        built: The learning rates of the groups that optimizers were built with.
        waits_s: ``StepClock.waits_s`` once a step was counted; before, what nobody reads.
    """

    def __init__(self, environment: WorkerEnvironment) -> None:
        self.waits_s: Any = [0.0, 0.0]
        self._main = main_thread().ident
        self.current: Pass | None = None
        self.previous: Pass | None = None
        self.switches = 0
        self.steps: int = 0
        self.others: int = 0
        self.has_optimizer = False
        self._counted: int | None = None  # the id of the optimizer whose steps count
        self._uncounted: set[int] = set()  # those that have stepped since its last step
        self._consumed: int | None = 0
        self.is_separate = False
        self.built: weakref.WeakKeyDictionary[Any, set[float]] = weakref.WeakKeyDictionary()
        self._environment = environment
        self._loading = False  # whether any pass has begun
        self._feeds: weakref.WeakKeyDictionary[Any, Feed] = weakref.WeakKeyDictionary()
        self.training: Feed | None = None
        self._earlier = 0  # passes over earlier loaders that the present one replaced
        # Batches in a step -> such steps, and the most samples of one, since the last record.
        self._steps: dict[int, tuple[int, int]] = {}
        self._single: Pass | None = None  # the newest pass with a step
        self._mixed = 0  # steps for which several loaders yielded
        self._alone = False  # whether this rank, one of several, trains a model of its own
        self._due = _ENOUGH
        self._count = 0
        self._optimizer: Any = None
        self._recorded: tuple[Any, ...] | None = None

    @property
    def epoch(self) -> int | None:
        """Passes over the training data, the present one included; ``None`` if not observed."""
        return None if self.training is None else self._earlier + self.training.passes

    @property
    def consumed(self) -> int | None:
        """The samples of all steps over all ranks; ``None`` if they cannot be told."""
        return self._consumed or None

    @property
    def data(self) -> int | None:
        """Samples of the training data over all ranks; ``None`` if unknown.

        A sampler that divides them may not say so: then the length of the loader shows it. Ranks
        may also have a dataset each, or all read the same one.
        """
        feed = self.training
        if feed is None or feed.data is None or feed.replicas or self._alone:
            return None if feed is None else feed.data
        ranks, samples = self._environment.world_size, (feed.length or 0) * (feed.nominal or 0)
        whole = abs(samples - feed.data) < abs(samples - feed.data / ranks)
        return feed.data * ranks if whole else feed.data

    def samples(self) -> int:
        """Return the samples of this rank in the present step; 0 if they cannot be told."""
        current = self.current
        if current is None or not current.pending or None in current.feed.sizes:
            return 0
        if current.pending > 1 and not current.steps:
            return 0  # it may have read one batch ahead
        return current.samples

    def begin_pass(self, loader: Any) -> Pass:
        """Return a new pass over a loader."""
        if not self._loading:
            self._loading = True
            if self._environment.rank == 0:
                self._environment.record(Loading(time.monotonic()))
        try:
            feed = self._feeds.get(loader)
            if feed is None:
                feed = Feed(*_facts_of(loader), weakref.ref(loader))
                self._feeds[loader] = feed
        except Exception:  # noqa: BLE001 - for example, the script's own loader without a hash
            feed = Feed()
        if feed is self.training:
            self._go_on(None)
        else:
            self.others += 1
        feed.left = getattr(loader, "_zeusrun_left", ())
        part = Pass(feed)
        # After a change of its batch size, a loader goes on with the same pass over the data.
        batches = getattr(loader, "batch_sampler", None)
        part.steps = int(getattr(batches, "is_resumed", False) is True)
        for agent in self._environment.agents:
            agent.begin_pass(part, loader)
        return part

    def end_pass(self, ended: Pass) -> None:
        """Record what was observed, once a pass is over.

        Agents are called at each end of a pass. A prefetching loader reaches the end twice: before
        the last step and after it.
        """
        is_first, ended.ended = not ended.ended, True
        self._add_waits(ended)
        for agent in self._environment.agents:
            agent.end_pass(ended)
        if is_first and ended.steps:
            self._look()

    def exchange(self, part: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
        """Return the samples and the passes so far; with ``part``, continue from those."""
        if part is not None:
            passes = 0 if self.training is None else self.training.passes
            self._consumed, self._earlier = part[0], (part[1] or 0) - passes
        return self._consumed, self.epoch

    def change_ranks(self) -> None:
        """Take in that other ranks train: what each has in a step is recorded again."""
        self._recorded, self._due = None, self._count + _ENOUGH
        self._steps, self._mixed = {}, 0
        for feed in self._feeds.values():
            feed.nominal, feed.replicas, feed.data, feed.length = _facts_of(feed.loader())
            feed.sizes.clear()
            feed.usual = 0

    def build(self, optimizer: Any, rate: float | None, *, steps_are_seen: bool) -> None:
        """Take in the learning rate of a group that an optimizer was built with."""
        if not self.has_optimizer and self._environment.rank == 0 and steps_are_seen:
            self._environment.record(Built(time.monotonic(), type(optimizer).__name__))
        self.has_optimizer, self._counted = True, None  # the steps of a new one may count
        if rate is not None:
            self.built.setdefault(optimizer, set()).add(rate)

    def has_rate(self, optimizer: Any) -> bool:
        """Whether an optimizer was built with a learning rate; a wrapper may have none."""
        try:
            return optimizer in self.built
        except Exception:  # noqa: BLE001 - for example, an optimizer without a hash
            return False

    def step(self, optimizer: Any) -> bool:
        """Credit an optimizer step; return whether it counts.

        The first step of a pass may have a batch too many, and the last one too few: accelerate's
        loaders read one batch ahead. So they do not count, except a first one of one batch, and one
        that has taken all batches of its pass.
        """
        self._environment.look_for_groups()
        current = self.current
        fed = current if current is not None and current.pending else None
        counts = self._counts(optimizer, fed)
        self.steps += counts
        self._go_on(fed)
        known = self.training is not None
        if known and fed is not None and fed.ended and fed.feed is not self.training:
            return counts  # of an evaluation; the training loader has read a batch ahead
        # No new batch: a second optimizer, or a loader that reads one batch ahead.
        if current is None or not current.pending:
            if current is not None and counts:
                current.whole = NOTHING
                current.feed.reads_ahead = True
            return counts
        if not current.steps:
            if current.feed is self.training:
                self._credit_single()
            self._train_on(current.feed)
            self._single = current
        self._add_waits(current)
        if self._consumed is not None:
            sized = None not in current.feed.sizes
            ranks = 1 if self._alone else current.feed.replicas or self._environment.world_size
            self._consumed = self._consumed + current.samples * ranks if sized else None
        taken = Taken(current.pending, current.samples)
        current.pending = current.samples = 0
        current.steps += 1
        if current.steps > 1:
            certain, current.last, current.whole = current.last, taken, NOTHING
        else:
            certain, current.whole = (taken, NOTHING) if taken.batches == 1 else (NOTHING, taken)
        self._credit(certain)
        self._mixed += bool(certain.batches) and self.switches > 1
        self.switches = 0
        self._count += 1
        if self._count >= self._due:
            self._optimizer = optimizer
            self._look()
            self._due = self._count + _AGAIN
        elif self._recorded is None:
            self._optimizer = optimizer  # for a training of few steps
        return counts

    def _credit(self, taken: Taken) -> None:
        """Take in what a step has taken for certain."""
        if taken.batches:
            steps, most = self._steps.get(taken.batches, (0, 0))
            self._steps[taken.batches] = steps + 1, max(most, taken.samples)

    def _credit_single(self) -> None:
        """Take in the one step of the newest pass, if it has taken all batches.

        If the loader reads ahead, a signal may have ended the training before its last step.
        """
        single, self._single = self._single, None
        if single is None or single.feed.reads_ahead:
            return
        if single.ended and not single.pending:
            self._credit(single.whole)

    def _counts(self, optimizer: Any, fed: Pass | None) -> bool:
        """Whether a step is not that of a second optimizer for the same batch.

        Where no loader shows the batches, one that steps twice takes the first one's place.
        """
        others, this = self._uncounted, id(optimizer)
        if fed is None and self._counted not in (None, this) and this not in others:
            others.add(this)
            return False
        self._counted = this
        others.clear()
        return True

    def _train_on(self, feed: Feed) -> None:
        """Begin a pass in which an optimizer steps."""
        self._check(feed)
        before = self.training
        if before is not feed:
            if before is not None:  # a script may build one for each pass
                self._earlier = self._earlier + before.passes if before.loader() is None else 0
            self._steps, self._mixed, self.training = {}, 0, feed
        feed.passes += 1
        feed.trains = True
        together = self._environment.grouped and not self.is_separate
        self._alone = self._environment.world_size > 1 and not together

    def _go_on(self, fed: Pass | None) -> None:
        for agent in self._environment.agents:
            agent.go_on(fed)

    def _check(self, feed: Feed) -> None:
        for agent in self._environment.agents:
            agent.feed(feed, early=self._recorded is None)

    def begin_feeding(self, part: Pass) -> None:
        """Take in that a pass has yielded, after another one."""
        before = self.current
        self.previous, self.current = before, part
        self.switches += before is not None and not before.ended
        if before is not None:
            self._add_waits(before)  # of an evaluation that is not over
        part.thread = get_ident()
        if part.thread != self._main:  # a thread that reads ahead: does the training wait for it?
            part.waited_s = math.inf

    def count_waits(self, waits_s: Any) -> None:
        """Count waits from now on, after the first step: what came before is no training."""
        waits_s[0] += self.waits_s[0] if math.isinf(self.waits_s[0]) else 0.0
        self.waits_s = waits_s

    def forget_waits(self) -> None:
        """Begin anew in a fork: a worker of a loader is not the training."""
        self.waits_s = [0.0, 0.0]

    def _add_waits(self, part: Pass) -> None:
        """Add for how long a pass has waited since this was called."""
        self.waits_s[not part.feed.trains] += part.waited_s
        part.all_waited_s += part.waited_s
        part.waited_s = 0.0

    def _is_mixed(self) -> bool:
        """Whether several loaders feed most steps."""
        return 2 * self._mixed > sum(steps for steps, _ in self._steps.values())

    def _look(self) -> None:
        other = self.previous
        if other is not None and not other.ended and self._is_mixed():  # ended: an evaluation
            self._check(other.feed)
            other.feed.trains = True
            self._add_waits(other)
        self.record()

    def end(self) -> None:
        """Write what was observed to the sidecar, at the end of the script."""
        self._credit_single()
        self.record()

    def record(self) -> None:
        """Write what was observed to the sidecar, if it is new."""
        feed = self.training
        if feed is None or not self._steps:
            return
        if self._recorded is not None and sum(n for n, _ in self._steps.values()) < _ENOUGH:
            return
        batches, (_, most) = max(self._steps.items(), key=lambda item: item[1])
        # With several loaders at once (labelled and unlabelled data), no size can be named.
        samples = most if feed.is_sized and not self._is_mixed() else None
        self._steps, self._mixed = {}, 0
        # run.loader's batches may differ by a sample, and so may their number in a step.
        samples = getattr(getattr(feed.loader(), "batch_sampler", None), "step_samples", samples)
        before = () if self._recorded is None else self._recorded[3]
        rates, self._optimizer = self._base_rates(self._optimizer) or before, None
        workers = getattr(feed.loader(), "num_workers", None)
        workers = workers if type(workers) is int else None
        seen = (samples, batches, feed.replicas, rates, self._alone, self.data, feed.length)
        if (*seen, workers) != self._recorded:
            self._recorded = (*seen, workers)
            t, rank = time.monotonic(), self._environment.number
            self._environment.record(Observed(t, rank, *seen, step=self.steps, workers=workers))

    def _base_rates(self, optimizer: Any) -> tuple[float, ...]:
        """Return the distinct learning rates of an optimizer, whatever a scheduler does to them.

        torch's schedulers keep them; others, and loops with a schedule of their own, do not.
        """
        try:
            groups = getattr(optimizer, "param_groups", None) or ()
            rates = [group.get("initial_lr", group.get("lr")) for group in groups]
            if not any("initial_lr" in group for group in groups):
                rates = [*self.built.get(optimizer, ()), *rates]
            known = {float(rate) for rate in rates if isinstance(rate, (int, float))}
            return tuple(sorted(known)[:4])
        except Exception:  # noqa: BLE001 - groups of the script's own
            return ()


def _facts_of(loader: Any) -> tuple[int | None, int | None, int | None, int | None]:
    """Return its batch size, its sampler's replicas, the samples of its data, and its length."""
    batches = getattr(loader, "batch_sampler", None)
    nominal = getattr(batches, "batch_size", None)
    samplers = (batches, getattr(batches, "sampler", None), getattr(loader, "sampler", None))
    names = ("num_replicas", "num_processes")  # torch's; that of accelerate's shards
    found = (getattr(sampler, name, None) for sampler in samplers for name in names)
    replicas = next((each for each in found if type(each) is int and each > 0), None)
    data = getattr(loader, "dataset", None)
    indexed = hasattr(data, "__getitem__") and not hasattr(data, "__next__")
    # A stream has no length; asked for one, a DataLoader would warn later.
    size = nominal if type(nominal) is int else None
    samples, length = (_length(data), _length(batches)) if indexed else (None, None)
    if length and samples and length * (size or 1) > 2 * samples:
        length = None  # it goes round the data without an end
    return size, replicas, samples, length


def _length(sized: Any) -> int | None:
    try:
        return len(sized) or None
    except Exception:  # noqa: BLE001 - of the script's own
        return None

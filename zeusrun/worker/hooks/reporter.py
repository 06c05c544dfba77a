"""Records the metrics that hooks see: one value for an evaluation, at most about one a second.

Some scripts log a value for each batch of an evaluation. The largest of them is a lucky batch, and
small batches are lucky more often. So values without an optimizer step between them are parts of
one evaluation, and their mean is its value. It is recorded when the evaluation is over: its pass
over a data loader has ended, the training goes on, or the script ends.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Reported
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.environment import as_float

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.observer import Observer
    from zeusrun.worker.passes import Pass

    _Key: TypeAlias = tuple[str, str]  # the library, and the name of a metric

_INTERVAL_S = 1.0  # between two records of one metric in one epoch
_OWN_INTERVAL_S = 0.05  # of the metric of the job, unless it is logged in every step
_MAX_NAMES = 1000
_NEVER = (-1, -math.inf, math.nan, None)


@dataclass
class _Group:
    """The values of a metric that were logged without an optimizer step between them."""

    epoch: int
    counted: bool  # whether that is only the number of the group
    steps: int  # optimizer steps before it
    samples: int | None  # that these consumed
    within: Pass | None  # the pass over a loader that is not at its end
    training: bool  # whether that is the training loader
    seen: int  # samples of ``within`` up to the last part
    t: float = 0.0
    parts: int = 0
    total: float = 0.0
    weighted: float = 0.0
    weight: int = 0
    alike: bool = False  # whether all parts count alike, because the samples of one are unknown

    def add(self, value: float, t: float) -> None:
        """Take in a part."""
        samples = 0 if self.within is None else self.within.samples
        new, self.seen = samples - self.seen, samples
        self.alike = self.alike or new <= 0
        self.t = t
        self.parts += 1
        self.total += value
        self.weight += new
        self.weighted += value * new

    @property
    def evaluates(self) -> bool:
        """Whether an evaluation loader was being read."""
        return self.within is not None and not self.training

    @property
    def value(self) -> float:
        """The mean, weighted by samples where they are known."""
        if self.parts == 1:
            return self.total
        return self.total / self.parts if self.alike else self.weighted / self.weight


class Reporter(RankAgent):
    """Records on rank 0 what the script passes to libraries with hooks.

    Attributes:
        muted: Whether to record nothing, as during an evaluation after the training.
    """

    def __init__(self, environment: WorkerEnvironment, observer: Observer) -> None:
        self._environment = environment
        self._observer = observer
        self.muted = False
        self._counts: dict[_Key, int] = {}
        self._written: dict[_Key, tuple[int, float, float, int | None]] = {}
        self._held: dict[_Key, _Group] = {}
        self._open: dict[_Key, _Group] = {}
        # During a pass over the training data, only the next value shows what a value is.
        self._doubtful: dict[_Key, _Group] = {}
        self._each_step: set[_Key] = set()
        self._last: dict[_Key, _Group] = {}  # closed
        self._lock = threading.RLock()

    def log(self, source: str, metrics: Mapping[str, Any], epoch: int | None = None) -> None:
        """Take in those of the metrics that are numbers.

        Args:
            source: The library.
            metrics: Values by name; what is not one number is ignored. Values of a mapping
                within it get both names: ``accuracy/f1``.
            epoch: Epochs completed, from a library that makes one value of an evaluation itself.
                By default, the passes over the training loader, else the number of groups.
        """
        if self._environment.rank != 0 or self.muted:
            return
        with self._lock:  # loggers may have threads of their own
            self._log(source, metrics, epoch)

    def _log(self, source: str, metrics: Mapping[str, Any], epoch: int | None) -> None:
        now = time.monotonic()
        over: dict[_Key, _Group] = {}
        for name, raw in _flat(metrics):
            value, key = number_of(raw), (source, name)
            if value is None or (key not in self._counts and len(self._counts) >= _MAX_NAMES):
                continue
            begun = self._open.get(key) if epoch is None else None
            if begun is not None and not self._goes_on(begun):
                self._close(key)
                begun = None
            group = begun or self._begin_group(key, epoch)
            group.add(value, now)
            # Of a training whose steps are not seen, only a pass shows what belongs together.
            if epoch is None and (group.steps or group.within is not None):
                self._open[key] = group
            else:
                over[key] = group
        self._record(over)

    def _begin_group(self, key: _Key, epoch: int | None) -> _Group:
        observer, part = self._observer, self._observer.current
        self._counts[key] = count = self._counts.get(key, 0) + 1
        known = observer.epoch if epoch is None else epoch
        at = count if known is None else known
        within = None if part is None or part.ended else part
        training = within is not None and within.feed is observer.training
        seen, last = 0, self._last.get(key)
        if within is not None and training:
            seen = within.samples
        elif last is not None and last.within is within:  # an iterator that the script keeps
            seen = last.seen
        steps = observer.steps
        return _Group(at, known is None, steps, observer.consumed, within, training, seen)

    def _goes_on(self, group: _Group) -> bool:
        part = self._observer.current
        within = None if part is None or part.ended else part
        return group.within is within and group.steps == self._observer.steps

    def go_on(self, fed: Pass | None) -> None:
        """Close all groups. The pass ``fed`` is not an evaluation."""
        if not self._open and not self._doubtful:
            return
        with self._lock:
            for group in self._open.values():
                group.training = group.training or (fed is not None and group.within is fed)
            self._close_all()

    def _close_all(self) -> None:
        for key in [*self._open]:
            self._close(key)
        if self._doubtful:
            before = self._observer.steps - 1
            keys = [key for key, group in self._doubtful.items() if group.steps < before]
            self._record({key: self._doubtful.pop(key) for key in keys})

    def end_pass(self, part: Pass) -> None:
        """Close the groups of a pass that is over."""
        with self._lock:
            for key in [key for key, group in self._open.items() if group.within is part]:
                self._close(key)

    def _close(self, key: _Key) -> None:
        group, before = self._open.pop(key), self._doubtful.pop(key, None)
        self._last[key] = group
        if before is not None:
            if group.training and (group.epoch, group.steps) == (before.epoch, before.steps + 1):
                self._each_step.add(key)
            self._record({key: before})
        if group.training and key not in self._each_step:
            self._doubtful[key] = group
        else:
            self._record({key: group})

    def _record(self, groups: Mapping[_Key, _Group]) -> None:
        """Record groups that are over.

        Of several in an epoch, one a second is recorded, and the last one; also what meets the
        target, and what an evaluation loader was read for. A value that stays is recorded again, at
        most once a second, if it is of the job's metric and the training has gone on.
        """
        now, due = time.monotonic(), []
        for key, group in groups.items():
            value = group.value
            epoch, written_t, written, samples = self._written.get(key, _NEVER)
            each_step = key in self._each_step
            is_target = key[1] == self._environment.plan.metric and not each_step
            stays = value == written
            goes_on = is_target and group.samples is not None and group.samples > (samples or 0)
            if group.epoch == epoch and stays and not goes_on:
                self._held.pop(key, None)
                continue
            met = self._environment.plan.meets_target(key[1], value)
            result = not stays and (group.evaluates or met)
            soon = now - written_t < (_OWN_INTERVAL_S if is_target and not stays else _INTERVAL_S)
            if group.epoch == epoch and soon and (each_step or not result):
                self._held[key] = group
                continue
            held = self._held.pop(key, None)
            if held is not None and held.epoch != group.epoch:
                due.append((key, held))
            self._written[key] = (group.epoch, now, value, group.samples)
            due.append((key, group))
        self._report(due)

    def count(self) -> tuple[int | None, int | None]:
        """See ``RankAgent.count``."""
        return self._observer.consumed, self._observer.steps or None

    def conclude(self) -> None:
        """Record what has not been recorded, at the end of the script."""
        with self._lock:
            self._close_all()
        doubtful, self._doubtful = self._doubtful, {}
        self._record(doubtful)
        held, self._held = self._held, {}
        self._report(held.items())

    def _report(self, groups: Iterable[tuple[_Key, _Group]]) -> None:
        """Report groups, those of one moment together."""
        together: dict[tuple[Any, ...], dict[str, float]] = {}
        for (source, name), group in groups:
            each_step = (source, name) in self._each_step
            steps = group.steps if self._observer.has_optimizer else None
            about = (group.parts, each_step, group.samples, group.counted, steps)
            at = (group.t, group.epoch, source)
            together.setdefault((at, about), {})[name] = group.value
        for ((t, epoch, by), about), values in together.items():
            self._environment.report(Reported(t, epoch, values, by, *about))


def _flat(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, raw in metrics.items():
        if isinstance(raw, dict):
            yield from ((f"{name}/{inner}", value) for inner, value in raw.items())
        else:
            yield str(name), raw


def number_of(raw: Any) -> float | None:
    """Return a number, or a tensor or array of one number, as a float; ``None`` for all else."""
    if isinstance(raw, (str, bytes, bool)) or raw is None:
        return None
    try:
        return as_float(raw)
    except Exception:  # noqa: BLE001 - it may be of any type; an int may be too large
        return None

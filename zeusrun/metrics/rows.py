"""Turns the rows of a log or a file into events."""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.clock import read_clock
from zeusrun.jobfile.metrics_section import Metrics
from zeusrun.metrics.seen import list_names
from zeusrun.sidecar.events import Reported
from zeusrun.sidecar.step_clock import Place, read_step_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount


_MAX_NOTES = 10_000  # files may come some minutes late
HANDFUL = 5  # steps
_ENOUGH = 3  # lines with at most that many steps between them
_BEFORE = Place(0.0, 0, 0, 0, 0)


class Row(NamedTuple):
    """An event, and the bytes of the log up to its line; ``None``: it is known by its time."""

    event: Reported
    log_bytes: int | None


class Places:
    """Gives each row of a source the epoch and the samples that the steps before it made.

    Several lines of one pass with a handful of steps between them are of single batches, unless
    another loader was read: then they are evaluations. The first lines of a training
    are held back until that is known, because a single batch may meet the target.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[int, Place]] = []
        self._last = _BEFORE
        self._before: dict[frozenset[str], tuple[Place, int]] = {}
        self._each_step: set[frozenset[str]] = set()
        self._held: list[tuple[Row, Place]] = []
        self._now = _BEFORE  # by the clock of the reading before: all lines up to there are read
        self._others: int | None = None  # passes over other loaders before the training

    def look(self, count: StepCount | None) -> None:
        """Keep the notes of the clock; call it in each reading, as it has only the newest."""
        if count is not None:
            since_t = self._notes[-1][1].t if self._notes else 0.0
            self._notes += [note for note in count.notes if note[1].t > since_t]
            del self._notes[:-_MAX_NOTES]

    def put(
        self, rows: Sequence[Row], count: StepCount | None, *, final: bool = False
    ) -> list[Reported]:
        """Return the events of rows; ``count`` is the clock after they were read."""
        if count is None:  # no step so far, or none is seen
            held, self._held = self._held, []
            known = [self._put(row.event, place) for row, place in held]
            return [*known, *(replace(row.event, steps=0) for row in rows)]
        self.look(count)
        if self._others is None:
            self._others = self._notes[0][1].others if self._notes else count.others
        found = []
        for place, same in groupby(rows, lambda row: self._find(row, count)):
            group = [*same]
            places = [place] * len(group)
            if group[0].log_bytes is None and place.passes - self._last.passes >= len(group) > 1:
                places = [self._between(place, n / len(group)) for n in range(1, len(group) + 1)]
            found += [*zip(group, places, strict=True)]
            self._last = place
        for row, place in found:
            self._compare(frozenset(row.event.metrics), place)
        found = [*self._held, *found]
        open_ = (n for n, each in enumerate(found) if not final and self._is_open(*each))
        first = next(open_, len(found))
        self._held, self._now = found[first:], count.place
        return [self._put(row.event, place) for row, place in found[:first]]

    def _is_open(self, row: Row, place: Place) -> bool:
        """Whether one of the first rows may still turn out to be of a single batch.

        It waits for the next row of the same metrics, until the training has gone on without one.
        """
        names, now = frozenset(row.event.metrics), self._now
        early = place.passes == 1 and place.others == self._others
        if not early or place.steps > _ENOUGH * HANDFUL or names in self._each_step:
            return False
        since = now.steps - self._before[names][0].steps  # the newest such row
        return since < 0 or (now.passes == 1 and now.others == self._others and since <= HANDFUL)

    def _find(self, row: Row, count: StepCount) -> Place:
        """Return the place before the step that followed a row."""
        t, log_bytes, notes = row.event.t, row.log_bytes, self._notes
        if log_bytes is not None:
            at = bisect_left(notes, log_bytes, key=lambda note: note[0])
        elif t < count.first_step_t:
            return _BEFORE._replace(t=count.first_step_t)
        else:
            at = bisect_left(notes, t, key=lambda note: note[1].t)
        return notes[at][1] if at < len(notes) else count.place._replace(t=math.inf)

    def _between(self, place: Place, share: float) -> Place:
        """Return a place on the way here: a program has written several rows at once."""
        pairs = zip(self._last[1:], place[1:], strict=True)
        return Place(place.t, *(round(last + (now - last) * share) for last, now in pairs))

    def _compare(self, names: frozenset[str], place: Place) -> None:
        before, near = self._before.get(names, (place, 0))
        steps = place.steps - before.steps
        if steps:
            same = place.passes == before.passes > 0 and place.others == before.others
            near = near + 1 if same and steps <= HANDFUL else 0
        self._before[names] = place, near
        if near >= _ENOUGH:
            self._each_step.add(names)

    def _put(self, event: Reported, place: Place) -> Reported:
        known = event.counted and place.passes > 0
        return replace(
            event,
            t=min(event.t, math.nextafter(place.t, 0.0)),  # before that step
            epoch=place.passes if known else event.epoch,
            counted=event.counted and not known,
            samples=place.samples or None,
            steps=place.steps,
            each_step=frozenset(event.metrics) in self._each_step,
        )


_FIRST_S = 60.0  # of training, after which a file should be there
_EPOCHS = 3  # after which a column should be there
_MAX_NAMES = 1000
_PERCENT = re.compile("%|(?<![a-z])(?:pct|percent)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class SourceContext:
    """What a source gets to know of its trial before the trial begins."""

    run_dir: Path
    workdir: Path  # where the script will run; absolute
    section: Metrics = field(default_factory=Metrics)
    metric: str = ""  # ``objective.metric``
    values: Mapping[str, str] = field(default_factory=dict)  # of placeholders in ``metrics.path``
    target: float | None = None  # of the metric
    mode: str = "max"

    @property
    def log(self) -> Path:
        """The log of rank 0."""
        return self.run_dir / "logs" / "rank0.log"

    @property
    def count(self) -> StepCount | None:
        """The step clock of rank 0; ``None`` before its first step."""
        return read_step_clock(self.run_dir / "clock" / "rank0")

    def has_trained_a_minute(self, now_t: float) -> bool:
        """Whether rank 0 made its first optimizer step a minute ago."""
        count = self.count
        return count is not None and now_t - count.first_step_t > _FIRST_S


def number_of(value: object) -> float | None:
    """Return a value as a number, also ``91.3%`` and ``0.5,``; ``None`` if it is not a number."""
    if isinstance(value, str):
        value = value.strip().rstrip(",;:%)]")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


class Rows:
    """Makes events of rows, which are numbers or texts by name.

    A row without metrics sets the epoch of those that follow. Where no epoch is known, it is the
    pass over the training data; where that is not seen, the k-th value of a metric is that of epoch
    k, and one at step 0 is an evaluation before training.
    """

    def __init__(self, run: SourceContext, kind: str) -> None:
        """``kind`` is the word for a name: column, key, group."""
        section = run.section
        self.warnings: list[str] = []
        self.source = "stdout" if section.source == "auto" else section.source
        self._run, self._kind = run, kind
        self._epoch_name, self._step_name = section.epoch or "epoch", section.step or "step"
        self._wanted = section.name or run.metric
        self._names: set[str] = set()
        self._epochs: set[int] = set()
        self._found = False
        self._since_t: float | None = None
        self._now_t = 0.0
        self._warned: set[str] = set()
        self._rows: list[Row] = []
        self._places = Places()
        self.restart()

    def restart(self) -> None:
        """Count from the beginning again: the file was rewritten."""
        self._epoch: int | None = None
        self._counts: dict[str, int] = {}

    def begin(self) -> None:
        """Begin to read: every event lies between the first reading and now."""
        self._now_t = time.monotonic()
        if self._since_t is None:
            self._since_t = self._now_t

    def take(
        self,
        row: Mapping[str, object],
        written_s: float,
        *,
        emit: bool = True,
        log_bytes: int | None = None,
    ) -> None:
        """Take in a row.

        Args:
            row: Numbers or texts by name.
            written_s: When it was written, in Unix seconds.
            emit: Whether it is new.
            log_bytes: Of the log of rank 0, up to the end of its line; ``None`` for a file.
        """
        epoch, step = (number_of(row.get(name)) for name in (self._epoch_name, self._step_name))
        if epoch is not None and abs(epoch) < 1 << 53:
            self._epoch = max(0, math.ceil(epoch - 1e-6))  # an epoch that has begun counts
            if len(self._epochs) < _EPOCHS:
                self._epochs.add(self._epoch)
        values = self._read_values(row)
        if self._wanted in values:
            self._found = True
            values[self._run.metric] = values.pop(self._wanted)
        counted = self._epoch is None
        for at, metrics in self._by_epoch(values, step).items():
            if emit:
                event = Reported(self._moment(written_s), at, metrics, self.source, counted=counted)
                self._emit(Row(event, log_bytes))

    def _read_values(self, row: Mapping[str, object]) -> dict[str, float]:
        values: dict[str, float] = {}
        for name, raw in row.items():
            is_new = name not in self._names
            counts = name in {self._epoch_name, self._step_name}
            if counts or (is_new and len(self._names) >= _MAX_NAMES):
                continue
            self._names.add(name)
            value = number_of(raw)
            if value is not None:
                target = self._run.target if name == self._wanted else None
                # Of the metric in percent, whose target is not: ``15.0%`` is 0.15. A target of 0.8
                # for ``err_pct`` may be in percent, too.
                named = self._kind != "group" and self._run.mode == "max"
                percent = _PERCENT.search(f"{name} {raw}" if named else str(raw))
                is_share = target is not None and 0 <= target <= 1 and percent
                values[name] = value / 100 if is_share else value
            elif name == self._wanted:
                self._found = True
                text = str(raw)[:80]
                self.warn("number", f"{self._kind} {name!r} is {text!r}, which is not a number")
        return values

    def _by_epoch(
        self, values: dict[str, float], step: float | None
    ) -> dict[int, dict[str, float]]:
        if self._epoch is not None:
            return {self._epoch: values} if values else {}
        found: dict[int, dict[str, float]] = {}
        for name, value in values.items():
            at = self._counts[name] = self._counts.get(name, -1 if step == 0 else 0) + 1
            found.setdefault(at, {})[name] = value
        return found

    def _emit(self, row: Row) -> None:
        """Add a row; of many without the metric, as of every step, only the last counts."""
        before = self._rows[-1].event.metrics if self._rows else {}
        metrics = row.event.metrics
        if self._run.metric not in metrics and metrics.keys() == before.keys():
            self._rows.pop()
        self._rows.append(row)

    def _moment(self, written_s: float) -> float:
        """Return a Unix second in monotonic time, no earlier than that of the row before."""
        written_t = self._now_t - (read_clock() - written_s)
        self._since_t = max(self._since_t or 0.0, min(self._now_t, written_t))  # NaN is now
        return self._since_t

    def end(self, *, found: bool, final: bool) -> list[Event]:
        """End to read: return the events; ``found``: whether there is a file.

        Without one, the user is warned after the first minute of training, and at the end.
        """
        if not found and (final or self._run.has_trained_a_minute(self._now_t)):
            path, when = self._run.section.path, "" if final else " so far; zeusrun keeps looking"
            self.warn("file", f"this run wrote no file that metrics.path ({path}) matches{when}")
        if not self._found and self._names and (final or len(self._epochs) >= _EPOCHS):
            self.warn(
                "name",
                f"there is no {self._kind} {self._wanted!r} so far, only "
                f"{list_names(self._names)}. Correct objective.metric, or name its {self._kind} "
                "in metrics.name",
            )
        rows, self._rows = self._rows, []
        count = self._run.count
        self._places.look(count)
        return [*self._places.put(rows, count, final=final)]

    def warn(self, kind: str, text: str) -> None:
        """Warn once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            self.warnings.append(f"metrics.source {self.source}: {text}")


class RowSource(ABC):
    """A metric source that makes rows; ``_collect`` takes in those since the last call."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @property
    def warnings(self) -> Sequence[str]:
        """What could not be read, each once."""
        return self._rows.warnings

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; raises ``OSError`` if a file cannot be read."""
        self._rows.begin()
        return self._rows.end(found=self._collect(final=final), final=final)

    @abstractmethod
    def _collect(self, *, final: bool) -> bool:
        """Take in the rows; return whether this run has a file."""

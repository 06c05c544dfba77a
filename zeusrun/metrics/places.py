"""Where in the training a line or a row was written, by the step clock of rank 0."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.sidecar.step_clock import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.sidecar.events import Reported
    from zeusrun.sidecar.step_clock import StepCount

_MOST_NOTES = 10_000  # files may come some minutes late
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
    another loader was read: then they are evaluations.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[int, Place]] = []
        self._last = _BEFORE
        self._before: dict[frozenset[str], tuple[Place, int]] = {}
        self._each_step: set[frozenset[str]] = set()

    def look(self, count: StepCount | None) -> None:
        """Keep the notes of the clock; call it in each reading, as it has only the newest."""
        if count is not None:
            since_t = self._notes[-1][1].t if self._notes else 0.0
            self._notes += [note for note in count.notes if note[1].t > since_t]
            del self._notes[:-_MOST_NOTES]

    def put(self, rows: Sequence[Row], count: StepCount | None) -> list[Reported]:
        """Return the events of rows; ``count`` is the clock after they were read."""
        if count is None:  # no step so far, or none is seen
            return [replace(row.event, steps=0) for row in rows]
        self.look(count)
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
        return [self._put(row.event, place) for row, place in found]

    def _find(self, row: Row, count: StepCount) -> Place:
        """Return the place before the step that followed a row."""
        t, log_bytes = row.event.t, row.log_bytes
        if log_bytes is None and t < count.first_step_t:
            return _BEFORE._replace(t=count.first_step_t)
        if log_bytes is None:
            at = bisect_left(self._notes, t, key=lambda note: note[1].t)
        else:
            at = bisect_left(self._notes, log_bytes, key=lambda note: note[0])
        if at < len(self._notes):
            return self._notes[at][1]
        return count.place._replace(t=math.inf)

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

"""When a deferred occurrence starts: at the time at which its energy is cheapest. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.schedule.due import PERIOD_S, PlannedStart

if TYPE_CHECKING:
    from zeusrun.jobfile.validators import StartBy
    from zeusrun.schedule.due import Rules
    from zeusrun.tariff import Tariff

_SAME = 1e-3  # a later start must save more than this part of the rate


@dataclass(frozen=True)
class Outlook:
    """What the start of an occurrence depends on, beside its schedule.

    Attributes:
        by: Whose rate should be low: ``price`` or ``carbon``.
        tariff: The rate for a kilowatt-hour; ``None``: unknown.
        unit: Of the rate, such as ``EUR/kWh``.
        took_s: What a recurrence of the job takes; ``None``: unknown.
        free_at: When the GPUs of the job are free, Unix seconds.
    """

    by: StartBy
    tariff: Tariff | None
    unit: str
    took_s: float | None = None
    free_at: float = 0.0

    def rate(self, start: float) -> float | None:
        """Return the mean rate over a run from a start on; ``None`` if it is unknown."""
        if self.tariff is None or self.took_s is None:
            return None
        return self.tariff.mean(start, start + self.took_s)


def plan_start(rules: Rules, occurrence: float, now: float, outlook: Outlook) -> PlannedStart:
    """Decide when an occurrence starts that was due at a time; all times are Unix seconds."""
    due = rules.start_at(occurrence)
    begin, latest = max(now, due), rules.latest_at(occurrence)
    finish, took_s = rules.finish_at(occurrence), outlook.took_s or 0.0
    hurdle = find_hurdle(rules, outlook, begin, latest, finish)
    if hurdle is not None or outlook.tariff is None:
        return PlannedStart(begin, now, hurdle or "")
    earliest = max(begin, outlook.free_at)
    if finish is not None:
        latest = min(latest, finish - took_s)
    best = choose_start(outlook.tariff, earliest, latest, took_s, due - occurrence)
    if best is None:
        first, last = map(rules.timetable.local, (earliest, latest + took_s))
        why = f"no {outlook.by} is known from {first:%H:%M} to {last:%H:%M}"
        return PlannedStart(begin, now, why)
    rate, at_due = (_rate_text(outlook.rate(start)) for start in (best, due))
    if best == earliest > begin:  # its place in the queue is worth having
        return PlannedStart(begin, now, _in_use(rules, outlook))
    if best - due < PERIOD_S:
        better = "cleaner" if outlook.by == "carbon" else "cheaper"
        until = rules.timetable.local(latest)
        why = f"no start until {until:%H:%M} is {better} than {rate} {outlook.unit}"
        return PlannedStart(best, now, why)
    instead = "" if at_due is None else f" instead of {at_due}"
    return PlannedStart(best, now, f"{rate} {outlook.unit}{instead}")


def find_hurdle(
    rules: Rules, outlook: Outlook, begin: float, latest: float, finish: float | None
) -> str | None:
    """Return why an occurrence that may begin now must not be deferred; ``None`` if it may."""
    if outlook.tariff is None:
        return f"no {outlook.by} is known"
    if outlook.took_s is None:
        return "no run has ended yet, so its duration is unknown"
    if begin >= latest:
        return f"it may start until {rules.timetable.local(latest):%H:%M} only"
    if outlook.free_at > latest:
        return _in_use(rules, outlook)
    if finish is not None and max(begin, outlook.free_at) + outlook.took_s > finish:
        by = f"{rules.timetable.local(finish):%H:%M}"
        return f"it may take {outlook.took_s / 3600:.1f} h, too long to end by {by}"
    return None


def _in_use(rules: Rules, outlook: Outlook) -> str:
    return f"its GPUs are in use until about {rules.timetable.local(outlook.free_at):%H:%M}"


def choose_start(
    tariff: Tariff, earliest: float, latest: float, duration_s: float, shift_s: float = 0.0
) -> float | None:
    """Return the start with the lowest mean rate over a run, the first of those that are equal.

    The mean is piecewise linear in the start. So a best start is at an end of the window, or lets
    the run begin or end when the rate changes; no other starts are tried.

    Args:
        tariff: The rate in the course of time.
        earliest: First start allowed, Unix seconds.
        latest: Last start allowed, Unix seconds.
        duration_s: Of the run.
        shift_s: Prefer starts so much after a change of the rate, so that jobs do not start at
            the same moment.

    Returns:
        Unix seconds; ``None`` if no start has a known rate until the end of its run.
    """
    duration_s = max(duration_s, 1.0)
    times, rates = [earliest], []
    while times[-1] < latest + duration_s:
        rate, until = tariff.at(times[-1])
        rates.append(rate)
        times.append(min(until, latest + duration_s))
    lengths = np.diff(times)
    known = [0.0, *accumulate(lengths * [rate or 0.0 for rate in rates])]
    unknown = [0.0, *accumulate(lengths * [float(rate is None) for rate in rates])]
    changes = np.array(times[1:-1]) + shift_s
    starts = np.unique(np.concatenate([[earliest, latest], changes, changes - duration_s]))
    starts = starts[(starts >= earliest) & (starts <= latest)]

    def over_run(total: list[float]) -> np.ndarray:
        begun, ended = np.interp([starts, starts + duration_s], times, total)
        return np.asarray(ended - begun)

    means = np.where(over_run(unknown) > 1e-3, np.inf, over_run(known) / duration_s)
    best = means.min()
    if np.isinf(best):
        return None
    least_gain = _SAME * abs(means[0] if np.isfinite(means[0]) else best)
    return float(starts[np.argmax(means <= best + least_gain)])


def _rate_text(rate: float | None) -> str | None:
    """Return a rate with three digits, more before the point if it has more."""
    if rate is None:
        return None
    return f"{rate:.0f}" if abs(rate) >= 100 else f"{rate:.3g}"

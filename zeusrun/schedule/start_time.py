"""When a deferred occurrence starts: at the time at which its energy is cheapest. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.analysis.usual import upper_duration_s
from zeusrun.schedule.due import PERIOD_S, PlannedStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from zeusrun.jobfile.validators import StartBy
    from zeusrun.schedule.due import Rules
    from zeusrun.tariff import Tariff

_STEP_S = 300.0  # rates change every hour or quarter of an hour
_SAME = 1e-3  # a later start must save more than this part of the rate


@dataclass(frozen=True)
class Outlook:
    """What the start of an occurrence depends on, beside its schedule.

    Attributes:
        by: Whose rate should be low: ``price`` or ``carbon``.
        tariff: The rate for a kilowatt-hour; ``None``: unknown.
        unit: Of the rate, such as ``EUR/kWh``.
        durations_s: What recurrences of the job have taken; empty: unknown.
    """

    by: StartBy
    tariff: Tariff | None
    unit: str
    durations_s: Sequence[float] = ()


def plan_start(rules: Rules, occurrence: float, now: float, outlook: Outlook) -> PlannedStart:
    """Decide when an occurrence starts that was due at a time; all times are Unix seconds."""
    local, begin = rules.timetable.local, max(now, occurrence)
    latest, finish = rules.latest_at(occurrence), rules.finish_at(occurrence)
    hurdle = _find_hurdle(rules, outlook, begin, latest, finish)
    if hurdle is not None or outlook.tariff is None:
        return PlannedStart(begin, now, hurdle or "")
    most_s = upper_duration_s(outlook.durations_s)
    latest = latest if finish is None else min(latest, finish - most_s)
    lasts_s = [min(each, most_s) for each in outlook.durations_s]
    best = choose_start(outlook.tariff, begin, latest, lasts_s)
    if best is None:
        span = f"from {local(begin):%H:%M} to {local(latest + most_s):%H:%M}"
        return PlannedStart(begin, now, f"no {outlook.by} is known {span}")
    rates = mean_rates(outlook.tariff, np.array([best, occurrence]), lasts_s)
    rate, at_due = (f"{each:.4g}" for each in rates)
    instead = "" if at_due == "inf" else f" instead of {at_due}"
    why = f"{rate} {outlook.unit}{instead}"
    if best - occurrence < PERIOD_S or rate == at_due:
        better = "cleaner" if outlook.by == "carbon" else "cheaper"
        why = f"no start until {local(latest):%H:%M} is {better} than {rate} {outlook.unit}"
    return PlannedStart(best, now, why)


def _find_hurdle(
    rules: Rules, outlook: Outlook, begin: float, latest: float, finish: float | None
) -> str | None:
    """Return why an occurrence that may begin now must not be deferred; ``None`` if it may."""
    if outlook.tariff is None:
        return f"no {outlook.by} is known"
    if not outlook.durations_s:
        return "no run has ended yet, so its duration is unknown"
    if begin >= latest:
        return f"its window ended at {rules.timetable.local(latest):%H:%M}"
    most_s = upper_duration_s(outlook.durations_s)
    if finish is not None and begin + most_s > finish:
        by = f"{rules.timetable.local(finish):%H:%M}"
        return f"it may take {most_s / 3600:.1f} h, too long to end by {by}"
    return None


def choose_start(
    tariff: Tariff, earliest: float, latest: float, lasts_s: Sequence[float]
) -> float | None:
    """Return the start with the lowest expected rate, the first of those that are equal.

    ``earliest`` and ``latest`` are Unix seconds. The run may last any of ``lasts_s``, each equally
    likely. The starts to choose from are at every fifth minute. ``None`` if no start has a known
    rate until the end of its run.
    """
    steps = np.arange(earliest // _STEP_S, latest // _STEP_S + 1) * _STEP_S
    starts = np.array([earliest, *steps[(steps > earliest) & (steps < latest)], latest])
    means = mean_rates(tariff, starts, lasts_s)
    best = means.min()
    if np.isinf(best):
        return None
    least_gain = _SAME * abs(means[0] if np.isfinite(means[0]) else best)
    return float(starts[np.argmax(means <= best + least_gain)])


def mean_rates(
    tariff: Tariff, starts: NDArray[np.float64], lasts_s: Sequence[float]
) -> NDArray[np.float64]:
    """Return the expected rate of a run for each start: its expected cost over its energy.

    ``starts`` are Unix seconds, shape ``(n,)``, as is what is returned. It is infinite where the
    rate is not known until the end of the longest run.
    """
    lengths = np.maximum(lasts_s, 1.0)
    times, rates = [float(starts.min())], []
    while times[-1] < starts.max() + lengths.max():
        rate, until = tariff.at(times[-1])
        rates.append(rate)
        times.append(min(until, float(starts.max() + lengths.max())))
    spans = np.diff(times)
    paid = np.append(0.0, np.cumsum(spans * [rate or 0.0 for rate in rates]))
    unknown = np.append(0.0, np.cumsum(spans * [float(rate is None) for rate in rates]))
    ends = starts[:, None] + lengths
    total = np.interp(ends, times, paid).sum(axis=1) - lengths.size * np.interp(starts, times, paid)
    gap = np.interp(ends.max(axis=1), times, unknown) - np.interp(starts, times, unknown)
    return np.where(gap > 1e-3, np.inf, total / lengths.sum())

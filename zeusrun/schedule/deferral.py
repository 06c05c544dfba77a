"""When a deferred occurrence starts: at the time at which its energy is cheapest.

``plan_start`` is pure; ``decide_start`` reads the prices and the past runs for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.analysis.usual import recurrence_durations_s, upper_duration_s
from zeusrun.errors import UsageError, ZeusrunError
from zeusrun.history.base import NEWEST
from zeusrun.history.registry import open_history
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.schedule.due import PERIOD_S, PlannedStart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.jobfile.validators import StartBy
    from zeusrun.schedule.due import Rules
    from zeusrun.schedule.store import Schedule
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
    longest_s = upper_duration_s(outlook.durations_s)
    latest = latest if finish is None else min(latest, finish - longest_s)
    lasts_s = [min(each, longest_s) for each in outlook.durations_s]
    best = choose_start(outlook.tariff, begin, latest, lasts_s)
    if best is None:
        span = f"from {local(begin):%H:%M} to {local(latest + longest_s):%H:%M}"
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
    longest_s = upper_duration_s(outlook.durations_s)
    if finish is not None and begin + longest_s > finish:
        by = f"{rules.timetable.local(finish):%H:%M}"
        return f"it may take {longest_s / 3600:.1f} h, too long to end by {by}"
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


def decide_start(
    schedule: Schedule, occurrence: float, now: float, home: Path, environment: Mapping[str, str]
) -> PlannedStart:
    """Decide when an occurrence starts; at once, with the reason, if anything cannot be read.

    ``occurrence`` is when it was due; times are Unix seconds. ``environment`` is that of its runs.
    """
    rules = schedule.rules
    try:
        spec = load_spec(Path(schedule.job_file))
        chosen = {} if spec.history.url is None else {spec.name: spec.history.url}
        trials = open_history(home, environment, own=chosen).trials(spec.name, NEWEST)
        durations_s = recurrence_durations_s(trials)
        outlook = replace(load_outlook(spec, rules), durations_s=durations_s)
    except (ZeusrunError, OSError) as error:
        return PlannedStart(max(now, occurrence), now, str(error).partition("\n")[0])
    return plan_start(rules, occurrence, now, outlook)


def load_outlook(spec: JobSpec, rules: Rules) -> Outlook:
    """Return the rates that the starts of a job are chosen by; raises ``JobFileError``."""
    tariffs = load_tariffs(spec)
    if rules.by == "carbon":
        return Outlook(rules.by, tariffs.carbon, "g/kWh")
    return Outlook(rules.by, tariffs.price, f"{tariffs.currency}/kWh")


def check_outlook(spec: JobSpec, rules: Rules) -> list[str]:
    """Return a warning if no later start can be better than one at once.

    Raises:
        UsageError: If starts are chosen by a price, or a carbon, that nothing names.
    """
    tariff = load_outlook(spec, rules).tariff
    if tariff is None:
        raise UsageError(
            f"{spec.source}: 'schedule.start_within' chooses starts by {rules.by}, but no "
            f"{rules.by} is known; add a section {rules.by} to this file, or change 'schedule.by'"
        )
    better = "cleaner" if rules.by == "carbon" else "cheaper"
    flat = f"{rules.by} is the same at all times, so no later start is {better}"
    return [f"{flat}: start_within delays no run"] if tariff.is_flat else []

"""Collects what the start of a deferred occurrence depends on: prices, past runs, the queue."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.analysis.usual import recurrence_durations_s, upper_duration_s
from zeusrun.errors import UsageError, ZeusrunError
from zeusrun.history.base import NEWEST
from zeusrun.history.registry import open_history
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.tariffs import TARIFF_FILE, load_tariffs
from zeusrun.launcher.queue.admission import read_wish
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.schedule.due import PlannedStart
from zeusrun.schedule.start_time import Outlook, plan_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.jobfile.validators import Overlap
    from zeusrun.launcher.queue.admission import GpuWish
    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.schedule.due import Rules
    from zeusrun.schedule.store import Schedule
    from zeusrun.trial import Trial


def decide_start(
    schedule: Schedule, occurrence: float, now: float, home: Path, environment: Mapping[str, str]
) -> PlannedStart:
    """Decide when an occurrence starts; at once, with the reason, if anything cannot be read.

    ``occurrence`` is when it was due; times are Unix seconds. ``environment`` is that of its runs.
    """
    rules = schedule.rules
    try:
        spec = load_spec(Path(schedule.job_file))
        own = {} if spec.history.url is None else {spec.name: spec.history.url}
        trials = open_history(home, environment, own=own).trials(spec.name, NEWEST)
        outlook = replace(
            load_outlook(spec, rules, home),
            durations_s=recurrence_durations_s(trials),
            free_at=_free_at(spec, schedule.overlap, now, home, environment),
        )
    except (ZeusrunError, OSError) as error:
        begin = max(now, rules.start_at(occurrence))
        return PlannedStart(begin, now, str(error).partition("\n")[0])
    return plan_start(rules, occurrence, now, outlook)


def load_outlook(spec: JobSpec, rules: Rules, home: Path) -> Outlook:
    """Return the rates that the starts of a job are chosen by; raises ``JobFileError``."""
    tariffs = load_tariffs(spec, home)
    if rules.by == "carbon":
        return Outlook(rules.by, tariffs.carbon, "g/kWh")
    return Outlook(rules.by, tariffs.price, f"{tariffs.currency}/kWh")


def check_outlook(spec: JobSpec, rules: Rules, home: Path) -> list[str]:
    """Return a warning if no later start can be better.

    Raises:
        UsageError: If starts are chosen by a price, or a carbon, that nothing names.
    """
    if not rules.may_defer:
        return []
    tariff = load_outlook(spec, rules, home).tariff
    if tariff is None:
        raise UsageError(
            f"{spec.source}: 'schedule.start_within' chooses starts by {rules.by}, but no "
            f"{rules.by} is known; add a section {rules.by} to this file or to "
            f"{home / TARIFF_FILE}, or change 'schedule.by'"
        )
    better = "cleaner" if rules.by == "carbon" else "cheaper"
    flat = f"{rules.by} is the same at all times, so no later start is {better}"
    return [f"{flat}: start_within delays no run"] if tariff.is_flat else []


def _free_at(
    spec: JobSpec, overlap: Overlap, now: float, home: Path, environment: Mapping[str, str]
) -> float:
    """Return when the job could begin, as far as the submits that are there are known."""
    present = Tickets(home).present()
    if not present:
        return now
    history, left_s = open_history(home, environment), {}
    for ticket in present:
        with contextlib.suppress(ZeusrunError, ValueError):  # of another job: it may be damaged
            trials = history.trials(ticket.job, NEWEST)
            if durations_s := recurrence_durations_s(trials):
                gone_s = _elapsed_s(ticket, trials, now)
                left_s[ticket.number] = max(0.0, upper_duration_s(durations_s) - gone_s)
    wish = read_wish(spec, {**environment, **spec.env})
    own = [left_s.get(each.number, 0.0) for each in present if each.job == spec.name]
    waits_s = max(own, default=0.0) if overlap == "queue" else 0.0
    return max(now + waits_s, forecast_free(wish, spec.name, present, left_s, now))


def forecast_free(
    wish: GpuWish,
    job: str,
    present: Sequence[Ticket],
    left_s: Mapping[int, float],
    now: float,
) -> float:
    """Return when a submit of a job would have its GPUs, if it came now. Pure.

    ``left_s``: for how long the submits that are present still need theirs, by number, as far as
    that is known.
    """
    free: dict[str, float] = defaultdict(lambda: now)
    for ticket in sorted(present, key=lambda each: (not each.holds, each.number)):
        begins = now if ticket.holds else max((free[uuid] for uuid in ticket.gpus), default=now)
        ends = begins + left_s.get(ticket.number, 0.0)
        if ticket.job == job and wish.count is None:
            continue  # submits of one job share the GPUs that they name
        free.update({uuid: max(free[uuid], ends) for uuid in ticket.gpus})
    of_pool = sorted(free[uuid] for uuid in wish.pool)
    needed = len(of_pool) if wish.count is None else wish.count
    return of_pool[needed - 1] if 0 < needed <= len(of_pool) else now


def _elapsed_s(ticket: Ticket, trials: Sequence[Trial], now: float) -> float:
    """Return for how long the newest recurrence of a submit's job has been running."""
    going = [trial.recurrence for trial in trials if not trial.status.finished]
    if not (ticket.holds and going):
        return 0.0
    began = min(trial.started_at for trial in trials if trial.recurrence == going[-1])
    return now - datetime.fromisoformat(began).timestamp()

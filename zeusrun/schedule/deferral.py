"""Collects what the start of a deferred occurrence depends on: prices and past runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.analysis.usual import recurrence_durations_s
from zeusrun.errors import UsageError, ZeusrunError
from zeusrun.history.base import NEWEST
from zeusrun.history.registry import open_history
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.tariffs import TARIFF_FILE, load_tariffs
from zeusrun.schedule.due import PlannedStart
from zeusrun.schedule.start_time import Outlook, plan_start

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.schedule.due import Rules
    from zeusrun.schedule.store import Schedule


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
        durations_s = recurrence_durations_s(trials)
        outlook = replace(load_outlook(spec, rules, home), durations_s=durations_s)
    except (ZeusrunError, OSError) as error:
        return PlannedStart(max(now, occurrence), now, str(error).partition("\n")[0])
    return plan_start(rules, occurrence, now, outlook)


def load_outlook(spec: JobSpec, rules: Rules, home: Path) -> Outlook:
    """Return the rates that the starts of a job are chosen by; raises ``JobFileError``."""
    tariffs = load_tariffs(spec, home)
    if rules.by == "carbon":
        return Outlook(rules.by, tariffs.carbon, "g/kWh")
    return Outlook(rules.by, tariffs.price, f"{tariffs.currency}/kWh")


def check_outlook(spec: JobSpec, rules: Rules, home: Path) -> list[str]:
    """Return a warning if no later start can be better than one at once.

    Raises:
        UsageError: If starts are chosen by a price, or a carbon, that nothing names.
    """
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

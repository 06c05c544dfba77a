"""Builds a schedule from a job file, flags and the current environment. Pure."""

from __future__ import annotations

import itertools
import math
import sys
from typing import TYPE_CHECKING, Any

from zeusrun.errors import UsageError
from zeusrun.jobfile.validators import duration_s
from zeusrun.schedule.cron_expression import build_timetable
from zeusrun.schedule.due import Cursor, Rules
from zeusrun.schedule.environment import capture, is_usual
from zeusrun.schedule.store import Occurrence, Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from zeusrun.jobfile.spec import JobSpec

_GAPS = 50
_START_S = 5.0  # a process takes at most this long to start


def build_schedule(
    spec: JobSpec,
    given: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    names: Collection[str],
    known: Schedule | None,
    now: float,
) -> Schedule:
    """Return the schedule of a job.

    Args:
        spec: The job, with its ``schedule`` section.
        given: Keys of that section from flags; they override it.
        environment: The current environment.
        names: Further variables to keep for the runs.
        known: The current schedule of the job, whose occurrences are kept; ``None`` for none.
        now: Unix seconds.

    Raises:
        UsageError: If there is no expression, or a value is not usable.
    """
    values = {**_known(known), **_parsed(_section(spec)), **_parsed(given)}
    if values.get("deadline") == 0:
        raise UsageError("deadline must be more than 0, or none")
    if values.get("cron") is None:
        raise UsageError(
            f"{spec.source}: has no schedule section; say when to run it: "
            f'zeusrun schedule add {spec.source.name} "0 2 * * *"'
        )
    timetable = build_timetable(values["cron"], values.get("tz"))
    rules = Rules(
        timetable,
        catch_up=values.get("catch_up") or "none",
        jitter_s=values.get("jitter") or 0.0,
        deadline_s=values.get("deadline"),
        key=spec.name,
    )
    _check_jitter(rules, now)
    same = known is not None and known.rules.timetable == timetable
    return Schedule(
        job=spec.name,
        job_file=str(spec.source),
        rules=rules,
        overlap=values.get("overlap") or "forbid",
        python=sys.executable,
        environment=_captured(environment, names, known),
        cursor=known.cursor if known is not None and same else Cursor(now),
        paused=known is not None and known.paused,
        firings=() if known is None else known.firings,
        section=_section(spec),
    )


def note_dropped(known: Schedule, built: Schedule, at: str) -> Schedule:
    """Return a schedule that records as skipped what was pending in the schedule before it.

    Args:
        known: The schedule before.
        built: The new schedule.
        at: Now, RFC 3339.
    """
    dropped = known.cursor.pending
    if dropped is None or built.cursor.pending == dropped:
        return built
    return built.note(Occurrence(dropped, "skipped", at, why="the schedule was changed"))


def _known(known: Schedule | None) -> dict[str, Any]:
    if known is None:
        return {}
    rules = known.rules
    return {
        "cron": rules.timetable.expression,
        "tz": rules.timetable.tz,
        "overlap": known.overlap,
        "catch_up": rules.catch_up,
        "jitter": rules.jitter_s,
        "deadline": rules.deadline_s,
    }


def _section(spec: JobSpec) -> dict[str, str | None]:
    """Return the keys that the job file sets, without defaults."""
    return {} if spec.schedule is None else spec.schedule.model_dump(exclude_unset=True)


def _parsed(section: Mapping[str, str | None]) -> dict[str, Any]:
    """Return keys of the section, with durations in seconds.

    Raises:
        UsageError: If a duration is not valid.
    """
    parsed: dict[str, Any] = dict(section)
    if parsed.get("tz") == "local":
        parsed["tz"] = None
    for key in parsed.keys() & {"jitter", "deadline"}:
        try:
            nothing = parsed[key] in {None, "none"}
            parsed[key] = None if nothing else duration_s(parsed[key])
        except ValueError as error:
            raise UsageError(f"{key} {error}") from None
    return parsed


def _check_jitter(rules: Rules, now: float) -> None:
    """Check that an occurrence starts before the next one, and within its deadline.

    Raises:
        UsageError: If not.
    """
    moments = itertools.islice(rules.timetable.following(now), _GAPS)
    gap_s = min((b - a for a, b in itertools.pairwise(moments)), default=math.inf)
    if rules.jitter_s > max(gap_s - _START_S, 0.0):
        raise UsageError(
            f"jitter: {rules.jitter_s:g} s is as long as the time between two runs; choose less"
        )
    if rules.deadline_s is not None and rules.jitter_s >= rules.deadline_s:
        raise UsageError("jitter must be less than the deadline")


def _captured(
    environment: Mapping[str, str], names: Collection[str], known: Schedule | None
) -> dict[str, str]:
    """Return the variables of the runs: the usual ones, those of ``names``, and those before."""
    missing = [name for name in names if name not in environment]
    if missing:
        raise UsageError(f"--env {missing[0]}: this variable is not set")
    before = {} if known is None else known.environment
    asked = {name: value for name, value in before.items() if not is_usual(name)}
    return {**asked, **capture(environment, [*names, *asked])}


def find_difference(schedule: Schedule, spec: JobSpec, now: float) -> str | None:
    """Return how the job file differs from the schedule; ``None`` if it does not.

    Args:
        schedule: The schedule.
        spec: The job file now.
        now: Unix seconds.
    """
    if spec.name != schedule.job:
        return (
            f"{schedule.job_file} describes {spec.name} now; run `zeusrun schedule remove "
            f"{schedule.job}` and add it again"
        )
    if _section(spec) == schedule.section:
        return None  # any difference comes from flags
    try:
        said = build_schedule(spec, {}, schedule.environment, names=(), known=schedule, now=now)
    except UsageError as error:
        return f"{schedule.job_file}: {error}"
    before, after = _known(schedule), _known(said)
    changes = (
        [said.rules.timetable.describe()]
        if said.rules.timetable != schedule.rules.timetable
        else []
    )
    for key in ("overlap", "catch_up", "jitter", "deadline"):
        if before[key] != after[key]:
            value = after[key] if isinstance(after[key], str) else f"{after[key] or 0:g} s"
            changes.append(f"{key.replace('_', '-')} {value}")
    if not changes:
        return None
    return (
        f"{schedule.job_file} says {', '.join(changes)}; to apply that: "
        f"zeusrun schedule add {schedule.job_file}"
    )

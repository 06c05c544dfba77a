"""From a job file, flags and the present environment to a schedule. Pure."""

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
_START_S = 5.0  # of a process, at worst


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
        spec: The job; what its ``schedule`` section says is overridden by what is given.
        given: Keys of that section.
        environment: As it is now.
        names: Variables to keep for the runs beside the usual.
        known: The schedule that the job has already, whose past is kept.
        now: Unix seconds.

    Raises:
        UsageError: If there is no expression, or one of the values is not usable.
    """
    told = {**_known(known), **_parsed(_section(spec)), **_parsed(given)}
    if told.get("deadline") == 0:
        raise UsageError("deadline must be more than 0, or none")
    if told.get("cron") is None:
        raise UsageError(
            f"{spec.source}: has no schedule section, and none was given; say when: "
            f'zeusrun schedule add {spec.source.name} "0 2 * * *"'
        )
    timetable = build_timetable(told["cron"], told.get("tz"))
    rules = Rules(
        timetable,
        catch_up=told.get("catch_up") or "none",
        jitter_s=told.get("jitter") or 0.0,
        deadline_s=told.get("deadline"),
        key=spec.name,
    )
    _check_jitter(rules, now)
    same = known is not None and known.rules.timetable == timetable
    return Schedule(
        job=spec.name,
        job_file=str(spec.source),
        rules=rules,
        overlap=told.get("overlap") or "forbid",
        python=sys.executable,
        environment=_captured(environment, names, known),
        cursor=known.cursor if known is not None and same else Cursor(now),
        paused=known is not None and known.paused,
        firings=() if known is None else known.firings,
        section=_section(spec),
    )


def note_dropped(known: Schedule, built: Schedule, at: str) -> Schedule:
    """Return a schedule with what was about to start by the one before it, and now is not.

    Args:
        known: The one before.
        built: Its successor.
        at: RFC 3339.
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
    """Return what the job file says itself: its defaults are nothing that it says."""
    return {} if spec.schedule is None else spec.schedule.model_dump(exclude_unset=True)


def _parsed(told: Mapping[str, str | None]) -> dict[str, Any]:
    """Return keys of the section with durations in seconds.

    Raises:
        UsageError: If one is none.
    """
    parsed: dict[str, Any] = dict(told)
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
            f"jitter: {rules.jitter_s:g} s are as much as the time between two runs; choose less"
        )
    if rules.deadline_s is not None and rules.jitter_s >= rules.deadline_s:
        raise UsageError("jitter must be less than the deadline")


def _captured(
    environment: Mapping[str, str], names: Collection[str], known: Schedule | None
) -> dict[str, str]:
    """Return what the runs get: the usual, what is asked for, and what was before."""
    missing = [name for name in names if name not in environment]
    if missing:
        raise UsageError(f"--env {missing[0]}: there is no such variable to keep")
    before = {} if known is None else known.environment
    asked = {name: value for name, value in before.items() if not is_usual(name)}
    return {**asked, **capture(environment, [*names, *asked])}


def find_difference(schedule: Schedule, spec: JobSpec, now: float) -> str | None:
    """Return how the job file would have the job recur, where that is not as it is scheduled.

    Args:
        schedule: As it is.
        spec: As the file is now.
        now: Unix seconds.
    """
    if spec.name != schedule.job:
        return (
            f"{schedule.job_file} describes {spec.name} now; `zeusrun schedule remove "
            f"{schedule.job}`, and add it again"
        )
    if _section(spec) == schedule.section:
        return None  # where it is not as scheduled, flags were given
    try:
        said = build_schedule(spec, {}, schedule.environment, names=(), known=schedule, now=now)
    except UsageError as error:
        return f"{schedule.job_file}: {error}"
    before, after = _known(schedule), _known(said)
    told = (
        [said.rules.timetable.describe()]
        if said.rules.timetable != schedule.rules.timetable
        else []
    )
    for key in ("overlap", "catch_up", "jitter", "deadline"):
        if before[key] != after[key]:
            value = after[key] if isinstance(after[key], str) else f"{after[key] or 0:g} s"
            told.append(f"{key.replace('_', '-')} {value}")
    if not told:
        return None
    return (
        f"{schedule.job_file} says {', '.join(told)}; `zeusrun schedule add {schedule.job_file}` "
        "makes it so"
    )

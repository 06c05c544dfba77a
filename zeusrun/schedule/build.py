"""From a job file, flags and the present environment to a schedule. Pure."""

from __future__ import annotations

import itertools
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.jobfile.rules import duration_s
from zeusrun.schedule.due import Cursor, Rules
from zeusrun.schedule.environment import capture, is_usual
from zeusrun.schedule.store import Schedule
from zeusrun.schedule.timetable import build_timetable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from zeusrun.spec import JobSpec

_GAPS = 50
_DEFAULTS = {"overlap": "forbid", "catch_up": "none"}


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
    section = {} if spec.schedule is None else spec.schedule.model_dump(exclude_none=True)
    told = {**_DEFAULTS, **_settings(known), **section, **given}
    if "cron" not in told:
        raise UsageError(
            f"{spec.source}: has no schedule section, and none was given; say when: "
            f'zeusrun schedule add {spec.source.name} "0 2 * * *"'
        )
    before = {} if known is None else known.environment
    asked = {name: value for name, value in before.items() if not is_usual(name)}
    missing = [name for name in names if name not in environment]
    if missing:
        raise UsageError(f"--env {missing[0]}: there is no such variable to keep")
    timetable = build_timetable(told["cron"], told.get("tz"))
    jitter_s = _seconds("jitter", told.get("jitter")) or 0.0
    deadline_s = _seconds("deadline", told.get("deadline"))
    moments = list(itertools.islice(timetable.following(now), _GAPS))
    if jitter_s and jitter_s >= min(b - a for a, b in itertools.pairwise(moments)):
        raise UsageError(
            f"jitter: {told['jitter']} is no less than the time between two runs; choose a smaller "
            "one"
        )
    if deadline_s is not None and jitter_s >= deadline_s:
        raise UsageError("jitter: is no less than the deadline; choose a smaller one")
    rules = Rules(
        timetable,
        catch_up=told["catch_up"],
        jitter_s=jitter_s,
        deadline_s=deadline_s,
        key=spec.name,
    )
    same = known is not None and known.rules.timetable == timetable
    return Schedule(
        job=spec.name,
        job_file=str(spec.source),
        rules=rules,
        overlap=told["overlap"],
        python=sys.executable,
        environment={**asked, **capture(environment, [*names, *asked])},
        added_at=datetime.fromtimestamp(now, timezone.utc).isoformat(timespec="seconds"),
        cursor=known.cursor if known is not None and same else Cursor(now),
        paused=known is not None and known.paused,
        firings=() if known is None else known.firings,
    )


def _settings(known: Schedule | None) -> dict[str, str]:
    """Return what the schedule that there is says, in the words of the section."""
    if known is None:
        return {}
    rules = known.rules
    told = {
        "cron": rules.timetable.expression,
        "tz": rules.timetable.tz,
        "overlap": known.overlap,
        "catch_up": rules.catch_up,
        "jitter": f"{rules.jitter_s:.0f}s",
        "deadline": None if rules.deadline_s is None else f"{rules.deadline_s:.0f}s",
    }
    return {key: value for key, value in told.items() if value is not None}


def _seconds(key: str, text: str | None) -> float | None:
    try:
        return None if text is None else duration_s(text)
    except ValueError as error:
        raise UsageError(f"{key} {error}") from None

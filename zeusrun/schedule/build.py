"""Builds a schedule from a job file, flags and the current environment."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.errors import UsageError
from zeusrun.jobfile.secrets import is_secret_name
from zeusrun.jobfile.validators import duration_s, duration_text, time_of_day
from zeusrun.schedule.cron_expression import build_timetable
from zeusrun.schedule.due import Cursor, PlannedStart, Rules
from zeusrun.schedule.store import Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from zeusrun.jobfile.spec import JobSpec

_GAPS = 50
_START_S = 5.0  # a process takes at most this long to start
_KEPT = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV"
    "|LD_LIBRARY_PATH|LD_PRELOAD|(?:https?|no|all)_proxy|(?:HTTPS?|NO|ALL)_PROXY|ZEUSD_SOCK_PATH"
    "|ZEUSRUN_HISTORY"
    "|(?:LC|XDG|CONDA|CUDA|NVIDIA|NCCL|GLOO|TORCH|PYTORCH|OMP|MKL|OPENBLAS|HF|UCX)_[A-Za-z0-9_]+"
)
_OF_A_LOGIN = re.compile(r"XDG_(?:SESSION|SEAT|VTNR|RUNTIME)\w*|CONDA_PROMPT\w*")


def build_schedule(
    spec: JobSpec,
    given: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    names: Collection[str],
    known: Schedule | None,
    now: float,
) -> Schedule:
    """Return the schedule of a job at a Unix second.

    Flags (``given``) override the job file's ``schedule`` section; what neither says is taken from
    the ``known`` schedule. For ``environment`` and ``names`` see ``capture``. It raises a
    ``UsageError`` if there is no expression, or a value is not usable.
    """
    section = {} if spec.schedule is None else spec.schedule.model_dump(exclude_unset=True)
    said = {**_parsed(section), **_parsed(given)}
    values = {**_known(known), **said}
    if not values.get("start_within"):
        values |= {"finish_by": said.get("finish_by"), "by": said.get("by")}
    if values.get("deadline") == 0:
        raise UsageError("deadline must be more than 0, or none")
    if values.get("cron") is None:
        lacks = "has no schedule section" if spec.schedule is None else "has no 'schedule.cron'"
        raise UsageError(
            f"{spec.source} {lacks}; say when to run it: "
            f'zeusrun schedule add {shlex.quote(spec.source.name)} "0 2 * * *"'
        )
    rules = Rules(
        build_timetable(values["cron"], values.get("tz")),
        catch_up=values.get("catch_up") or "none",
        jitter_s=values.get("jitter") or 0.0,
        deadline_s=values.get("deadline"),
        key=spec.name,
        start_within_s=values.get("start_within") or 0.0,
        finish_by=values.get("finish_by"),
        by=values.get("by") or "price",
    )
    _check_delays(rules, now)
    before = {} if known is None else known.environment
    schedule = Schedule(
        job=spec.name,
        job_file=str(spec.source),
        rules=rules,
        overlap=values.get("overlap") or "forbid",
        python=sys.executable,
        environment=capture(environment, names, before),
        cursor=Cursor(now),
        section=section,
    )
    if known is None:
        return schedule
    schedule = replace(schedule, paused=known.paused, firings=known.firings)
    if known.rules.timetable == rules.timetable:
        return replace(schedule, cursor=_replan(known.cursor, now))
    return replace(schedule, cursor=known.cursor).skip_pending(now, "the schedule was changed")


def _replan(cursor: Cursor, now: float) -> Cursor:
    """Let the start of a deferred occurrence be decided anew, by the rules that hold now."""
    if cursor.planned is None:
        return cursor
    return replace(cursor, planned=PlannedStart(now, 0.0, "the schedule was changed"))


def _known(known: Schedule | None) -> dict[str, Any]:
    """Return a schedule as keys of the section, with durations in seconds."""
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
        "start_within": rules.start_within_s,
        "finish_by": rules.finish_by,
        "by": rules.by,
    }


def _parsed(section: Mapping[str, str | None]) -> dict[str, Any]:
    """Return keys of the section, with durations in seconds."""
    parsed: dict[str, Any] = dict(section)
    if parsed.get("tz") == "local":
        parsed["tz"] = None
    if parsed.get("finish_by") == "none":
        parsed["finish_by"] = None
    if parsed.get("finish_by") is not None:
        try:
            time_of_day(parsed["finish_by"])
        except ValueError as error:
            raise UsageError(f"finish_by {error}") from None
    for key in parsed.keys() & {"jitter", "deadline", "start_within"}:
        try:
            nothing = parsed[key] in {None, "none"}
            parsed[key] = None if nothing else duration_s(parsed[key])
        except ValueError as error:
            raise UsageError(f"{key} {error}") from None
    return parsed


def _check_delays(rules: Rules, now: float) -> None:
    """Check that an occurrence starts before the next one, and within its deadline."""
    if not rules.start_within_s and (rules.finish_by is not None or rules.by != "price"):
        key = "by" if rules.finish_by is None else "finish_by"
        raise UsageError(f"{key} only goes with start_within, such as start_within: 6h")
    moments = itertools.islice(rules.timetable.following(now), _GAPS)
    gap_s = min((b - a for a, b in itertools.pairwise(moments)), default=math.inf)
    delays = {"jitter": rules.jitter_s, "start_within": rules.start_within_s}
    for key, delay_s in delays.items():
        if delay_s > max(gap_s - _START_S, 0.0):
            than = "longer than" if delay_s > gap_s else "as long as"
            raise UsageError(
                f"{key}: {duration_text(delay_s)} is {than} the {duration_text(gap_s)} between "
                "two runs; choose less"
            )
        if rules.deadline_s is not None and delay_s and delay_s >= rules.deadline_s:
            raise UsageError(f"{key} must be less than the deadline")
    if rules.start_within_s and rules.jitter_s >= rules.start_within_s:
        raise UsageError("jitter must be less than start_within")


def capture(
    environment: Mapping[str, str], names: Collection[str], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to keep for later runs, instead of cron's minimal environment.

    Variables of libraries are kept. Secrets and variables of a login session are kept only if they
    are in ``names``, which must be set, or in ``before``, what was kept before.
    """
    missing = [name for name in names if name not in environment]
    if missing:
        raise UsageError(f"--env {missing[0]}: this variable is not set")
    asked = {name: value for name, value in before.items() if not _is_usual(name)}
    now = {
        name: value
        for name, value in sorted(environment.items())
        if name in names or name in asked or _is_usual(name)
    }
    return {**asked, **now}


def _is_usual(name: str) -> bool:
    """Whether a variable is kept by default: it belongs to a library and is not a secret."""
    named = _KEPT.fullmatch(name) is not None and _OF_A_LOGIN.fullmatch(name) is None
    return named and not is_secret_name(name)

"""Builds a schedule from a job file and the current environment, and compares the two later."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError, UsageError
from zeusrun.jobfile.secrets import is_secret_name
from zeusrun.jobfile.validators import duration_s, duration_text
from zeusrun.jobfile.yaml_reader import read_job_file
from zeusrun.schedule.due import Cursor, PlannedStart, Rules, build_timetable
from zeusrun.schedule.store import Schedule

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from zeusrun.jobfile.spec import JobSpec

_GAPS = 50
_START_S = 5.0  # a process takes at most this long to start
_KEPT = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|PYTHONPATH|PYTHONHOME|VIRTUAL_ENV"
    "|LD_LIBRARY_PATH|LD_PRELOAD|(?:https?|no|all)_proxy|(?:HTTPS?|NO|ALL)_PROXY|ZEUSD_SOCK_PATH"
    "|ZEUSRUN_HISTORY|KUBECONFIG|AWS_(?:PROFILE|REGION|CONFIG_FILE)|CLOUDSDK_[A-Z_]+|GOOGLE_APPLICATION_CREDENTIALS|AZURE_CONFIG_DIR|SLURM_CONF|SBATCH_[A-Z_]+"
    "|(?:LC|XDG|CONDA|CUDA|NVIDIA|NCCL|GLOO|TORCH|PYTORCH|OMP|MKL|OPENBLAS|HF|UCX)_[A-Za-z0-9_]+"
)
_OF_A_LOGIN = re.compile(r"XDG_(?:SESSION|SEAT|VTNR|RUNTIME)\w*|CONDA_PROMPT\w*")


def build_schedule(
    spec: JobSpec,
    when: str | None,
    environment: Mapping[str, str],
    *,
    names: Collection[str],
    known: Schedule | None,
    now: float,
) -> Schedule:
    """Return the schedule of a job at a Unix second, by the ``schedule`` section of its file.

    ``when`` is a cron expression that overrides that of the section; without both, that of the
    ``known`` schedule counts. For ``environment`` and ``names`` see ``capture``. It raises a
    ``UsageError`` if there is no expression, or a value is not usable.
    """
    from zeusrun.jobfile.sections import ScheduleSection  # noqa: PLC0415 - pydantic takes 50 ms

    section = spec.schedule or ScheduleSection()
    expression = (
        when or section.cron or (None if known is None else known.rules.timetable.expression)
    )
    if expression is None:
        lacks = "has no schedule section" if spec.schedule is None else "has no 'schedule.cron'"
        raise UsageError(
            f"{spec.source} {lacks}; say when to run it: "
            f'zeusrun schedule add {shlex.quote(spec.source.name)} "0 2 * * *"'
        )
    rules = Rules(
        build_timetable(expression, section.tz),
        catch_up=section.catch_up,
        deadline_s=None if section.deadline is None else duration_s(section.deadline),
        start_within_s=0.0 if section.start_within is None else duration_s(section.start_within),
        finish_by=section.finish_by,
        by=section.by,
    )
    _check_delays(rules, now)
    schedule = Schedule(
        job=spec.name,
        job_file=str(spec.source),
        rules=rules,
        overlap=section.overlap,
        python=sys.executable,
        environment=capture(environment, names, {} if known is None else known.environment),
        cursor=Cursor(now),
        section=section.model_dump(exclude_unset=True),
    )
    if known is None:
        return schedule
    schedule = replace(schedule, paused=known.paused, firings=known.firings, cursor=known.cursor)
    if known.rules.timetable != rules.timetable:
        return schedule.skip_pending(now, "the schedule was changed")
    if known.cursor.planned is None:
        return schedule
    # Decide the start of a deferred occurrence anew, by the rules that hold now.
    planned = PlannedStart(now, 0.0, "the schedule was changed")
    return replace(schedule, cursor=replace(known.cursor, planned=planned))


def _check_delays(rules: Rules, now: float) -> None:
    """Check that an occurrence starts before the next one, and within its deadline."""
    within_s = rules.start_within_s
    if rules.deadline_s == 0:
        raise UsageError("deadline must be more than 0")
    moments = itertools.islice(rules.timetable.following(now), _GAPS)
    gap_s = min((b - a for a, b in itertools.pairwise(moments)), default=math.inf)
    if within_s > max(gap_s - _START_S, 0.0):
        than = "longer than" if within_s > gap_s else "as long as"
        raise UsageError(
            f"start_within: {duration_text(within_s)} is {than} the {duration_text(gap_s)} between "
            "two runs; choose less"
        )
    if rules.deadline_s is not None and within_s and within_s >= rules.deadline_s:
        raise UsageError("start_within must be less than the deadline")


def find_difference(schedule: Schedule) -> str | None:
    """Return how the job file, read as plain YAML, differs from the schedule; ``None`` if not.

    Raises:
        JobFileError: If the job cannot run: no such file, no YAML, or it describes another job.
    """
    job, path = schedule.job, Path(schedule.job_file)
    remove = f"`zeusrun schedule remove {job}`"
    if not path.exists():
        raise JobFileError(
            f"{path}: there is no such file; if you moved it, `zeusrun schedule add` it again, or "
            f"{remove}"
        )
    data = read_job_file(path, ()).data
    if data.get("name") != job:
        raise JobFileError(
            f"{path} describes {data.get('name')} now; run {remove} and add it again"
        )
    if (data.get("schedule") or {}) == schedule.section:
        return None  # any other difference comes from flags
    return (
        f"{job}: the schedule section of {path} has changed since; to apply that: "
        f"zeusrun schedule add {shlex.quote(str(path))}"
    )


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

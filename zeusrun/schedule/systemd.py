"""The same schedules for machines without cron: units of systemd, manifests of Kubernetes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

from zeusrun.errors import UsageError
from zeusrun.schedule.cron_expression import read_zone_name
from zeusrun.schedule.crontab import check_words
from zeusrun.schedule.due import ON_TIME_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.schedule.store import Schedule

_SERVICE = """[Unit]
Description=Start the zeusrun jobs that are due

[Service]
Type=oneshot
Environment={variable}
WorkingDirectory=/
ExecStart={command}
# What it starts goes on when it has ended.
KillMode=process
"""
_TIMER = """[Unit]
Description=Every minute, start the zeusrun jobs that are due

[Timer]
OnCalendar=*-*-* *:*:00
AccuracySec=1s

[Install]
WantedBy=timers.target
"""
_STANDARD = re.compile(r"[0-9A-Z*,/ -]+")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_LEAST_DEADLINE_S = 10  # under it, a CronJob may never start: it is looked at every 10 s
_CONCURRENCY = {"forbid": "Forbid", "replace": "Replace", "allow": "Allow"}


def systemd_units(python: str, home: Path, variables: Sequence[str] = ()) -> dict[str, str]:
    """Return the user units that do what the crontab entry does, by file name.

    Args:
        python: The interpreter that has zeusrun; absolute.
        home: Zeusrun's.
        variables: ``NAME=value`` each, needed to import it.

    They know no times: every minute they start what is due, so that overlaps, pauses and missed
    runs are the same as with cron.

    Raises:
        UsageError: If one of them holds a control character.
    """
    told = check_words(python, home, variables)
    words = ("-m", "zeusrun", "schedule", "tick")  # a $ in the path of a program is no variable
    command = " ".join([_quoted(python), *(_quoted(word).replace("$", "$$") for word in words)])
    variable = " ".join(map(_quoted, told))
    return {
        "zeusrun-schedule.service": _SERVICE.format(variable=variable, command=command),
        "zeusrun-schedule.timer": _TIMER,
    }


def _quoted(word: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7), systemd.unit(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[\s\"';\\]", word) else escaped


def kubernetes_cronjob(schedule: Schedule, image: str, claim: str) -> str:
    """Return a CronJob as YAML: Kubernetes keeps the time, and each run is a ``submit``.

    Args:
        schedule: Of the job.
        image: The container's; it has zeusrun, and the job file at the same path.
        claim: The volume claim that keeps zeusrun's home from run to run.

    Raises:
        UsageError: If it cannot say the same.
    """
    rules, job = schedule.rules, schedule.job
    name = re.sub(r"[^a-z0-9-]", "-", job.lower())[:52].strip("-")
    if not _IMAGE.fullmatch(image):
        raise UsageError(
            f"--image {image!r}: is no container image; name one such as example/train:1.0"
        )
    if schedule.overlap == "queue":
        raise UsageError(
            f"{job}: Kubernetes knows no overlap 'queue'; choose forbid, replace or allow"
        )
    if not _STANDARD.fullmatch(rules.timetable.expression) or re.search(
        r"\bL|L\b", rules.timetable.expression.replace("JUL", "")
    ):
        raise UsageError(f"{job}: Kubernetes does not know {rules.timetable.expression!r}")
    days = [rules.timetable.expression.split()[index] for index in (2, 4)]
    if "*" not in days and any(day.startswith("*/") for day in days):
        raise UsageError(
            f"{job}: to Kubernetes, {' and '.join(days)} in the fields of days means either, and "
            "here both; name the days"
        )
    if "7" in rules.timetable.expression.split()[4]:
        raise UsageError(f"{job}: Kubernetes does not know Sunday as 7; write it as 0")
    zone = rules.timetable.tz or read_zone_name()
    if zone is None:
        raise UsageError(
            f"{job}: nobody knows the name of this machine's time zone, and the cluster may be in "
            f"another; name it: zeusrun schedule add {schedule.job_file} --tz Europe/Paris"
        )
    container = {
        "name": name,
        "image": image,
        "args": ["zeusrun", "submit", schedule.job_file, "--overlap", schedule.overlap],
        "env": [{"name": "ZEUSRUN_HOME", "value": "/zeusrun"}],
        "volumeMounts": [{"name": "home", "mountPath": "/zeusrun"}],
    }
    spec: dict[str, Any] = {
        "schedule": rules.timetable.expression,
        "timeZone": zone,
        "concurrencyPolicy": _CONCURRENCY[schedule.overlap],
        "suspend": schedule.paused,
        "jobTemplate": {
            "spec": {
                # A preempted trial is gone on with by the next run, not by another pod.
                "backoffLimit": 0,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [container],
                        "volumes": [
                            {"name": "home", "persistentVolumeClaim": {"claimName": claim}}
                        ],
                    }
                },
            }
        },
    }
    # Without a bound, Kubernetes catches up with the newest of those it has missed.
    bounds = [rules.deadline_s, None if rules.catch_up == "once" else ON_TIME_S]
    late_s = min((bound for bound in bounds if bound is not None), default=None)
    if late_s is not None:
        spec["startingDeadlineSeconds"] = max(int(late_s), _LEAST_DEADLINE_S)
    kind = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name}}
    return yaml.safe_dump({**kind, "spec": spec}, sort_keys=False)

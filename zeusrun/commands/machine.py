"""The facts about this machine that heartbeats of its runs send to a server."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from zeusrun import __version__
from zeusrun.clock import read_clock
from zeusrun.errors import ZeusrunError

if TYPE_CHECKING:
    from pathlib import Path

_REPORTED = ("job", "words", "next", "paused", "last_run")  # fields of a schedule


def describe_machine(home: Path) -> dict[str, Any]:
    """Return the GPUs and the schedules of this machine, as far as they can be read."""
    from zeusrun.gpu.facts import read_gpus  # noqa: PLC0415 - few submits report to a server
    from zeusrun.launcher.power.control import held_by  # noqa: PLC0415 - as above
    from zeusrun.schedule.store import Schedules  # noqa: PLC0415 - as above

    facts: dict[str, Any] = {"version": __version__, "gpus": [], "schedules": []}
    with contextlib.suppress(ZeusrunError):
        facts["gpus"] = read_gpus(functools.partial(held_by, home))
    schedules = Schedules(home)
    if schedules.directory.is_dir():
        from zeusrun.view.schedule import schedule_json  # noqa: PLC0415 - few have a schedule

        for job in schedules.jobs():
            with contextlib.suppress(ZeusrunError):  # `zeusrun schedule list` shows the error
                record = schedule_json(schedules.read(job), read_clock())
                facts["schedules"].append({name: record[name] for name in _REPORTED})
    return facts

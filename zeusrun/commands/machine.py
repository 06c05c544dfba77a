"""What this machine reports of itself to shared histories, and what it delivers to them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from zeusrun import __version__
from zeusrun.clock import read_clock
from zeusrun.errors import ZeusrunError
from zeusrun.history.registry import known_servers, open_named
from zeusrun.history.shared.spool import Spool
from zeusrun.schedule.store import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_FIRINGS = 5


def describe_machine(home: Path) -> dict[str, Any]:
    """Return the GPUs and the schedules of this machine, as far as they can be read."""
    facts: dict[str, Any] = {"version": __version__, "gpus": [], "schedules": []}
    with contextlib.suppress(ZeusrunError):
        facts["gpus"] = _describe_gpus(home)
    schedules = Schedules(home)
    if schedules.directory.is_dir():
        from zeusrun.view.schedule import schedule_json  # noqa: PLC0415 - few have a schedule

        for job in schedules.jobs():
            with contextlib.suppress(ZeusrunError):  # `schedule list` says what is wrong with it
                record = schedule_json(schedules.read(job), read_clock())
                for private in ("environment", "job_file", "python"):
                    record.pop(private, None)
                facts["schedules"].append({**record, "firings": record["firings"][-_FIRINGS:]})
    return facts


def _describe_gpus(home: Path) -> list[dict[str, Any]]:
    from zeusrun.gpu.snapshot import read_gpus  # noqa: PLC0415 - psutil takes 20 ms
    from zeusrun.launcher.power.control import held_by  # noqa: PLC0415 - see above

    gpus = read_gpus(os.environ, lambda uuid: held_by(home, uuid), everything=True)
    return [
        {name: value for name, value in each.to_json().items() if name != "processes"}
        for each in gpus
    ]


def deliver_waiting(
    home: Path, environment: Mapping[str, str], show: Callable[[str], None]
) -> None:
    """Deliver what waits for shared histories; what fails is tried again by the next call."""
    for url, folder in known_servers(home).items():
        if Spool(folder / "spool"):
            with contextlib.suppress(ZeusrunError, ValueError):
                open_named(home, environment, url, show=show).deliver()

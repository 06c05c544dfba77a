"""What this machine reports of itself to shared histories, and what it delivers to them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Any

from zeusrun import __version__
from zeusrun.clock import read_clock
from zeusrun.errors import ZeusrunError
from zeusrun.files.private import read_file, write_file
from zeusrun.history.registry import known_servers, open_named
from zeusrun.history.shared.spool import Spool
from zeusrun.history.shared.store import SharedHistory
from zeusrun.schedule.store import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_REPORT_S = 600.0
_IN_USE_S = 7 * 86400.0  # a server that was not used for so long gets no reports
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


def tend_servers(home: Path, environment: Mapping[str, str], show: Callable[[str], None]) -> None:
    """Deliver what waits for shared histories, and report this machine to them now and then.

    It reports every ten minutes, or if a schedule has changed. What fails is tried again by the
    next call.
    """
    for url, folder in known_servers(home).items():
        waits, due = bool(Spool(folder / "spool")), _is_due(home, folder)
        if not (waits or due):
            continue
        with contextlib.suppress(ZeusrunError, ValueError):
            history = open_named(home, environment, url, show=show)
            if isinstance(history, SharedHistory):
                history.deliver()
                if due:
                    history.report_host(os.uname().nodename, describe_machine(home))
                    _note_report(home, folder)


def _is_due(home: Path, folder: Path) -> bool:
    now = read_clock()
    try:
        if now - (folder / "copy.db").stat().st_mtime > _IN_USE_S:
            return False
        at, _, digest = read_file(folder / "reported", 200).decode().partition(" ")
        return not 0 <= now - float(at) < _REPORT_S or digest != _digest(home)
    except FileNotFoundError:
        return (folder / "copy.db").exists()
    except (OSError, ValueError):
        return True


def _note_report(home: Path, folder: Path) -> None:
    with contextlib.suppress(OSError):
        write_file(folder / "reported", f"{read_clock()} {_digest(home)}".encode())


def _digest(home: Path) -> str:
    """Return a text that changes when a schedule does."""
    files = sorted(Schedules(home).directory.glob("*.json"))
    states = [(each.name, each.stat().st_mtime_ns) for each in files if each.exists()]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]

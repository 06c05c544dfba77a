"""Checks what zeusrun depends on, and says what to do about each problem."""

from __future__ import annotations

import platform
import re
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.clock import local_time, read_clock
from zeusrun.energy.cpu import cpu_device
from zeusrun.energy.device import LimitableDevice
from zeusrun.errors import DeviceError, HistoryError, ZeusrunError, advice_on
from zeusrun.files.home import (
    home_directory,
    limits_directory,
    notices_directory,
    trusted_home,
)
from zeusrun.files.lock import FileLock
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.gpu.power_limits.original_limits import LimitLock, abandoned_gpus, is_held
from zeusrun.history.registry import waiting_spools
from zeusrun.launcher.power.control import held_by
from zeusrun.launcher.processes.command import find_torchrun
from zeusrun.plugins import find_damaged_packages
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from zeusrun.energy.device import Device
    from zeusrun.history.shared.spool import Spool
    from zeusrun.history.shared.store import SharedHistory

_NO_TORCH = "until then, `import torch` fails in every training"  # though zeusrun works
_OLDEST_TORCH = (2, 4)  # as the extra train says
_RUN_BYTES = 64 << 10  # what a submit reserves for an outcome


@dataclass(frozen=True)
class Check:
    """One line of ``doctor``.

    ``well`` is ``False`` if a submit would fail or the user must fix something, ``None`` for a
    remark. ``advice`` says what to do.
    """

    name: str
    well: bool | None
    found: str
    advice: str = ""


def check_machine(environment: Mapping[str, str]) -> list[Check]:
    """Return the checks, in the order in which a submit needs what they check."""
    home = home_directory(environment)
    python = f"{platform.python_version()}, {sys.executable}"
    return [
        Check("python", well=True, found=python),
        *attempt("torch", lambda: [_check_torch()]),
        *(
            Check("package", False, f"{package}: {damage}", _NO_TORCH)
            for package, damage in find_damaged_packages().items()
        ),
        *_check_host(),
        *attempt("devices", lambda: _check_devices(environment, home)),
        *attempt("power limit", lambda: _check_limits(home)),
        *attempt("home", lambda: [_check_home(home)]),
        *_check_notices(home),
    ]


def attempt(name: str, check: Callable[[], Sequence[Check]], what: str = "") -> Sequence[Check]:
    """Return the results of a check; if it raises a ``ZeusrunError``, that, after ``what``."""
    try:
        return check()
    except ZeusrunError as error:
        return [Check(name, well=False, found=f"{what}{error}")]


def _check_torch() -> Check:
    version = find_torchrun().version
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and tuple(map(int, found.groups())) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        return Check("torch", well=None, found=version, advice=f"zeusrun needs {oldest} or later")
    return Check("torch", well=True, found=version)


def _check_devices(environment: Mapping[str, str], home: Path) -> list[Check]:
    gpus, found = gpus_of_job(environment, None), list[Check]()
    for gpu in gpus:
        what = f"{gpu.model} {gpu.uuid}: "
        found += attempt("gpu", partial(_check_gpu, gpu, what, home), what)
    found = found or [*attempt("devices", lambda: [_check_cpu(environment)])]
    return [*found, _check_permission(gpus, home)]


def _check_host() -> list[Check]:
    """Return a line if the ranks of a run could not find each other by the name of the machine."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        found = f"the host name {name} does not resolve, so torchrun's ranks would wait for ever"
        advice = f"add a line to /etc/hosts: 127.0.1.1 {name}"
        return [Check("host", well=False, found=found, advice=advice)]
    return []


def _check_gpu(gpu: Device, what: str, home: Path) -> list[Check]:
    reading = gpu.read()
    limit = "?" if reading.power_limit_w is None else f"{reading.power_limit_w:.0f}"
    maximum = "?" if gpu.max_power_w is None else f"{gpu.max_power_w:.0f}"
    found = f"{what}energy {gpu.energy_source.value}, limit {limit} of {maximum} W"
    if is_held(gpu.uuid, limits_directory(home)) and (run := held_by(home, gpu.uuid)):
        found += f", held by {run}"
    return [Check("gpu", well=True, found=found)]


def _check_cpu(environment: Mapping[str, str]) -> Check:
    device = cpu_device(environment)
    found = f"no GPU; {device.model}, energy {device.energy_source.value}"
    if device.energy_source is not EnergySource.ESTIMATED:
        return Check("devices", well=True, found=found)
    advice = (
        "zeusrun estimates energy from CPU time; set ZEUSRUN_CPU_WATTS_PER_CORE to the watts that "
        "a core of this machine draws, or make RAPL under /sys/class/powercap readable"
    )
    return Check("devices", well=None, found=found, advice=advice)


def _check_permission(gpus: list[Device], home: Path) -> Check:
    """Set each power limit to its present value: only that shows whether it may be set."""
    directory = limits_directory(home)
    try:
        answers = [_may_set(gpu, directory) for gpu in gpus if isinstance(gpu, LimitableDevice)]
    except DeviceError as error:
        found = "power limits are only observed"
        return Check("permissions", well=None, found=found, advice=str(error))
    if True in answers:
        return Check("permissions", well=True, found="power limits may be set")
    if False in answers:
        found = "a run holds the power limits, so doctor did not try to set them"
        return Check("permissions", well=None, found=found, advice="run doctor again after it")
    return Check("permissions", well=None, found="no GPU whose power limit could be set")


def _may_set(gpu: LimitableDevice, directory: Path) -> bool | None:
    """Set the limit of a GPU to its present value, while no run can change it.

    Return ``False`` if a run holds it, ``None`` if the GPU has no limit; ``DeviceError`` if it may
    not be set.
    """
    if gpu.power_limit_range_w() is None:
        return None
    lock = LimitLock(gpu.uuid, directory)
    if not lock.acquire():
        return False
    try:
        now_w = gpu.power_limit_w()
        if now_w is not None:
            gpu.set_power_limit_w(now_w)
        return None if now_w is None else True
    finally:
        lock.release()


def _check_limits(home: Path) -> list[Check]:
    """Return a line for each limit that a dead launcher has left changed."""
    directory, advice = limits_directory(home), "`zeusrun repair` restores it"
    return [
        Check("power limit", False, f"a dead run left the limit of {uuid} changed", advice)
        for uuid in abandoned_gpus(directory)
    ]


def _check_home(home: Path) -> Check:
    """Write to the home and lock a file there, as a submit does: only that shows if it works."""
    otherwise = "make it writable, or set ZEUSRUN_HOME to a directory that is"
    try:
        trusted_home({"ZEUSRUN_HOME": str(home)})
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            path = Path(folder) / "lock"
            path.write_bytes(bytes(_RUN_BYTES))
            otherwise = "its file system has no locks (flock); set ZEUSRUN_HOME to one that has"
            with FileLock(path) as held, FileLock(path) as second:
                locked = held.acquire() and not second.acquire()
    except OSError as error:
        found = f"{home}: {error.strerror}"
        return Check("home", well=False, found=found, advice=advice_on(error, otherwise))
    if not locked:
        found = f"{home}: its file system gives one lock to two holders"
        advice = "two runs would overwrite each other's records; set ZEUSRUN_HOME to a local disk"
        return Check("home", well=False, found=found, advice=advice)
    return Check("home", well=True, found=str(home))


def _check_notices(home: Path) -> list[Check]:
    """Return a line if there are notices that could not be delivered."""
    folder = notices_directory(home)
    left = len(list(folder.glob("*.json"))) if folder.is_dir() else 0
    if not left:
        return []
    found = f"{left} notice{'' if left == 1 else 's'} could not be delivered so far"
    return [Check("notices", well=None, found=found, advice=f"see {folder / 'failed.log'}")]


_MOST_APART_S = 60.0  # between two clocks; times of runs are compared across machines


def check_server(history: SharedHistory) -> list[Check]:
    """Return the checks of one shared history."""
    advice = "the next submit delivers them, or `zeusrun schedule tick` from cron"
    waiting = _check_waiting(history.name, history.spool, advice)
    return [*_check_connection(history), *waiting]


def check_unused(home: Path, used: Collection[str]) -> list[Check]:
    """Return the checks of what waits for other shared histories than those in use."""
    found = []
    for name, spool in waiting_spools(home, besides=used).items():
        advice = (
            "no job uses this address now; if the server has another one, `zeusrun repair "
            f"--restore JOB` adds the runs of this machine there; then remove {spool.folder}"
        )
        found += _check_waiting(name, spool, advice)
    return found


def _check_connection(history: SharedHistory) -> list[Check]:
    remote = history.remote
    try:
        before, begun_t = read_clock(), time.monotonic()
        described = remote.describe()
        took_s = time.monotonic() - begun_t
        jobs = len(remote.jobs())
    except (HistoryError, ValueError) as error:
        return [Check("server", well=False, found=str(error))]
    count = "1 job" if jobs == 1 else f"{jobs} jobs"
    found = f"{remote.url}: {count}, zeusrun {described.get('version')}, {took_s:.2f} s"
    granted = described.get("access") or {}
    if granted.get("token") is not None:
        found += f", token {granted['token']} for jobs called {granted.get('jobs')}"
        found += "" if granted.get("write") else ", which may only read"
    checks = [Check("server", well=True, found=found)]
    apart_s = described["now"] - (before + took_s / 2)
    if abs(apart_s) > max(_MOST_APART_S, took_s):
        ahead = "ahead of" if apart_s > 0 else "behind"
        found = f"the clock of {history.name} is {abs(apart_s):.0f} s {ahead} the clock here"
        checks.append(Check("clock", well=None, found=found, advice="synchronise both by NTP"))
    return checks


def _check_waiting(name: str, spool: Spool, advice: str) -> list[Check]:
    checks = []
    waiting, refused = spool.entries(), spool.list_refused()
    if waiting:
        count = "1 write waits" if len(waiting) == 1 else f"{len(waiting)} writes wait"
        first = waiting[0].trial
        since = local_time(first.finished_at or first.started_at)
        oldest = first.trial if since is None else f"{first.trial} since {since:%Y-%m-%d %H:%M}"
        found = f"{count} for {name}, the oldest of {oldest}"
        checks.append(Check("spool", well=None, found=found, advice=advice))
    if refused:
        found = f"{name} has refused {len(refused)} results: {refused[0]}"
        advice = "the .txt file beside each says why; remove both files when you have read them"
        checks.append(Check("spool", well=False, found=found, advice=advice))
    return checks

"""Looks at what zeusrun stands on, and says what to do about each."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError, HistoryError, ZeusrunError, advice_on
from zeusrun.file_lock import FileLock
from zeusrun.gpu.cpu import cpu_device
from zeusrun.gpu.limit_lock import is_held
from zeusrun.gpu.limit_record import is_elsewhere, recorded_gpus
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.gpu.zeusd import find_zeusd
from zeusrun.launcher.home import trusted_home
from zeusrun.launcher.paths import home_directory, limits_directory, notices_directory
from zeusrun.launcher.torchrun import find_torchrun
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.gpu.device import Device

_CAP_SYS_ADMIN = 21
_RUN_BYTES = 64 << 10  # what a submit reserves for an outcome


@dataclass(frozen=True)
class Check:
    """One line of ``doctor``.

    Attributes:
        name: What was looked at.
        well: ``False`` if a submit would fail or something must be put right; ``None`` for what is
            merely worth knowing.
        found: What was found.
        advice: What to do; empty when there is nothing to do.
    """

    name: str
    well: bool | None
    found: str
    advice: str = ""


def check_machine(environment: Mapping[str, str]) -> list[Check]:
    """Return the checks, in the order in which a submit needs what they look at."""
    checks = [_check_python(), _check_torch()]
    try:
        gpus = gpus_of_job(environment, None)
    except ZeusrunError as error:
        checks.append(Check("devices", well=False, found=str(error)))
        gpus = []
    checks += [_check_gpu(gpu) for gpu in gpus]
    if not gpus:
        checks.append(_check_cpu(environment))
    home = home_directory(environment)
    checks.append(_check_permission(gpus, environment))
    checks += _check_limits(home)
    checks.append(_check_home(home))
    checks += _check_notices(home)
    return checks


def _check_notices(home: Path) -> list[Check]:
    """Look for notices that could not be delivered so far."""
    folder = notices_directory(home)
    left = len(list(folder.glob("*.json"))) if folder.is_dir() else 0
    if not left:
        return []
    found = f"{left} notice{'' if left == 1 else 's'} could not be delivered so far"
    return [Check("notices", well=None, found=found, advice=f"see {folder / 'failed.log'}")]


def _check_python() -> Check:
    return Check("python", well=True, found=f"{platform.python_version()}, {sys.executable}")


def _check_torch() -> Check:
    try:
        torchrun = find_torchrun()
    except ZeusrunError as error:
        return Check("torch", well=False, found=str(error))
    if "--shutdown-timeout" in torchrun.flags:
        return Check("torch", well=True, found=torchrun.version)
    found = f"{torchrun.version}; its torchrun has no --shutdown-timeout"
    return Check(
        "torch", well=None, found=found, advice="grace_period_s is passed by the environment"
    )


def _check_gpu(gpu: Device) -> Check:
    try:
        reading = gpu.read()
    except ZeusrunError as error:
        return Check("gpu", well=False, found=f"{gpu.model} {gpu.uuid}: {error}")
    limit = "?" if reading.power_limit_w is None else f"{reading.power_limit_w:.0f}"
    maximum = "?" if gpu.max_power_w is None else f"{gpu.max_power_w:.0f}"
    found = (
        f"{gpu.model} {gpu.uuid}: energy {gpu.energy_source.value}, limit {limit} of {maximum} W"
    )
    return Check("gpu", well=True, found=found)


def _check_cpu(environment: Mapping[str, str]) -> Check:
    try:
        device = cpu_device(environment)
    except ZeusrunError as error:
        return Check("devices", well=False, found=str(error))
    found = f"no GPU; {device.model}, energy {device.energy_source.value}"
    if device.energy_source is not EnergySource.ESTIMATED:
        return Check("devices", well=True, found=found)
    advice = (
        "energy is modelled from CPU time; set ZEUSRUN_CPU_WATTS_PER_CORE to what a core of this "
        "machine draws, or make RAPL under /sys/class/powercap readable"
    )
    return Check("devices", well=None, found=found, advice=advice)


def _check_permission(gpus: list[Device], environment: Mapping[str, str]) -> Check:
    """Look only: whether a driver grants it is seen when a limit is set."""
    if not gpus:
        return Check("permissions", well=None, found="no GPU whose power limit could be set")
    if _may_administer():
        return Check("permissions", well=True, found="power limits may be set")
    if find_zeusd(environment) is not None:
        return Check("permissions", well=True, found="power limits may be set through zeusd")
    return Check(
        "permissions",
        well=None,
        found="power limits are only observed",
        advice="setting them needs root, CAP_SYS_ADMIN, or zeusd (ZEUSD_SOCK_PATH)",
    )


def _check_limits(home: Path) -> list[Check]:
    """Return a line for each limit that a dead launcher has left changed."""
    directory = limits_directory(home)
    try:
        recorded = recorded_gpus(directory)
    except DeviceError as error:
        return [Check("power limit", well=False, found=str(error))]
    left = [uuid for uuid in recorded if not is_held(uuid) and not is_elsewhere(directory, uuid)]
    return [
        Check(
            "power limit",
            well=False,
            found=f"that of {uuid} is not as it was found",
            advice="`zeusrun repair` restores it",
        )
        for uuid in left
    ]


def _may_administer() -> bool:
    """Whether the kernel grants this process CAP_SYS_ADMIN (capabilities(7), bit 21)."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123
            for line in file:
                if line.startswith("CapEff:"):
                    return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    except (OSError, ValueError):
        pass
    return os.geteuid() == 0


def _check_home(home: Path) -> Check:
    """Write to the home and lock there, as a submit does: only an attempt tells."""
    otherwise = "make it writable, or set ZEUSRUN_HOME to a directory that is"
    try:
        trusted_home({"ZEUSRUN_HOME": str(home)})
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=home) as folder:
            path = Path(folder) / "lock"
            path.write_bytes(bytes(_RUN_BYTES))
            otherwise = "its file system has no locks (flock); set ZEUSRUN_HOME to one that has"
            locked = _try_locks(path)
    except HistoryError as error:
        return Check("home", well=False, found=str(error))
    except OSError as error:
        found = f"{home}: {error.strerror}"
        return Check("home", well=False, found=found, advice=advice_on(error, otherwise))
    if not locked:
        found = f"{home}: its file system gives one lock to two holders"
        advice = "two runs would overwrite each other's records; set ZEUSRUN_HOME to a local disk"
        return Check("home", well=False, found=found, advice=advice)
    return Check("home", well=True, found=str(home))


def _try_locks(path: Path) -> bool:
    """Whether a file that is locked cannot be locked again.

    Raises:
        OSError: If it cannot be locked at all.
    """
    held, second = FileLock(path), FileLock(path)
    try:
        return held.acquire() and not second.acquire()
    finally:
        second.release()
        held.release()

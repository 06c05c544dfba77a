"""Run any command under the energy monitor, and say what it took."""

from __future__ import annotations

import math
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import MEASURE_VARIABLE, ForeignProcesses
from zeusrun.errors import ExitCode, NotStartedError
from zeusrun.launcher.processes.foreground import run_foreground

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.device import Device
    from zeusrun.launcher.processes.foreground import ForegroundExit
    from zeusrun.trial import EnergySource

# NVML's counter moves about so often (DESIGN, "Facts to build on"): a window that holds none of
# its steps, or at most ten, tells little.
COUNTER_STEP_S = 0.1
_FEW_STEPS = 10


@dataclass(frozen=True)
class DeviceEnergy:
    """The share of one device.

    Attributes:
        uuid: Of the device.
        model: Its product name.
        energy_j: Joules; ``None`` if unknown.
    """

    uuid: str
    model: str
    energy_j: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a command took, from just before it started to just after it ended.

    Attributes:
        exit_code: Its exit code; 128 + n if signal n ended it.
        time_s: Seconds.
        energy_j: Joules of all devices; ``None`` if unknown.
        energy_source: Where they come from; ``None`` if they are unknown.
        energy_counter_j: Joules by the devices' counters; ``None`` if any has none.
        energy_integrated_j: Joules by integrating sampled power; ``None`` if any does not tell it.
        mean_power_w: Joules over seconds.
        max_power_w: The most that all devices together may draw; ``None`` if unknown.
        shared: Whether processes that are not the command's used its GPUs; ``None`` if unknown.
        devices: What each device used.
        warnings: Sentences that a user should read.
    """

    exit_code: int
    time_s: float
    energy_j: float | None
    energy_source: EnergySource | None
    energy_counter_j: float | None
    energy_integrated_j: float | None
    mean_power_w: float | None
    max_power_w: float | None
    shared: bool | None
    devices: tuple[DeviceEnergy, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, in the order of the fields."""
        source = self.energy_source
        return {**asdict(self), "energy_source": source and source.value}


def measure(argv: Sequence[str], devices: Sequence[Device]) -> Measurement:
    """Run a command to its end and meter the devices meanwhile.

    Args:
        argv: The command and its arguments. Its streams, its terminal and its signals are its own;
            its environment is that of this process and ``ZEUSRUN_MEASURE``.
        devices: What is metered; the caller closes them.

    Raises:
        NotStartedError: If the command could not be started.
    """
    mark = uuid.uuid4().hex  # by which what it leaves behind (a daemon) is known as its own
    monitor = EnergyMonitor(devices, None, foreign=ForeignProcesses(measure=mark))
    try:
        ended = run_foreground(argv, {**os.environ, MEASURE_VARIABLE: mark}, monitor)
    except OSError as error:
        raise _not_started(argv[0], error) from error
    return _build_measurement(ended, devices, monitor)


def _build_measurement(
    ended: ForegroundExit, devices: Sequence[Device], monitor: EnergyMonitor
) -> Measurement:
    since_s, until_s = ended.started_t, ended.ended_t
    time_s = until_s - since_s
    unseen = time_s < COUNTER_STEP_S and any(device.is_gpu for device in devices)

    def known(energy_j: float | None) -> float | None:
        return None if unseen or not energy_j else energy_j  # nothing that runs takes nothing

    accounts = monitor.accounts_j(since_s, until_s)
    by_uuid = monitor.device_energies_j(since_s, until_s)
    energy_j = known(monitor.energy_between(since_s, until_s))
    warnings = list(monitor.warnings)
    doubt = _doubt(time_s, energy_j, devices)
    if doubt:
        warnings.append(doubt)
    return Measurement(
        exit_code=ended.code,
        time_s=time_s,
        energy_j=energy_j,
        energy_source=None if energy_j is None else monitor.energy_source,
        energy_counter_j=known(accounts.counter_j),
        energy_integrated_j=known(accounts.integrated_j),
        mean_power_w=None if energy_j is None else energy_j / time_s,
        max_power_w=monitor.max_power_w,
        shared=monitor.shared,
        devices=tuple(
            DeviceEnergy(device.uuid, device.model, known(by_uuid.get(device.uuid)))
            for device in devices
        ),
        warnings=tuple(warnings),
    )


def _doubt(time_s: float, energy_j: float | None, devices: Sequence[Device]) -> str | None:
    """Return a sentence on how well the energy of a short command is known."""
    short = f"the command ended after {time_s:.2g} s"
    if not any(device.is_gpu for device in devices):
        unknown = energy_j is None and time_s < COUNTER_STEP_S
        return f"{short}: too short to tell its energy" if unknown else None
    if time_s < COUNTER_STEP_S:
        return f"{short}; a GPU counts energy every {COUNTER_STEP_S:g} s, so it is unknown"
    if time_s < _FEW_STEPS * COUNTER_STEP_S and energy_j is not None:
        about = math.ceil(100 * COUNTER_STEP_S / time_s)
        return (
            f"{short}; a GPU counts energy every {COUNTER_STEP_S:g} s, so it is only roughly "
            f"known, to about {about} %"
        )
    return None


def _not_started(name: str, error: OSError) -> NotStartedError:
    found = which(name) or name
    absent, barred = ExitCode.NOT_FOUND, ExitCode.NOT_EXECUTABLE
    if isinstance(error, FileNotFoundError) and not Path(found).is_file():
        advice = "" if "/" in name else "; is it installed, and its folder in PATH?"
        if " " in name:
            advice = "; no shell is involved: leave out the quotes, or use sh -c"
        return NotStartedError(f"{name}: command not found{advice}", absent)
    if isinstance(error, FileNotFoundError):
        return NotStartedError(f"{name}: the interpreter in its first line is missing", absent)
    return NotStartedError(f"{name}: cannot be executed: {error.strerror}", barred)

"""Runs any command under the energy monitor."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.errors import ExitCode, NotStartedError
from zeusrun.launcher.processes.programs import run_foreground

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.device import Device
    from zeusrun.trial import EnergySource

# NVML's counter moves about this often (DESIGN, "Facts to build on").
COUNTER_STEP_S = 0.1
_FEW_STEPS = 10


@dataclass(frozen=True)
class DeviceEnergy:
    """The energy of one device in joules; ``None`` if unknown."""

    uuid: str
    model: str
    energy_j: float | None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Time and energy of a command, from just before it started to just after it ended.

    ``None`` is unknown. ``energy_counter_j`` and ``energy_integrated_j`` are two accounts of the
    same energy: see ``Meter.accounts_j``. ``exit_code`` is 128 + n if signal n ended the command.
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
    """Run a command to its end and measure its devices meanwhile; the caller closes them.

    It has this process's terminal, streams, signals and environment. ``NotStartedError`` if it
    could not be started.
    """
    monitor = EnergyMonitor(devices, None, foreign=ForeignProcesses())
    try:
        ended = run_foreground(argv, dict(os.environ), monitor)
    except OSError as error:
        raise _not_started(argv[0], error) from error
    span = (ended.started_t, ended.ended_t)
    time_s = ended.ended_t - ended.started_t
    has_gpu = any(device.is_gpu for device in devices)
    unseen = has_gpu and time_s < COUNTER_STEP_S

    def known(energy_j: float | None) -> float | None:
        return None if unseen or not energy_j else energy_j  # 0 J means that no step was seen

    accounts, by_uuid = monitor.accounts_j(*span), monitor.device_energies_j(*span)
    energy_j = known(monitor.energy_between(*span))
    doubt = _describe_doubt(time_s, energy_j, has_gpu=has_gpu)
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
        warnings=(*monitor.warnings, *([] if doubt is None else [doubt])),
    )


def _describe_doubt(time_s: float, energy_j: float | None, *, has_gpu: bool) -> str | None:
    """Return a warning if a command was too short to know its energy well."""
    short = f"the command ended after {time_s:.2g} s"
    counts = f"{short}; a GPU counts energy every {COUNTER_STEP_S:g} s"
    if time_s < COUNTER_STEP_S and has_gpu:
        return f"{counts}, so its energy is unknown"
    if time_s < COUNTER_STEP_S and energy_j is None:
        return f"{short}: too short to measure its energy"
    if time_s < _FEW_STEPS * COUNTER_STEP_S and has_gpu and energy_j is not None:
        percent = math.ceil(100 * COUNTER_STEP_S / time_s)
        return f"{counts}, so its energy is only roughly known, to about {percent} %"
    return None


def _not_started(name: str, error: OSError) -> NotStartedError:
    missing = isinstance(error, FileNotFoundError)
    if missing and not Path(which(name) or name).is_file():
        advice = "" if "/" in name else "; is it installed, and its folder in PATH?"
        if " " in name:
            advice = "; there is no shell: leave out the quotes, or use sh -c"
        return NotStartedError(f"{name}: command not found{advice}", ExitCode.NOT_FOUND)
    if missing:
        text = f"{name}: the interpreter in its first line does not exist"
        return NotStartedError(text, ExitCode.NOT_FOUND)
    text = f"{name}: cannot be executed: {error.strerror}"
    return NotStartedError(text, ExitCode.NOT_EXECUTABLE)

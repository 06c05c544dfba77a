"""Runs as rows of CodeCarbon's ``emissions.csv``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.clock import local_time
from zeusrun.tariff import J_PER_KWH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.trial import Trial

# The order of codecarbon 3.3.0 to 3.3.2: EmissionsData in output_methods/emissions_data.py.
# fmt: off
COLUMNS = (
    "timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions",
    "emissions_rate", "cpu_power", "gpu_power", "ram_power", "cpu_energy", "gpu_energy",
    "ram_energy", "energy_consumed", "water_consumed", "country_name", "country_iso_code",
    "region", "cloud_provider", "cloud_region", "os", "python_version", "codecarbon_version",
    "cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude", "latitude", "ram_total_size",
    "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent",
    "ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue",
)
# fmt: on


def emission_rows(trials: Iterable[Trial]) -> list[dict[str, object]]:
    """Return a row for each run that has ended; ``None`` is unknown.

    Durations are in seconds, energies in kilowatt-hours, powers in watts, emissions in kilograms of
    CO2 equivalent. As in CodeCarbon, energies and powers include the PUE, if it is known.
    """
    return [_row(trial) for trial in trials if trial.status.final]


def _row(trial: Trial) -> dict[str, object]:
    factor = 1.0 if trial.pue is None else trial.pue
    kwh = None if trial.energy_j is None else trial.energy_j * factor / J_PER_KWH
    emissions = None if trial.carbon_g is None else trial.carbon_g / 1000
    device = "gpu" if trial.gpu_count else "cpu"
    power_w = _rate(trial.energy_j, trial.time_s)
    model, ended = trial.gpu_model, local_time(trial.finished_at or "")
    known = {
        "timestamp": ended and ended.strftime("%Y-%m-%dT%H:%M:%S"),  # CodeCarbon writes no offset
        "project_name": trial.job,
        "run_id": trial.trial,
        "duration": trial.time_s,
        "emissions": emissions,
        "emissions_rate": _rate(emissions, trial.time_s),
        f"{device}_power": None if power_w is None else power_w * factor,
        f"{device}_energy": kwh,
        "energy_consumed": kwh,
        "gpu_count": trial.gpu_count,
        "gpu_model": model and f"{trial.gpu_count} x {model}",
        "pue": trial.pue,
    }
    return {name: known.get(name) for name in COLUMNS}


def _rate(amount: float | None, time_s: float | None) -> float | None:
    return amount / time_s if amount is not None and time_s else None

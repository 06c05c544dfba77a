"""Sensors of an NVIDIA GPU: utilisation, temperature, clocks and throttle reasons."""

from __future__ import annotations

from typing import Any

from zeusrun.energy.device import Health
from zeusrun.gpu.nvml_answers import first_answer

# NVML API Reference, "Clocks Event Reasons", formerly "Clocks Throttle Reasons".
_REASONS = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)
_KNOWN = sum(bit for bit, _ in _REASONS)


def read_health(nvml: Any, handle: Any) -> Health:  # noqa: ANN401 - untyped module
    """Read the sensors except power. One that fails is ``None``, so that energy stays known.

    Args:
        nvml: The module ``pynvml``.
        handle: NVML's handle of the GPU.
    """
    utilization = _ask(nvml, ("nvmlDeviceGetUtilizationRates",), handle)
    temperature_c = _ask(
        nvml,
        ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"),
        handle,
        nvml.NVML_TEMPERATURE_GPU,
    )
    reasons = _ask(
        nvml,
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        handle,
    )
    return Health(
        utilization=None if utilization is None else utilization.gpu / 100,
        temperature_c=temperature_c,
        sm_clock_mhz=_ask(nvml, ("nvmlDeviceGetClockInfo",), handle, nvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(nvml, ("nvmlDeviceGetClockInfo",), handle, nvml.NVML_CLOCK_MEM),
        throttle_reasons=None if reasons is None else name_reasons(reasons),
    )


def name_reasons(bits: int) -> tuple[str, ...]:
    """Return NVML's names of the reasons in a bit mask, ``unknown_0x…`` for what is newer."""
    names = tuple(name for bit, name in _REASONS if bits & bit)
    rest = bits & ~_KNOWN
    return (*names, f"unknown_{rest:#x}") if rest else names


def _ask(nvml: Any, names: tuple[str, ...], *arguments: Any) -> Any:  # noqa: ANN401 - untyped module
    try:
        return first_answer(nvml, names, *arguments)
    except nvml.NVMLError:
        return None

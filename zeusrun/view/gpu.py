"""Common words for what NVML says."""

from __future__ import annotations

# NVML's names in common words. An idle GPU has low clocks too, but is not throttled.
_THROTTLE_WORDS = {
    "applications_clocks_setting": "clock set",
    "display_clock_setting": "display",
    "gpu_idle": "idle",
    "hw_power_brake_slowdown": "power",
    "hw_slowdown": "hardware",
    "hw_thermal_slowdown": "heat",
    "sw_power_cap": "power",
    "sw_thermal_slowdown": "heat",
    "sync_boost": "sync",
}


def throttle_word(name: str) -> str:
    """Return NVML's name of a reason for low clocks in a common word."""
    return _THROTTLE_WORDS.get(name, name.replace("_", " "))

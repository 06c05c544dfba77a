"""Energy between two moments, from samples of a cumulative energy. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# How far outside the samples energy is still extrapolated. At 10 Hz a window ends at most one
# period after the last sample; the rest is patience with a slow driver call.
REACH_S = 1.0
# Span of a slope: NVML's counter moves about every 100 ms, so one 100 ms interval may hold none
# or two of its steps, and ten hold nine to eleven.
SLOPE_S = 1.0


def trapezoid_j(start_s: float, start_w: float, end_s: float, end_w: float) -> float:
    """Integrate power that changes evenly between two samples into joules."""
    return 0.5 * (start_w + end_w) * (end_s - start_s)


def energy_between(
    times_s: Sequence[float],
    energies_j: Sequence[float],
    since_s: float,
    until_s: float,
    *,
    looked_s: float | None = None,
) -> float | None:
    """Return the energy used between two moments.

    Between samples energy is interpolated; before the first and after the last it continues as in
    the nearest second of samples.

    Args:
        times_s: Monotonic seconds, shape ``(n,)``, strictly increasing.
        energies_j: Cumulative joules at those times, shape ``(n,)``; the origin does not matter.
        since_s: Start of the window, on the same clock.
        until_s: End of the window.
        looked_s: The latest look, if that was no sample because a counter had not moved yet;
            ``None`` for the last sample.

    Returns:
        Joules, or ``None`` if there are fewer than two samples or the window reaches more than
        ``REACH_S`` outside what was looked at.

    Raises:
        ValueError: If the window ends before it starts.
    """
    if until_s < since_s:
        raise ValueError(f"the window ends at {until_s} s, before it starts at {since_s} s")
    if len(times_s) < 2:
        return None
    last_s = times_s[-1] if looked_s is None else looked_s
    if since_s < times_s[0] - REACH_S or until_s > last_s + REACH_S:
        return None
    start_j = _energy_at(times_s, energies_j, since_s)
    return _energy_at(times_s, energies_j, until_s) - start_j


def recent_power_w(times_s: Sequence[float], energies_j: Sequence[float]) -> float | None:
    """Return the mean power over about the last second of samples.

    Returns:
        Watts, or ``None`` if there are fewer than two samples.
    """
    if len(times_s) < 2:
        return None
    first = min(bisect_left(times_s, times_s[-1] - SLOPE_S), len(times_s) - 2)
    return _slope(times_s, energies_j, first, len(times_s) - 1)


def _energy_at(times_s: Sequence[float], energies_j: Sequence[float], time_s: float) -> float:
    last = len(times_s) - 1
    if time_s < times_s[0]:
        end = max(bisect_right(times_s, times_s[0] + SLOPE_S) - 1, 1)
        return energies_j[0] - _slope(times_s, energies_j, 0, end) * (times_s[0] - time_s)
    if time_s > times_s[last]:
        first = min(bisect_left(times_s, times_s[last] - SLOPE_S), last - 1)
        return energies_j[last] + _slope(times_s, energies_j, first, last) * (
            time_s - times_s[last]
        )
    right = max(bisect_left(times_s, time_s), 1)
    left = right - 1
    return energies_j[left] + _slope(times_s, energies_j, left, right) * (time_s - times_s[left])


def _slope(times_s: Sequence[float], energies_j: Sequence[float], left: int, right: int) -> float:
    return (energies_j[right] - energies_j[left]) / (times_s[right] - times_s[left])

"""What a job is set to, to trade speed for power."""

from __future__ import annotations

from typing import NamedTuple

POWER = "power"


class Lever(NamedTuple):
    """A setting that changes speed and not learning: ``POWER``, the limit of every GPU in watts."""

    kind: str
    value: float


def power_lever(limit_w: float | None) -> Lever | None:
    """Return the lever of a power limit; ``None`` for none."""
    return None if limit_w is None else Lever(POWER, limit_w)


def limit_of(lever: Lever | None) -> float | None:
    """Return the power limit that a lever means, in watts; ``None`` for none."""
    return None if lever is None else lever.value

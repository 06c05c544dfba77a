"""Texts for the statistics of gradients, and for the batch sizes of a run that adapts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.noise_curve import NoisePoint
    from zeusrun.trial import SizeChange

_WAYS = {
    "examples": "of the normalisation layers",
    "micro_batches": "from micro-batches",
}


def path_text(changes: Sequence[SizeChange], most: int = 0) -> str | None:
    """Return the batch sizes of a run, such as ``64 → 128 at epoch 3``; ``None`` if unknown.

    ``most``: the number of the last changes to show; 0 for all.
    """
    if not changes:
        return None
    first, *later = changes
    shown = later[-most:] if most else later
    parts = [str(first.batch_size)]
    if len(shown) < len(later):
        parts.append("…")
    parts += [f"{change.batch_size} at epoch {change.epoch}" for change in shown]
    return " → ".join(parts)


def noise_text(point: NoisePoint) -> str:
    """Return a noise scale in samples with its range: ``83 (60 to 110)``, or ``at least 40``."""
    if point.value is None or point.high is None:
        return f"at least {units.three_digits(point.low)}"
    low, value, high = map(units.three_digits, (point.low, point.value, point.high))
    return f"{value} ({low} to {high})"


def gradients_text(
    curve: Sequence[NoisePoint], how: str | None, *, whole: bool = False
) -> str | None:
    """Return the newest noise scale; ``None`` if there is none.

    ``how``: how they were measured. ``whole``: show how the noise scale went.
    """
    if not curve:
        return None
    drawn = [point.known for point in curve] if whole and len(curve) > 1 else []
    bars = f"{units.sparkline(drawn, 20)} " if drawn else ""
    way = f" · {_WAYS[how]}" if how in _WAYS else ""
    return f"noise scale {bars}{noise_text(curve[-1])} samples{way}"

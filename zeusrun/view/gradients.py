"""Texts for the statistics of gradients, and for the batch sizes of a run that adapts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.trial import SizeChange

_STATISTICS = {
    "noise_scale": "noise scale",
    "preconditioned_noise_scale": "preconditioned noise scale",
    "gradient_variance": "variance",
}
WAYS = {
    "examples": "from normalisation layers",
    "micro_batches": "from micro-batches",
    "consecutive": "from consecutive steps: biased",
}
"""How the gradients of one rank were measured, by the name in the trial."""


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


def gradients_text(values: Mapping[str, float | None], how: str | None) -> str | None:
    """Return the statistics of gradients with their names; ``None`` if there are none.

    ``how``: how they were measured; shown for one rank.
    """
    texts = [
        f"{name} {units.number(values[key], '.3g')}"
        for key, name in _STATISTICS.items()
        if values.get(key) is not None
    ]
    if not texts:
        return None
    if how in WAYS:
        texts.append(WAYS[how])
    return " · ".join(texts)

"""What a training measured of its gradients, and how its batch size changed, in words."""

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
_HOW_NOTES: dict[str | None, tuple[str]] = {
    "examples": ("from normalisation layers",),
    "micro_batches": ("from micro-batches",),
    "consecutive": ("from consecutive steps: biased",),
}


def path_text(changes: Sequence[SizeChange], most: int = 0) -> str | None:
    """Return the batch sizes of a run that adapted it, such as ``64 → 128 at epoch 3``.

    ``most``: how many of the last changes to name; 0 for all.
    """
    if not changes:
        return None
    later = changes[1:]
    cut = max(0, len(later) - most) if most else 0
    parts = [str(changes[0].batch_size), *(["…"] if cut else [])]
    parts += [f"{change.batch_size} at epoch {change.epoch}" for change in later[cut:]]
    return " → ".join(parts)


def gradients_text(values: Mapping[str, float | None], how: str | None) -> str | None:
    """Return the statistics of gradients by their names; ``None`` if there are none.

    ``how``: how they were measured; shown if not among ranks.
    """
    found = [
        (name, values[key]) for key, name in _STATISTICS.items() if values.get(key) is not None
    ]
    texts = [f"{name} {units.number(value, '.3g')}" for name, value in found]
    return " · ".join([*texts, *_HOW_NOTES.get(how, ())]) if texts else None

"""Statistics of gradients as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def gradients_text(values: Mapping[str, float | None], how: str | None) -> str | None:
    """Return the statistics of gradients by their names; ``None`` if there are none.

    ``how``: how they were measured; shown if not among ranks.
    """
    found = [
        (name, values[key]) for key, name in _STATISTICS.items() if values.get(key) is not None
    ]
    texts = [f"{name} {units.number(value, '.3g')}" for name, value in found]
    return " · ".join([*texts, *_HOW_NOTES.get(how, ())]) if texts else None

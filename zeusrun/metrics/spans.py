"""How much a training has done up to its target, and in all: it may go on after it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress


def count_spans(progress: Progress) -> dict[str, Any]:
    """Return the fields of an ``Outcome`` that say so, without energy; ``None`` if unknown."""
    reached, active_t, begun_t = progress.reached, progress.active_t, progress.training_t
    known, time_s = bool(progress.curve) and not progress.unclear, progress.time_s
    whole: dict[str, Any] = {"steps": progress.steps, "samples": progress.samples}
    whole["epochs"] = progress.epochs if known else None
    span = whole.copy()
    if reached is not None and active_t is not None and begun_t is not None:
        time_s = active_t - begun_t
        span["epochs"] = reached.epoch if known else None
        later = progress.stepping_s is None or progress.stepping_s[1] > begun_t + reached.time_s
        if later and progress.steps is not None:
            span["steps"] = progress.at_target[0]
        span["samples"] = progress.at_target[1]
    data = progress.observed[min(progress.observed)].data if progress.observed else None
    for each in (span, whole):
        each["progress"] = each["samples"] / data if each["samples"] is not None and data else None
    whole["time_s"] = time_s
    return {**span, **{f"whole_{name}": value for name, value in whole.items()}}

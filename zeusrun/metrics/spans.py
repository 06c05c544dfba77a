"""How much a training has done up to its target, and in all: it may go on after it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress


def count_spans(progress: Progress) -> dict[str, Any]:
    """Return the fields of an ``Outcome`` that say so, without energy; ``None`` if unknown."""
    reached, active_t, begun_t = progress.reached, progress.active_t, progress.training_t
    time_s, steps, samples = progress.time_s, progress.steps, progress.samples
    known = bool(progress.curve) and not progress.unclear
    epochs = whole = progress.epochs if known else None
    if reached is not None and active_t is not None and begun_t is not None:
        time_s = active_t - begun_t
        epochs = reached.epoch if known else None
        if progress.stepping_s is None or progress.stepping_s[1] > begun_t + reached.time_s:
            steps = progress.at_target[0]
        samples = progress.at_target[1]
    data = progress.observed[min(progress.observed)].data if progress.observed else None
    counts = {
        "epochs": epochs,
        "steps": steps,
        "samples": samples,
        "whole_time_s": time_s,
        "whole_epochs": whole,
        "whole_steps": progress.steps,
        "whole_samples": progress.samples,
    }
    for span in ("", "whole_"):
        consumed = counts[f"{span}samples"]
        counts[f"{span}progress"] = consumed / data if consumed is not None and data else None
    return counts

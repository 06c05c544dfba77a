"""Proposes an objective from the metrics that a short run has produced."""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.seen import names_an_evaluation, precedes
from zeusrun.sidecar.events import REPORT
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.metrics.seen import Seen

# What libraries report beside metrics.
NO_METRIC = re.compile(
    r"(runtime|per_sec|_time|^time|samples|steps?$|^epoch|learning_rate|^lr\b|lr-|grad_norm|flos)"
)
QUALITY = {"acc", "accuracy", "top", "f", "auc", "auroc", "map", "bleu", "rouge", "iou", "score"}
_TWO_DIGITS = Context(prec=2)


class Proposal(NamedTuple):
    """A metric, who reported it, and a target that is a little better than its last value."""

    metric: str
    source: str
    mode: str
    target: float
    last: float


def propose(seen: Mapping[tuple[str, str], Seen], likely: str = "") -> Proposal | None:
    """Propose one of the metrics seen, by name and source; ``None`` if there is none.

    A metric of an evaluation precedes one of training, an accuracy precedes a loss; of those that
    are left, the ``likely`` name precedes others.
    """

    def rank(key: tuple[str, str]) -> tuple[bool, ...]:
        words = set(re.findall(r"[a-z]+", key[0].lower()))
        evaluates = names_an_evaluation({key[0]: 0.0})
        good = key[1] == REPORT or bool(words & QUALITY) or evaluates
        return (
            "train" in words,
            not good,
            likely_mode(key[0]) == "min",
            seen[key].parts > 1,  # a mean of AUCs is not quite the AUC
            not evaluates,
            key[0] != likely,
        )

    usable = [
        (name, source)
        for (name, source), values in seen.items()
        if math.isfinite(values.last)
        and not values.each_step
        and not NO_METRIC.search(name.lower())
    ]
    if not usable:
        return None
    metric, source = min(usable, key=rank)
    for name, other in usable:
        if name == metric and precedes(other, source):
            source = other
    mode, last = likely_mode(metric), seen[metric, source].last
    return Proposal(metric, source, mode, a_little_better(last, mode), last)


def a_little_better(value: float, mode: str) -> float:
    """Return the next better number of two digits, but at most 1 or 100, the best accuracies."""
    exact = Decimal(repr(value))
    best = next((Decimal(most) for most in (1, 100) if 0 < exact <= most), None)
    if exact == 0 or (mode == "max" and exact == best):
        return value
    if mode == "min":
        return float(exact.next_minus(_TWO_DIGITS))
    if best is not None and best - exact < best / 10:  # two digits of what is missing
        return float(best - (best - exact).next_minus(_TWO_DIGITS))
    return float(exact.next_plus(_TWO_DIGITS))

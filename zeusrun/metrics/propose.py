"""Proposes an objective from the metrics that a short run has produced."""

from __future__ import annotations

import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.seen import EVALUATIONS, names_an_evaluation, precedes
from zeusrun.sidecar.events import REPORT
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.metrics.seen import SeenMetrics


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
    best: float | None = None  # where the last value is far worse; the target is near it


def propose(seen: SeenMetrics, likely: str = "") -> Proposal | None:
    """Propose one of the metrics seen, by name and source; ``None`` if there is none.

    A metric of an evaluation precedes one of training, an accuracy precedes a loss, unless it is
    still 0; of those that are left, the ``likely`` name precedes others.
    """

    def rank(key: tuple[str, str]) -> tuple[bool, ...]:
        words = set(re.findall(r"[a-z]+", key[0].lower()))
        evaluates = names_an_evaluation({key[0]: 0.0})
        good = key[1] == REPORT or bool(words & QUALITY) or evaluates
        return (
            "train" in words,
            not good,
            bool(words & QUALITY) and seen[key].last == 0,
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
    mode, values = likely_mode(metric), seen[metric, source]
    last, best = values.last, values.high if mode == "max" else values.low
    far = best > max(0, 2 * last) if mode == "max" else last > 2 * best > 0
    if not far or math.isinf(best):
        return Proposal(metric, source, mode, a_little_better(last, mode), last)
    return Proposal(metric, source, mode, a_little_better(best, mode), last, best)


def a_little_worse(value: float, mode: str) -> float:
    """Return a number of two digits that is reached by a value, or the value itself."""
    exact = Decimal(repr(value))
    if mode == "min":
        return float(Context(prec=2, rounding=ROUND_CEILING).plus(exact))
    best = next((Decimal(top) for top in (1, 100) if 0 < exact <= top), None)
    if best is not None and best - exact < best / 10:  # two digits of what is missing
        return float(best - Context(prec=2, rounding=ROUND_CEILING).plus(best - exact))
    return float(Context(prec=2, rounding=ROUND_FLOOR).plus(exact))


def a_little_better(value: float, mode: str) -> float:
    """Return the next better number of two digits, but at most 1 or 100, the best accuracies.

    What is better than an accuracy of 0 is 0.01, be it in percent or not.
    """
    exact = Decimal(repr(value))
    if exact == 0 and mode == "max":
        return 0.01
    best = next((Decimal(top) for top in (1, 100) if 0 < exact <= top), None)
    if exact == 0 or (mode == "max" and exact == best):
        return value
    if mode == "min":
        return float(exact.next_minus(_TWO_DIGITS))
    if best is not None and best - exact < best / 10:  # two digits of what is missing
        return float(best - (best - exact).next_minus(_TWO_DIGITS))
    return float(exact.next_plus(_TWO_DIGITS))


def describe_choice(proposal: Proposal, seen: SeenMetrics) -> Iterator[str]:
    """Yield sentences on a proposed metric: what it is, and how it is logged."""
    name, source = proposal.metric, proposal.source
    values = seen.get((name, source))
    better = "lower" if proposal.mode == "min" else "higher"
    what = "of an evaluation, " if names_an_evaluation({name: 0.0}) else ""
    how = "as the script prints it"
    if values is not None and source != "stdout":
        by = "the script" if source == REPORT else source
        how = f"reported by {by}, in {values.times} record{'s' * (values.times != 1)}"
        if values.parts > 1:
            how += (
                f"; the script logs {values.parts} values in an evaluation, and their mean counts. "
                "For AUC or F1 that is only near"
            )
    yield f"Chosen: {name} ({what}{better} is better), {how}."
    others = sorted(other for other, by in seen if seen[other, by].each_step)
    if others:
        yield f"No results, because they are logged in every step: {', '.join(others[:5])}."


def is_alike(logged: str, printed: str) -> bool:
    """Whether a printed metric is, by its name, what is logged under another one."""
    own, other = (set(re.findall(r"[a-z]+", each.lower())) for each in (logged, printed))
    return bool(own - EVALUATIONS) and own - EVALUATIONS <= other and not other & {"train"}

"""What a report says of the power of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import size_label
from zeusrun.view.gpu import throttle_word

if TYPE_CHECKING:
    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class PowerFacts:
    """The power of one run. ``None``: unknown."""

    trial: str
    size: str  # label of its batch size
    mean_w: float | None  # while it trained
    highest_w: float
    limit_w: float | None  # the last one, over all devices
    throttled: tuple[tuple[str, float], ...]  # why, in words, and in what share of the readings
    trace: PowerTrace


def build_power(trial: Trial, trace: PowerTrace) -> PowerFacts:
    """Return the facts of a run with a trace."""
    known = trial.energy_j is not None and trial.time_s
    shares: dict[str, float] = {}
    for name, share in trace.throttled.items():
        word = throttle_word(name)
        shares[word] = max(share, shares.get(word, 0.0))
    return PowerFacts(
        trial=trial.trial,
        size=size_label(trial),
        mean_w=(trial.energy_j or 0.0) / (trial.time_s or 1.0) if known else None,
        highest_w=max(span.high_w for span in trace.spans),
        limit_w=trace.spans[-1].limit_w,
        throttled=tuple(sorted(shares.items())),
        trace=trace,
    )

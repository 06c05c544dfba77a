"""What a report says of the power of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.launcher.supervision.hang import STANDS_STILL
from zeusrun.view.gpu import THROTTLE_WORDS
from zeusrun.view.report.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class PowerFacts:
    """The power of one run. ``None``: unknown."""

    trial: str
    label: str  # of its batch size
    size: int  # its index
    mean_w: float | None  # while it trained
    highest_w: float
    limit_w: float | None  # the last one, over all devices
    throttled: tuple[tuple[str, float], ...]  # why, in words, and in what share of the readings
    trace: PowerTrace


def build_power(
    found: Sequence[tuple[Trial, PowerTrace]], trials: Sequence[Trial]
) -> list[PowerFacts]:
    """Return the facts of the runs with a trace; ``trials`` are all runs of the job."""
    sizes = sorted({size_of(trial) for trial in trials}, key=lambda size: (size[0], size[1] or ""))
    return [_facts(trial, trace, sizes.index(size_of(trial))) for trial, trace in found]


def find_stalls(trials: Sequence[Trial]) -> list[tuple[str, str]]:
    """Return the runs that stalled, and what was seen of it."""
    return [
        (trial.trial, text.removeprefix(STANDS_STILL))
        for trial in trials
        for text in trial.warnings
        if text.startswith(STANDS_STILL)
    ]


def _facts(trial: Trial, trace: PowerTrace, size: int) -> PowerFacts:
    known = trial.energy_j is not None and trial.time_s
    shares: dict[str, float] = {}
    for name, share in trace.throttled.items():
        word = THROTTLE_WORDS.get(name, name.replace("_", " "))
        shares[word] = max(share, shares.get(word, 0.0))
    return PowerFacts(
        trial=trial.trial,
        label=size_of(trial).label,
        size=size,
        mean_w=(trial.energy_j or 0.0) / (trial.time_s or 1.0) if known else None,
        highest_w=max(span.high_w for span in trace.spans),
        limit_w=trace.spans[-1].limit_w,
        throttled=tuple(sorted(shares.items())),
        trace=trace,
    )

"""When ``submit`` and ``simulate`` stop: a hopeless trial, or a recurrence with nothing to try."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import FAILED, OUTDONE, better
from zeusrun.cost import energy_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Observation, Pace, Running
    from zeusrun.trial import Bound, Decision, Trial


def hopeless(bound: Bound | None, mode: str, running: Running) -> str | None:
    """Return why a trial cannot reach the target within its bound; ``None``: it continues.

    Call it at the end of an epoch. A trial that has come a share of the way may have spent that
    share of its bound; see ``share_done``.
    """
    if bound is None or (bound.epochs is None and running.cost_j is None):
        return None
    epochs = running.epochs
    if bound.epochs is None:
        spent, most = running.cost_j or 0.0, bound.cost_j
        what, limit = "its cost", energy_text(most)
        used = f"for {energy_text(spent)} of the {limit} that"
    else:
        spent, most = float(epochs), bound.epochs
        usual = f"{energy_text(bound.cost_j)} at its usual speed"
        what, limit = "it", f"{amount_text(most, running.unit)} ({usual})"
        used = f"and {limit} are what"
    if spent + spent / max(1, epochs) > most:
        left = f"{what} passed" if spent > most else "one more epoch would pass"
        return f"{left} the bound of {limit}"
    share = share_done(bound.paces, mode, running.best_value) if bound.paces else 1.0
    if spent <= share * most:
        return None
    return (
        f"after {amount_text(epochs, running.unit)} it has come {share:.0%} of the way at most, "
        f"{used} it may cost"
    )


def amount_text(epochs: float, unit: int | None) -> str:
    """Return whole epochs, or samples with three digits where ``unit`` of them are an epoch."""
    if unit is not None:
        return f"{float(f'{epochs * unit:.3g}'):,.0f} samples"
    if epochs < 1:
        return "less than 1 epoch"
    return "1 epoch" if epochs < 2 else f"{math.floor(epochs)} epochs"


def share_done(paces: Sequence[Pace], mode: str, best_value: float | None) -> float:
    """Return which share of the way to the target a trial has come at most, up to 1.

    It is the share of their epochs after which earlier runs were better, plus one epoch.
    """
    shares = 0.0
    for pace in paces:
        ahead = (n for n, value in pace if best_value is None or better(mode, value, best_value))
        shares += min(1.0, (next(ahead, pace[-1][0]) + 1) / pace[-1][0])
    return shares / len(paces)


def count_attempts_left(made: Sequence[Trial], attempts: int) -> int:
    """Return how many attempts a recurrence may still make, at least 1.

    A speed check is no attempt, and one that may go on has not ended.
    """
    open_ = {TrialStatus.CANCELLED, TrialStatus.PREEMPTED, TrialStatus.DISPATCHED}
    return max(1, attempts - sum(trial.status not in open_ for trial in made))


def is_repeat(decision: Decision, made: Sequence[Trial]) -> bool:
    """Whether the batch size has failed in the recurrence, or one as small ran out of memory.

    The recurrence then ends: with the same data, batch size and seed most scripts miss the target
    again. A trial that was only stopped for its cost may run again without a bound.
    """
    arm = decision.global_batch_size
    final = OUTDONE if decision.bound else OUTDONE - {TrialStatus.STOPPED}
    others = final - {TrialStatus.OOM}
    failed = {trial.global_batch_size for trial in made if trial.status in others}
    too_large = [trial.last_batch_size for trial in made if trial.status is TrialStatus.OOM]
    return arm in failed or arm >= min(too_large, default=arm + 1)


def is_target_in_doubt(made: Sequence[Trial], runs: Sequence[Observation]) -> bool:
    """Whether two arms missed the target and no run ever reached it: the target may be wrong."""
    missed = {trial.global_batch_size for trial in made if trial.status in FAILED}
    return len(missed) > 1 and not any(run.status is TrialStatus.REACHED for run in runs)

"""What has changed from night to night: costs beyond their spread, runs that count no more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.cost_baseline import NEWEST, Usual, conditions, has_cost, usual_cost
from zeusrun.bandit.auto.drift import first_valid
from zeusrun.bandit.observation import Run
from zeusrun.cost import energy_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial

_DECIDED = {TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED}


@dataclass(frozen=True)
class CostMove:
    """A batch size that costs another amount than it did.

    Attributes:
        global_batch_size: Which.
        since: The first trial that did.
        runs: How many have since; 1 may be an accident.
        cost_j: Geometric mean of those.
        usual: What it cost before.
    """

    global_batch_size: int
    since: str
    runs: int
    cost_j: float
    usual: Usual


def find_cost_moves(trials: Sequence[Trial]) -> list[CostMove]:
    """Return the last move of each batch size under the conditions of its newest run.

    Two runs in a row beyond the spread of those before, on the same side, are a move, as for
    epochs (``drift.first_valid``); so may be the newest one alone.

    Args:
        trials: Of one job, oldest first.
    """
    newest = {trial.global_batch_size: trial for trial in trials if has_cost(trial)}
    found = []
    for arm in sorted(newest):
        same = [
            trial
            for trial in trials
            if has_cost(trial) and conditions(trial) == conditions(newest[arm])
        ]
        move = _last_move(same)
        if move is not None:
            found.append(move)
    return found


def _last_move(trials: Sequence[Trial]) -> CostMove | None:
    """Return the last move of runs under the same conditions."""
    level: list[Trial] = []  # runs that cost the same
    suspect: tuple[Trial, int] | None = None
    move: tuple[int, Usual] | None = None
    for index, trial in enumerate(trials):
        usual = usual_cost(level[-NEWEST:], trial)
        side = 0 if usual is None else _side(usual, trial)
        if usual is not None and side and suspect is not None and suspect[1] == side:
            move, level, suspect = (index - 1, usual), [suspect[0], trial], None
        elif side:
            level += [] if suspect is None else [suspect[0]]
            suspect = (trial, side)
        else:
            level += [trial] if suspect is None else [suspect[0], trial]
            suspect = None
    if suspect is not None:
        alone = usual_cost(level, suspect[0])
        move = move if alone is None else (len(trials) - 1, alone)
    if move is None:
        return None
    since = trials[move[0] :]
    logs = [math.log(trial.cost_j or 1.0) for trial in since]
    cost_j = math.exp(sum(logs) / len(logs))
    return CostMove(trials[-1].global_batch_size, since[0].trial, len(since), cost_j, move[1])


def _side(usual: Usual, trial: Trial) -> int:
    cost_j = trial.cost_j or 0.0
    return 1 if cost_j > usual.high_j else -1 if cost_j < usual.low_j else 0


def tell_moves(trials: Sequence[Trial]) -> list[str]:
    """Say in sentences what has changed, and what the policy makes of it.

    Args:
        trials: Of one job, oldest first.
    """
    sentences = [_sentence(move) for move in find_cost_moves(trials)]
    outdated, since = _find_outdated(trials)
    if outdated:
        runs = "1 earlier run says" if outdated == 1 else f"{outdated} earlier runs say"
        sentences.append(
            f"the job has moved since recurrence {since}: {runs} nothing of epochs any more, and "
            "the search is as wide again as at the start"
        )
    return sentences


def _sentence(move: CostMove) -> str:
    times = move.cost_j / move.usual.cost_j
    before = f"{energy_text(move.usual.cost_j)} in {move.usual.runs} runs"
    if move.runs == 1:
        return (
            f"{move.since} cost {energy_text(move.cost_j)}, {times:.2g} times what batch size "
            f"{move.global_batch_size} usually does ({before})"
        )
    return (
        f"batch size {move.global_batch_size} costs {times:.2g} times what it did, since "
        f"{move.since}: {energy_text(move.cost_j)}, before it {before}"
    )


def _find_outdated(trials: Sequence[Trial]) -> tuple[int, int]:
    """Return how many runs say nothing of epochs any more, and the recurrence since when.

    Of those with the objective of the newest; the policy reads others from their curves, too.
    """
    counted = [trial for trial in trials if trial.teaches]
    told = [trial for trial in counted if trial.status in _DECIDED and trial.epochs is not None]
    same = [trial for trial in told if _learning(trial) == _learning(told[-1])]
    runs = [
        Run(trial.global_batch_size, trial.recurrence, trial.status, epochs=trial.epochs)
        for trial in same
    ]
    first = first_valid(runs)
    return first, runs[first].recurrence if first else 0


def _learning(trial: Trial) -> tuple[object, ...]:
    return trial.metric, trial.mode, trial.target, trial.max_epochs

"""Replays a job's own history from today on, and sums up what its next recurrences will take."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.errors import UsageError
from zeusrun.simulate.job import expected
from zeusrun.simulate.own_job import draw_job
from zeusrun.simulate.replay import replay
from zeusrun.simulate.report import spread
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.bandit.registry import Policy
    from zeusrun.simulate.own_job import Model
    from zeusrun.simulate.replay import Played
    from zeusrun.simulate.report import Spread

_LAST = 10  # recurrences that show which batch size is in use at the end


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a job takes from now on under some settings, over all seeds.

    ``cost_j``, ``energy_j`` and ``time_s`` are of a run with the batch size in use at the end;
    ``exploring_j`` is what the recurrences with any other batch size cost beyond that.
    """

    batch_sizes: Mapping[int, float]  # in use at the end: share of the seeds, the largest first
    cost_j: Spread
    energy_j: Spread
    time_s: Spread
    exploring_j: Spread
    unreached: float  # recurrences that end without a model, of all


def forecast(
    model: Model,
    policy: Policy,
    *,
    recurrences: int,
    seeds: Sequence[int],
    attempts: int,
    on_progress: Callable[[float], None] = lambda _share: None,
) -> Forecast:
    """Replay a job from today on, with its history, once for each seed.

    ``on_progress`` receives the share that is done.
    """
    problem, eta_knob = model.problem, model.problem.eta_knob
    arms, rows, missed = Counter[int](), [], 0
    for done, seed in enumerate(seeds, 1):
        job = draw_job(model, seed)
        played = replay(
            job, policy, problem, recurrences, seed, attempts=attempts, before=model.runs
        )
        arm = _in_use(played, recurrences) or problem.default
        usual = expected(job, arm, eta_knob, 1)
        if not math.isfinite(usual.cost_j):
            raise UsageError(f"{model.job}: no batch size reaches the target in the simulation")
        tried = {each.trial.recurrence for each in played if each.trial.global_batch_size != arm}
        spent = [each.trial.cost_j or 0.0 for each in played if each.trial.recurrence in tried]
        rows.append((*usual, sum(spent) - len(tried) * usual.cost_j))
        arms[arm] += 1
        missed += recurrences - len(_reached(played))
        on_progress(done / len(seeds))
    columns = np.array(rows, dtype=float).T
    names = ("cost_j", "energy_j", "time_s", "exploring_j")
    spreads = {name: spread(column) for name, column in zip(names, columns, strict=True)}
    shares = {arm: times / len(seeds) for arm, times in arms.most_common()}
    unreached = missed / recurrences / len(seeds)
    return Forecast(batch_sizes=shares, unreached=unreached, **spreads)


def _reached(played: Sequence[Played]) -> dict[int, int]:
    """Return the batch size that reached the target, by recurrence."""
    trials = (each.trial for each in played)
    return {t.recurrence: t.global_batch_size for t in trials if t.status is TrialStatus.REACHED}


def _in_use(played: Sequence[Played], recurrences: int) -> int | None:
    """Return the batch size that reached the target most often in the last recurrences."""
    last = [arm for number, arm in _reached(played).items() if number > recurrences - _LAST]
    return Counter(last).most_common(1)[0][0] if last else None

"""Replays a job's own history from today on, and sums up what its next recurrences will take."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.simulate.engine import expected
from zeusrun.simulate.own_job import draw_job
from zeusrun.simulate.replay import replay
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.bandit.registry import Policy
    from zeusrun.simulate.own_job import JobModel

_LAST = 10  # recurrences that show which batch size is in use at the end
_TRIES = frozenset({Stage.EXPLORE, Stage.SPEED_CHECK})


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a job takes from now on under some settings; each field has a value for each seed."""

    batch_sizes: tuple[int, ...]  # in use at the end
    cost_j: tuple[float, ...]  # of a run with that batch size, as are the next two
    energy_j: tuple[float, ...]
    time_s: tuple[float, ...]
    exploring_j: tuple[float, ...]  # what recurrences that try others cost beyond such a run
    control_j: tuple[float, ...]  # the same of recurrences with a control run
    unreached: tuple[int, ...]  # recurrences that end without a model


def forecast(
    model: JobModel,
    policy: Policy,
    *,
    recurrences: int,
    seeds: Sequence[int],
    attempts: int,
    on_seed: Callable[[], None] = lambda: None,
) -> Forecast:
    """Replay a job from today on, with its history, once for each seed.

    The same seed gives two models the same luck. ``on_seed`` is called after each.
    """
    problem, rows = model.problem, []
    for seed in seeds:
        job = draw_job(model, seed)
        played = replay(
            job, policy, problem, recurrences, seed, attempts=attempts, before=model.runs
        )
        trials = [each.trial for each in played]
        reached = {
            trial.recurrence: trial.global_batch_size
            for trial in trials
            if trial.status is TrialStatus.REACHED
        }
        last = [arm for number, arm in reached.items() if number > recurrences - _LAST]
        arm = Counter(last).most_common(1)[0][0] if last else problem.default
        usual = expected(job, arm, problem.eta_knob, 1)
        if not math.isfinite(usual.cost_j):
            raise UsageError(f"{model.job}: no batch size reaches the target in the simulation")
        control = {trial.recurrence for trial in trials if trial.stage is Stage.CONTROL}
        tried = {trial.recurrence for trial in trials if trial.stage in _TRIES} - control
        beyond = [
            sum(trial.cost_j or 0.0 for trial in trials if trial.recurrence in numbers)
            - len(numbers) * usual.cost_j
            for numbers in (tried, control)
        ]
        rows.append((arm, *usual, *beyond, recurrences - len(reached)))
        on_seed()
    names = (field.name for field in fields(Forecast))
    return Forecast(**dict(zip(names, zip(*rows, strict=True), strict=True)))

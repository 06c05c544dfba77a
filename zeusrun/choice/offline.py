"""Chooses a trial while the shared history of its job does not respond."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.power import first_lever
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.tally import build_tally, likeliest_arm
from zeusrun.choice.choose import Choice, NothingLeft, decide, draft_trial
from zeusrun.choice.problem import build_problem, next_recurrence
from zeusrun.trial import Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Observation
    from zeusrun.bandit.problem import Problem
    from zeusrun.choice.choose import Attempt
    from zeusrun.choice.inputs import Chooser, Machine, Moment
    from zeusrun.trial import Trial

_NO_ANSWER = "the shared history does not respond"


def choose_offline(
    chooser: Chooser,
    machine: Machine,
    trials: Sequence[Trial],
    made: Sequence[Attempt],
    moment: Moment,
    *,
    name: str,
) -> Choice | NothingLeft:
    """Choose the cheapest batch size that is known here; ``trials`` are those of the local copy.

    The recurrence of the trial is a guess, and its id ``name`` has none: the server gives it one. A
    further attempt needs the server, because it belongs to a recurrence, so this one has no bound.
    """
    if made:
        return NothingLeft(f"there is no further attempt, because {_NO_ANSWER}")
    number = next_recurrence(trials, moment.unrecorded)
    problem, runs = read_history(build_problem(chooser.spec, machine, trials, number), trials)
    if chooser.forced is None:
        decision = _cheapest(problem, runs)
    else:
        decision = decide(chooser, problem, runs, 1)
    trial = draft_trial(
        chooser.spec, problem, decision, attempt=1, machine=machine, moment=moment, name=name
    )
    limit_w = machine.power_limit_w
    return Choice(trial, problem, tuple(runs), decision, limit_w=limit_w, earlier=tuple(trials))


def _cheapest(problem: Problem, runs: Sequence[Observation]) -> Decision:
    tally = build_tally(problem, runs)
    means = {arm: sum(costs) / len(costs) for arm, costs in tally.costs_j.items() if costs}
    means = {arm: mean for arm, mean in means.items() if arm in tally.fitting}
    proven = likeliest_arm(tally)
    if not means and proven is not None:
        arm = proven[0]
        why = f"{_NO_ANSWER}, and no cost is known here: {arm} has reached the target"
        return Decision(arm, Stage.EXPLOIT, why, first_lever(problem, runs, arm))
    if not means:
        fits = problem.default in tally.fitting or not tally.fitting
        arm = problem.default if fits else tally.fitting[-1]
        what = "the default" if fits else "the largest that fits in memory"
        why = f"{_NO_ANSWER}, and no cost is known here: {arm} is {what}"
        return Decision(arm, Stage.EXPLORE, why, first_lever(problem, runs, arm))
    arm = min(means, key=lambda arm: (means[arm], arm))
    why = f"{_NO_ANSWER}, and {arm} is the cheapest batch size that is known here"
    return Decision(arm, Stage.EXPLOIT, why, first_lever(problem, runs, arm))

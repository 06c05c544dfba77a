"""Policy ``grid``: every batch size once, then the cheapest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.observation import merged_profile
from zeusrun.bandit.power import sweep_limit_w
from zeusrun.bandit.stopping import hopeless
from zeusrun.bandit.summary import summarise
from zeusrun.bandit.tally import Ledger, build_ledger, likeliest_arm
from zeusrun.cost import energy_text
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run, Running
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.trial import PowerPoint


class Grid:
    """What a careful person does by hand: the default first, then the others in order.

    A batch size that fails is not tried again, unless none has reached the target. The last attempt
    of a recurrence goes to what has reached it most reliably.
    """

    name = "grid"

    def choose(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> Decision:
        """Choose the next batch size of the grid, or the cheapest when it is complete."""
        ledger = build_ledger(problem, runs)
        arm, stage, why = _next(problem, ledger, runs)
        profile = merged_profile([run for run in runs if run.arm == arm])
        bound = None
        if problem.cost_factor is not None and not ledger.not_now.issuperset(ledger.costs_j):
            cheapest = min(min(costs_j) for costs_j in ledger.costs_j.values())
            bound = Bound(problem.cost_factor * cheapest)
        return Decision(arm, stage, why, sweep_limit_w(problem, profile), bound)

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the next limit of the sweep, or the best of a complete one."""
        return sweep_limit_w(problem, profile)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why the trial is to be stopped: its cost passed the bound."""
        return hopeless(decision.bound, problem.mode, running)

    def explain(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> list[ArmBelief]:
        """Return what the runs of every candidate say."""
        ledger = build_ledger(problem, runs)
        chosen, _, why = _next(problem, ledger, runs)
        return [
            summarise(
                arm,
                ledger.results.get(arm, ()),
                ledger.costs_j.get(arm, ()),
                out_of_memory=ledger.out_of_memory.get(arm, 0),
                chance=float(arm == chosen),
                verdict=f"next: {why}" if arm == chosen else _verdict(ledger, arm),
            )
            for arm in problem.candidates
        ]


def _next(problem: Problem, ledger: Ledger, runs: Sequence[Run]) -> tuple[int, Stage, str]:
    likeliest = likeliest_arm(ledger) if problem.last_attempt else None
    if likeliest is not None:
        return likeliest[0], Stage.RETRY, likeliest[1]
    busy = {run.arm for run in runs if run.status is TrialStatus.DISPATCHED}
    tried = {*ledger.results, *ledger.out_of_memory}
    order = sorted(ledger.fitting, key=lambda arm: (arm != problem.default, arm))
    for arm in order:
        if arm not in tried and arm not in busy:
            return arm, Stage.EXPLORE, f"{arm} is the next of the grid"
    means = {arm: sum(costs) / len(costs) for arm, costs in ledger.costs_j.items()}
    free = {arm: mean for arm, mean in means.items() if arm not in ledger.not_now} or means
    if free:
        arm = min(free, key=lambda arm: (free[arm], arm))
        return arm, Stage.EXPLOIT, f"{arm} is the cheapest, {energy_text(free[arm])} on average"
    left = [arm for arm in order if arm not in ledger.not_now] or order or [problem.default]
    arm = min(left, key=lambda arm: len(ledger.results.get(arm, ())))
    return arm, Stage.EXPLORE, f"no cost is known yet, and {arm} has failed least often"


def _verdict(ledger: Ledger, arm: int) -> str:
    if arm not in ledger.fitting:
        return "out: memory"
    if arm in ledger.costs_j:
        return "tried, and dearer"
    return "out: it failed" if arm in ledger.results else "waits for its turn"

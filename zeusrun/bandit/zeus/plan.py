"""The step that policy ``zeus`` takes next, up to the draw of Thompson sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.bandit.zeus.pruning import ROUNDS, Pruning, nearest, prune
from zeusrun.bandit.zeus.thompson import CostBelief, believe
from zeusrun.cost import energy_text
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem
    from zeusrun.bandit.tally import Ledger

# A survivor whose cost came out unknown in both rounds gets this many runs in all to show one.
UNKNOWN_COST_LIMIT = ROUNDS + 2


@dataclass(frozen=True)
class Plan:
    """What comes next: one arm, or a draw among several.

    Attributes:
        arm: The arm, or ``None`` to draw among ``beliefs``.
        stage: The stage of the decision.
        why: Why that arm; empty for a draw.
        survivors: Arms still worth running; empty when only the default can be tried again.
        out: Why each other arm is out.
        beliefs: Two arms or more to draw among, when ``arm`` is ``None``.
    """

    arm: int | None
    stage: Stage
    why: str
    survivors: tuple[int, ...]
    out: Mapping[int, str]
    beliefs: Mapping[int, CostBelief] = field(default_factory=dict)


def build_plan(problem: Problem, ledger: Ledger) -> Plan:
    """Work out the next step, up to the draw."""
    pruning = prune(ledger.fitting, problem.default, ledger.results, ledger.not_now)
    if not pruning.survivors:
        # What lies beyond a failure is no alternative: what failed in this recurrence runs again.
        pruning = prune(ledger.fitting, problem.default, ledger.results)
    out = dict(pruning.pruned)
    for arm in problem.candidates:
        if arm not in ledger.fitting:
            own = ledger.out_of_memory.get(arm, 0) > 0
            out[arm] = "ran out of memory" if own else "larger than one that did not fit"
    if pruning.next_arm is not None:
        return _explore(problem, ledger, pruning, pruning.next_arm, out)
    for arm in pruning.survivors:
        if not any(map(_reached, ledger.results[arm][-2:])):
            out[arm] = "failed in its last two runs"
    survivors = tuple(arm for arm in pruning.survivors if arm not in out)
    if not survivors:
        reasons = "; ".join(f"{arm} {reason}" for arm, reason in sorted(out.items()))
        why = f"no batch size is left, so the default, {problem.default}: {reasons}"
        return Plan(problem.default, Stage.EXPLOIT, why, (), out)
    return _exploit(problem, ledger, survivors, out)


def _explore(
    problem: Problem, ledger: Ledger, pruning: Pruning, arm: int, out: Mapping[int, str]
) -> Plan:
    """Take the step that the exploration waits for, unless another recurrence is taking it."""
    survivors, why = pruning.survivors, pruning.why
    if not ledger.exploring:
        if ledger.out_of_memory.get(arm, 0):
            why += "; it ran out of memory once and is tried again"
        return Plan(arm, Stage.EXPLORE, why, survivors, out)
    free = [
        other
        for other in survivors
        if other not in ledger.not_now and all(map(_reached, ledger.results.get(other, ())))
    ]
    known = {
        other: believe(ledger.costs_j[other]).mean_j for other in free if other in ledger.costs_j
    }
    busy = "another recurrence is exploring"
    if known:
        cheapest = min(known, key=lambda other: (known[other], other))
        why = f"{busy}; {cheapest} is the cheapest so far, {energy_text(known[cheapest])}"
        return Plan(cheapest, Stage.CONCURRENT, why, survivors, out)
    if problem.default in free:
        why = f"{busy} and no cost is known yet, so the default, {problem.default}"
        return Plan(problem.default, Stage.CONCURRENT, why, survivors, out)
    why = f"{busy}, no cost is known and the default is out; {why}"
    return Plan(arm, Stage.CONCURRENT, why, survivors, out)


def _exploit(
    problem: Problem, ledger: Ledger, survivors: tuple[int, ...], out: Mapping[int, str]
) -> Plan:
    """Draw among the survivors, after their costs are known."""
    arms = tuple(arm for arm in survivors if arm not in ledger.not_now) or survivors
    failed = {arm: "failed earlier in this recurrence" for arm in survivors if arm not in arms}
    out = {**out, **failed}
    beliefs = {arm: believe(ledger.costs_j[arm]) for arm in arms if arm in ledger.costs_j}
    if not beliefs:
        arm = nearest(arms, problem.default)
        role = "the default" if arm == problem.default else "the nearest to the default"
        why = f"no cost is known of what is left, so {arm}, {role}"
        return Plan(arm, Stage.EXPLOIT, why, survivors, out)
    for arm in arms:
        # A flat prior without a cost is no belief: see one first, before any draw.
        if arm not in beliefs and len(ledger.results[arm]) < UNKNOWN_COST_LIMIT:
            why = f"{arm} reached the target, but its cost is still unknown"
            return Plan(arm, Stage.EXPLORE, why, survivors, out)
    out |= {arm: "never showed its cost" for arm in arms if arm not in beliefs}
    if len(beliefs) > 1:
        return Plan(None, Stage.EXPLOIT, "", survivors, out, beliefs)
    ((arm, belief),) = beliefs.items()
    why = f"{arm} is the only batch size left, {energy_text(belief.mean_j)} on average"
    return Plan(arm, Stage.EXPLOIT, why, survivors, out)


def _reached(run: Run) -> bool:
    return run.status is TrialStatus.REACHED

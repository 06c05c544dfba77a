"""The belief of a policy in sentences, for ``explain``, reports and servers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.registry import choose_control, explain_next
from zeusrun.bandit.stopping import amount_text
from zeusrun.choice.choose import decide, decide_after_miss
from zeusrun.cost import energy_text
from zeusrun.trial import Stage, TrialStatus
from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.curves import CurveUnit
    from zeusrun.bandit.problem import ArmBelief, Observation, Problem, Runs
    from zeusrun.bandit.registry import Policy
    from zeusrun.choice.problem import Chooser
    from zeusrun.errors import ZeusrunError
    from zeusrun.trial import Decision, Trial

_CERTAIN = 0.995
_TRIES = frozenset({Stage.EXPLORE, Stage.SPEED_CHECK})
_APART = 30.0  # largest ratio of the ends of a range that is shown


@dataclass(frozen=True)
class Belief:
    """The expectations of a policy for each batch size, and its choice in sentences.

    The first sentence is a headline.
    """

    arms: tuple[ArmBelief, ...] = ()
    sentences: tuple[str, ...] = ()
    policy: str = ""
    unit: CurveUnit = "epochs"  # what "epochs" of the arms count
    missing: str | None = None  # why the belief is unknown, as a sentence


def believe(
    chooser: Chooser, problem: Problem, runs: Runs, continued: Trial | None = None
) -> Belief:
    """Return what a policy believes.

    Args:
        chooser: The policy, and the job.
        problem: The problem of the next run.
        runs: Past runs, oldest first.
        continued: A preempted run that the next submit continues instead.
    """
    rng = np.random.default_rng(chooser.spec.policy.seed)
    arms = explain_next(chooser.policy, problem, runs, rng)
    sentences = describe_choice(chooser, problem, runs, arms, continued)
    unit = problem.unit
    if unit is not None:
        arms = [
            replace(
                each,
                epochs=None if each.epochs is None else each.epochs * unit,
                epoch_cost_j=None if each.epoch_cost_j is None else each.epoch_cost_j / unit,
            )
            for each in arms
        ]
    name: CurveUnit = "epochs" if unit is None else "samples"
    return Belief(tuple(arms), tuple(sentences), chooser.policy.name, name)


def unknown_belief(error: ZeusrunError) -> Belief:
    """Return a belief without content that says why it is unknown."""
    return Belief(missing=f"What the policy believes is unknown: {error}")


def describe_choice(
    chooser: Chooser,
    problem: Problem,
    runs: Sequence[Observation],
    beliefs: Sequence[ArmBelief],
    continued: Trial | None = None,
) -> list[str]:
    """Return the choice for the next run in sentences, a headline first; see ``lead``."""
    decision = decide(chooser, problem, runs, 1)
    epochs_j = {belief.global_batch_size: belief.epoch_cost_j for belief in beliefs}
    epoch_j = epochs_j.get(decision.global_batch_size)
    retry = decide_after_miss(chooser, problem, runs, decision, epoch_j)
    sentences = lead(
        chooser.policy.name,
        decision,
        beliefs,
        problem,
        retry=retry,
        continued=continued,
        adapts=chooser.spec.adapts,
    )
    newest_first = [run for run in reversed(runs) if run.status.finished]
    failed = takewhile(lambda run: run.status is TrialStatus.FAILED, newest_first)
    crashed = [run.arm for run in failed]
    if crashed:
        sentences.insert(2, _describe_crashes(chooser.spec.name, crashed))
    if problem.control is not None:
        sentences.append(units.sentence(_describe_control(chooser.policy, problem, runs)))
    return sentences


def _describe_crashes(job: str, arms: Sequence[int]) -> str:
    """Say in how many of the newest runs the script crashed, and with which batch sizes."""
    last = "the last run" if len(arms) == 1 else f"the last {len(arms)} runs"
    sizes = sorted(set(arms))
    plural = "s" if len(sizes) > 1 else ""
    return (
        f"The script crashed in {last}, with batch size{plural} {', '.join(map(str, sizes))}; "
        f"`zeusrun show {job}` says why."
    )


def _describe_control(policy: Policy, problem: Problem, runs: Sequence[Observation]) -> str:
    """Say when the next control run is."""
    every, default, now = problem.control or 1, problem.default, problem.recurrence
    number = now + -now % every
    if choose_control(policy, replace(problem, recurrence=number), runs) is None:
        return (
            f"there are no control runs (policy.control: {every}), because memory or crashes rule "
            f"out the default, {default}"
        )
    run = "run is a control run" if number == now else f"control run is recurrence {number}"
    return (
        f"one recurrence in {every} is a control run of the default, {default} (policy.control). "
        f"The next {run}"
    )


def lead(
    policy: str,
    decision: Decision,
    beliefs: Sequence[ArmBelief],
    problem: Problem,
    *,
    retry: Decision | None = None,
    continued: Trial | None = None,
    adapts: bool = False,
) -> list[str]:
    """Return a headline and the sentences, for readers who know nothing of policies.

    Args:
        policy: The name of the policy.
        decision: The decision on the next run.
        beliefs: The beliefs about every candidate.
        problem: The problem that the decision solves.
        retry: The decision after a miss of that run; ``None``: no attempt follows.
        continued: A preempted run that the next submit continues instead.
        adapts: Whether the run changes its batch size.
    """
    if continued is not None:
        size, name = continued.global_batch_size, continued.trial
        why = f"it continues {name}, which was preempted. Without that: {decision.why}"
        return [f"the next submit continues {name} with batch size {size}", units.sentence(why)]
    uses = "adapts its batch size, from" if adapts else "uses batch size"
    headline = f"the next run {uses} {decision.global_batch_size}"
    by_arm = {belief.global_batch_size: belief for belief in beliefs}
    chosen, why = by_arm.get(decision.global_batch_size), decision.why
    if chosen is None:  # a plugin need not describe every candidate
        return [headline, units.sentence(why)]
    control = decision.stage is Stage.CONTROL
    if chosen.chance < _CERTAIN and not control:
        chance = units.percent(chosen.chance)
        why += f" (the policy draws at random; the probability of this was {chance})"
    others = [belief for belief in beliefs if belief is not chosen]
    cost = _cost(decision, chosen, by_arm.get(problem.default), problem)
    then = "no attempt follows" if retry is None else f"{retry.global_batch_size} follows at once"
    last = f"If the next run misses the target, {then}"
    if not control:
        last = f"{_change(policy, decision, chosen, others, ignored=problem.ignored)}. {last}"
    return [headline, *map(units.sentence, (why, cost, last))]


def _cost(
    decision: Decision, chosen: ArmBelief, default: ArmBelief | None, problem: Problem
) -> str:
    if chosen.cost_j is None:
        return "what it costs is not known yet"
    text, stops = f"it is expected to cost {energy_text(chosen.cost_j)}", decision.bound
    if stops is not None and decision.stage in _TRIES and chosen.cost_j > stops.cost_j:
        text = f"it is expected to need {energy_text(chosen.cost_j)} to the target"
        return f"{text}, but is stopped at about {energy_text(stops.cost_j)}"
    if chosen.cost_range_j is not None and chosen.cost_range_j[0] < chosen.cost_range_j[1]:
        known = is_known(chosen.cost_range_j)
        often = f"{units.energy_range(chosen.cost_range_j)} in nine runs of ten"
        text += f" ({often if known else 'but little is known'})"
    if default is chosen:
        text += ", and is the default"
    elif default is not None and default.cost_j:
        size, cost = default.global_batch_size, energy_text(default.cost_j)
        text += f"; a run of the default, {size}, is expected to cost {cost}"
    if decision.bound is not None and decision.bound.epochs is not None:
        if decision.bound.epochs < problem.epoch_limit:
            limit = amount_text(decision.bound.epochs, problem.unit)
            text += f". The run is stopped if it needs more than {limit}"
    elif decision.bound is not None:
        text += f". The run is stopped if it costs more than {energy_text(decision.bound.cost_j)}"
    return text


def _change(
    policy: str,
    decision: Decision,
    chosen: ArmBelief,
    others: Sequence[ArmBelief],
    *,
    ignored: bool,
) -> str:
    """Say which result would change the choice."""
    never = policy == "fixed" or not others
    if never or chosen.chance < _CERTAIN:
        fixed = "policy fixed never uses another batch size; set policy.name to auto to try others"
        alone = "it is the only candidate; add others to batch_size.candidates to try them"
        if ignored:
            alone = "no other candidate is tried before the script trains with a chosen batch size"
        return (fixed if others else alone) if never else "every result changes the probabilities"
    known = [(each.cost_j, each.global_batch_size) for each in others if each.reached]
    if not known and not chosen.reached:
        return "once a run has reached the target, batch sizes that may be cheaper are tried"
    costs = [(cost_j, arm) for cost_j, arm in known if cost_j is not None]
    if not costs:
        if known or all(each.cost_j is None for each in others):
            return "what other batch sizes cost is not known yet"
        return "no other batch size has reached the target yet, so what they cost is a guess"
    cost_j, other = min(costs)
    if decision.stage is Stage.EXPLOIT:
        runs = f"if {chosen.global_batch_size} is expected to cost more than {other}"
        return f"{runs} ({energy_text(cost_j)}), {other} is used"
    reaches = (
        f"once {chosen.global_batch_size} has reached the target at a lower expected cost than"
    )
    return f"{reaches} {other} ({energy_text(cost_j)}), it replaces {other} as the cheapest so far"


def is_known(range_j: tuple[float, float] | None) -> bool:
    """Whether a range is narrow enough to show; where little is known, its ends are far apart."""
    return range_j is None or range_j[1] <= _APART * range_j[0]

"""The first sentences of ``explain``: what the next run uses and why, its cost, what changes it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.control import choose_control
from zeusrun.cost import energy_text
from zeusrun.launcher.choose import decide, decide_after_miss
from zeusrun.trial import Stage
from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.bandit.registry import Policy
    from zeusrun.launcher.context import Submission
    from zeusrun.trial import Decision, Trial

_CERTAIN = 0.995
_SAME = 0.005  # a smaller difference of costs is none


def describe_choice(
    submission: Submission,
    problem: Problem,
    runs: Sequence[Run],
    beliefs: Sequence[ArmBelief],
    continued: Trial | None = None,
) -> list[str]:
    """Return the choice for the next run in sentences, a headline first; see ``lead``."""
    decision = decide(submission, problem, runs, 1)
    epochs_j = {belief.global_batch_size: belief.epoch_cost_j for belief in beliefs}
    epoch_j = epochs_j.get(decision.global_batch_size)
    retry = decide_after_miss(submission, problem, runs, decision, epoch_j)
    told = lead(
        submission.policy.name,
        decision,
        beliefs,
        problem.default,
        retry=retry,
        continued=continued,
        adapts=submission.spec.adapt is not None,
        unit=problem.unit,
        ignored=problem.ignored,
    )
    if problem.control is not None:
        told.append(_sentence(_describe_control(submission.policy, problem, runs, beliefs)))
    return told


def in_samples(beliefs: Sequence[ArmBelief], unit: int | None) -> list[ArmBelief]:
    """Return beliefs with samples in place of units of so many samples; ``None``: unchanged."""
    if unit is None:
        return [*beliefs]
    return [
        replace(
            each,
            epochs=None if each.epochs is None else each.epochs * unit,
            epoch_cost_j=None if each.epoch_cost_j is None else each.epoch_cost_j / unit,
        )
        for each in beliefs
    ]


def _describe_control(
    policy: Policy, problem: Problem, runs: Sequence[Run], beliefs: Sequence[ArmBelief]
) -> str:
    """Say what ``policy.control`` costs, and when the next control run is."""
    every, default, now = problem.control or 1, problem.default, problem.recurrence
    number = now + -now % every
    if choose_control(policy, replace(problem, recurrence=number), runs) is None:
        return (
            f"there are no control runs (policy.control: {every}), because memory or crashes rule "
            f"out the default, {default}"
        )
    one = f"one recurrence in {every} is a control run of the default, {default} (policy.control)"
    when = "The next run is one" if number == now else f"The next one is recurrence {number}"
    costs_j = {each.global_batch_size: each.cost_j for each in beliefs}
    reached = [each.global_batch_size for each in beliefs if each.reached]
    known = {arm: cost_j for arm in reached if (cost_j := costs_j[arm])}
    default_j = costs_j.get(default)
    if not known or default_j is None:
        return f"{one}; what that costs is not known yet. {when}"
    in_use = min(known, key=lambda arm: known[arm])
    more_j = default_j - known[in_use]
    if more_j <= 0:
        return f"{one}; it costs nothing more while the default is the cheapest. {when}"
    share = more_j / every / known[in_use]
    return (
        f"{one}; it costs about {energy_text(more_j)} more than a run of {in_use}, which is "
        f"{energy_text(more_j / every)} a recurrence ({share:.1%}). {when}"
    )


def lead(
    policy: str,
    decision: Decision,
    beliefs: Sequence[ArmBelief],
    default: int,
    *,
    retry: Decision | None = None,
    continued: Trial | None = None,
    adapts: bool = False,
    unit: int | None = None,
    ignored: bool = False,
) -> list[str]:
    """Return a headline and the sentences, for readers who know nothing of policies.

    Args:
        policy: Its name.
        decision: For the next run.
        beliefs: Of every candidate.
        default: The user's own batch size.
        retry: What would run if that run missed the target; ``None``: nothing.
        continued: A preempted run that the next submit continues instead.
        adapts: Whether the run changes its batch size.
        unit: Samples that count as an epoch; see ``Problem.unit``.
        ignored: Whether the script ignores the batch size; see ``Problem.ignored``.
    """
    if continued is not None:
        size, name = continued.global_batch_size, continued.trial
        why = f"it continues {name}, which was preempted. Without that: {decision.why}"
        return [f"the next submit continues {name} with batch size {size}", _sentence(why)]
    uses = "adapts its batch size, from" if adapts else "uses batch size"
    headline = f"the next run {uses} {decision.global_batch_size}"
    by_arm = {belief.global_batch_size: belief for belief in beliefs}
    own, why = by_arm.get(decision.global_batch_size), decision.why
    if own is None:  # a plugin need not describe every candidate
        return [headline, _sentence(why)]
    control = decision.stage is Stage.CONTROL
    if own.chance < _CERTAIN and not control:
        why += f" (the policy draws at random; the probability of this was {own.chance:.0%})"
    others = [belief for belief in beliefs if belief is not own]
    texts = [why, _cost(decision, own, by_arm.get(default), unit)]
    miss = _miss(retry)
    texts.append(
        miss if control else f"{_change(policy, decision, own, others, ignored=ignored)}. {miss}"
    )
    return [headline, *map(_sentence, texts)]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _cost(decision: Decision, own: ArmBelief, default: ArmBelief | None, unit: int | None) -> str:
    if own.cost_j is None:
        return "what it costs is not known yet"
    text = f"it is expected to cost {energy_text(own.cost_j)}"
    if own.cost_range_j is not None and own.cost_range_j[0] < own.cost_range_j[1]:
        text += f" ({units.energy_range(own.cost_range_j)} in nine runs of ten)"
    if default is own:
        text += ", and is the default"
    elif default is not None and default.cost_j:
        share = own.cost_j / default.cost_j - 1
        than = f"the default, {default.global_batch_size} ({energy_text(default.cost_j)})"
        more = f"{abs(share):.0%} {'more' if share > 0 else 'less'} than"
        text += f", {'as much as' if abs(share) < _SAME else more} {than}"
    if decision.bound is not None and decision.bound.epochs is not None:
        most = decision.bound.epochs
        limit = f"{most:.3g} epochs" if unit is None else f"{most * unit:,.0f} samples"
        text += f". The run is stopped if it needs more than {limit}"
    elif decision.bound is not None:
        text += f". The run is stopped if it costs more than {energy_text(decision.bound.cost_j)}"
    return text


def _change(
    policy: str,
    decision: Decision,
    own: ArmBelief,
    others: Sequence[ArmBelief],
    *,
    ignored: bool = False,
) -> str:
    """Say which result would change the choice."""
    never = policy == "fixed" or not others
    if never or own.chance < _CERTAIN:
        fixed = "policy fixed never uses another batch size; set policy.name to auto to try others"
        alone = "it is the only candidate; more of them in batch_size.candidates can be tried"
        if ignored:
            alone = "no other candidate is tried before one arrives in the training"
        return (fixed if others else alone) if never else "every result changes the probabilities"
    known = [(each.cost_j, each.global_batch_size) for each in others if each.reached]
    if not known and not own.reached:
        return "once a run has reached the target, others are tried that may be cheaper"
    costs = [(cost_j, arm) for cost_j, arm in known if cost_j is not None]
    if not costs:
        return "what other batch sizes cost is not known yet"
    cost_j, other = min(costs)
    if decision.stage is Stage.EXPLOIT:
        runs = f"if runs of {own.global_batch_size} come to cost more than those of {other}"
        return f"{runs} ({energy_text(cost_j)}), {other} is used"
    cheaper = f"if it is cheaper than {other} ({energy_text(cost_j)})"
    return f"{cheaper}, it replaces {other} as the cheapest so far"


def _miss(retry: Decision | None) -> str:
    if retry is None:
        return "If the next run misses the target, no other one follows"
    return f"If the next run misses the target, {retry.global_batch_size} follows at once"

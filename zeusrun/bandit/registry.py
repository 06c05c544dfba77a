"""What a policy is, which there are by name, and the control runs under all of them.

Every Nth recurrence is a control run of the default, in submits and in simulations alike, so that
what other batch sizes save stays known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.power import first_lever
from zeusrun.bandit.problem import ArmBelief, merged_profile
from zeusrun.errors import UsageError, did_you_mean
from zeusrun.plugins import BUILT_IN, blame, create_plugin, load_built_in, plugin_names
from zeusrun.trial import Decision, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import Problem, Profile, Running, Runs
    from zeusrun.lever import Lever
    from zeusrun.trial import Trial


@runtime_checkable
class Policy(Protocol):
    """Decides: values in, values out.

    ``runs`` come from ``reinterpret.read_history``: oldest first, finished or in flight. No method
    reads a clock, a file or a global generator: equal arguments, ``rng`` included, give equal
    answers.
    """

    name: str

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        """Choose the next trial: its batch size, always a candidate, first limit and bound.

        A trial of stage ``SPEED_CHECK`` begins with one. Once its speed is known, ``choose`` is
        called again; ``runs`` then includes the trial as a run cut short. The trial continues only
        if its batch size is still the choice.
        """

    def next_lever(self, problem: Problem, decision: Decision, profile: Profile) -> Lever | None:
        """Return the power limit to hold now; ``None`` to leave it as it is.

        A limit that is not in ``profile`` is held and measured; then the method is called again.
        A limit in ``profile`` is held to the end. ``profile`` includes points of earlier trials.
        """

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why to stop the running trial at the end of an epoch, or ``None``."""

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        """Return what the policy believes of every candidate, ascending."""


POLICIES = BUILT_IN["zeusrun.policies"]
"""The function that creates each built-in policy, by the name of the policy."""


class _PluginPolicy:
    """A plugin's policy; its errors and its invalid answers are ``UsageError``s that name it."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name, self._policy = name, policy
        self.next_lever = blame("policy", name, "next_lever")(policy.next_lever)
        self.review = blame("policy", name, "review")(policy.review)

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        with blame("policy", self.name, "choose"):
            decision = self._policy.choose(problem, runs, rng)
            if not isinstance(decision, Decision):
                raise TypeError(f"it returned {decision!r}, which is no Decision")
            if (size := decision.global_batch_size) not in problem.candidates:
                known = ", ".join(map(str, problem.candidates))
                raise ValueError(f"it returned batch size {size}; the candidates are {known}")
            return decision

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        with blame("policy", self.name, "explain"):
            beliefs = list(self._policy.explain(problem, runs, rng))
            if not all(isinstance(belief, ArmBelief) for belief in beliefs):
                raise TypeError("it returned something other than a list of ArmBelief")
            return beliefs


def create_policy(name: str) -> Policy:
    """Make a policy by its name: one of zeusrun's, else one of an installed plugin.

    Raises:
        UsageError: If there is none of that name, or the plugin does not make a policy.
    """
    if name in POLICIES:
        made: Policy = load_built_in("zeusrun.policies", name)()
        return made
    policy = create_plugin("zeusrun.policies", name, Policy)
    if policy is None:
        hint = did_you_mean(name, [*POLICIES, *plugin_names("zeusrun.policies")])
        raise UsageError(
            f"unknown policy {name!r}" + (hint or f"; there are {', '.join(POLICIES)}")
        )
    return _PluginPolicy(name, policy)


def choose_control(
    policy: Policy, problem: Problem, runs: Runs, made: Sequence[Trial] = ()
) -> Decision | None:
    """Return the control run that is due; ``None``: the policy chooses.

    One is due as the first attempt of every recurrence that ``Problem.control`` divides, unless
    memory or crashes of the script rule out the default. ``made`` are the attempts of the
    recurrence so far. It has no bound, and the power limits that the policy tries.
    """
    if problem.control is None or problem.recurrence % problem.control or made:
        return None
    default = problem.default
    has_begun = any(run.recurrence == problem.recurrence for run in runs)
    if has_begun or default not in gather(problem, runs).fitting:
        return None
    why = (
        f"one recurrence in {problem.control} runs the default (policy.control), so that what "
        "other batch sizes save stays known"
    )
    decision = Decision(default, Stage.CONTROL, why, first_lever(problem, runs, default))
    if problem.levers:
        profile = merged_profile([run for run in runs if run.arm == default])
        lever = policy.next_lever(problem, decision, profile)
        decision = replace(decision, lever=lever)
    return decision


def explain_next(policy: Policy, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
    """Return what a policy believes of every candidate; a control run that is due is the next."""
    beliefs = policy.explain(problem, runs, rng)
    control = choose_control(policy, problem, runs)
    if control is None:
        return beliefs
    return [
        replace(belief, chance=1.0, verdict=control.why)
        if belief.global_batch_size == control.global_batch_size
        else replace(belief, chance=0.0)
        for belief in beliefs
    ]

"""What a policy is, and which there are by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.baselines import Fixed, Grid
from zeusrun.bandit.problem import ArmBelief
from zeusrun.bandit.zeus.policy import Zeus
from zeusrun.errors import UsageError
from zeusrun.plugins import blame, create_plugin, plugin_names
from zeusrun.trial import Decision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.random import Generator

    from zeusrun.bandit.observation import Profile, Running, Runs
    from zeusrun.bandit.problem import Problem
    from zeusrun.lever import Lever


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


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "auto": Auto,
    "zeus": Zeus,
    "fixed": Fixed,
    "grid": Grid,
}


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
        return POLICIES[name]()
    policy = create_plugin("zeusrun.policies", name, Policy)
    if policy is None:
        close = difflib.get_close_matches(name, [*POLICIES, *plugin_names("zeusrun.policies")], n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(POLICIES)}"
        raise UsageError(f"unknown policy {name!r}; {hint}")
    return _PluginPolicy(name, policy)

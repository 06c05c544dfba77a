"""What a policy is, and which there are by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.fixed import Fixed
from zeusrun.bandit.grid import Grid
from zeusrun.bandit.zeus.policy import Zeus
from zeusrun.errors import UsageError
from zeusrun.plugins import load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run, Running
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.trial import Decision, PowerPoint


@runtime_checkable
class Policy(Protocol):
    """Decides: values in, values out.

    ``runs`` come from ``reinterpret.read_history``: oldest first, finished or in flight. No method
    reads a clock, a file or a global generator: equal arguments, ``rng`` included, give equal
    answers.
    """

    name: str

    def choose(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> Decision:
        """Choose the next trial: its batch size, always a candidate, first limit and bound.

        A trial of stage ``SPEED_CHECK`` begins with one: once its speed is known, ``choose``
        is asked again with the trial among the runs, as a run cut short. The trial goes on only if
        its batch size is still the choice.
        """
        ...

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the power limit to hold now, per GPU; ``None`` to leave it as it is.

        If it is not in ``profile``, it is measured while it is held, and the method is asked again.
        Otherwise it is held to the end. ``profile`` includes points of earlier trials.
        """
        ...

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why to stop the running trial at the end of an epoch, or ``None``."""
        ...

    def explain(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> list[ArmBelief]:
        """Return what is believed of every candidate, ascending."""
        ...


# ``auto`` is the default of a job file.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "auto": Auto,
    "zeus": Zeus,
    "fixed": Fixed,
    "grid": Grid,
}


def create_policy(name: str) -> Policy:
    """Make a policy by its name: one of zeusrun's, else one of an installed plugin.

    Raises:
        UsageError: If there is none of that name, or the plugin does not make a policy.
    """
    if name in POLICIES:
        return POLICIES[name]()
    create = load_plugin("zeusrun.policies", name)
    if create is None:
        close = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(POLICIES)}"
        raise UsageError(f"unknown policy {name!r}; {hint}")
    policy = create() if callable(create) else create
    if not isinstance(policy, Policy):
        raise UsageError(
            f"the plugin {name!r} does not make a policy: it needs a name and the methods choose, "
            "next_limit_w, review and explain; docs/policies.md describes them"
        )
    return policy

"""What a policy is, and which there are by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Protocol

from zeusrun.bandit.zeus import Zeus
from zeusrun.errors import JobFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.trial import Decision, Trial


class Policy(Protocol):
    """Chooses batch sizes: values in, values out.

    Every method takes all trials of the job, oldest first, finished or in flight; which of them
    still teach is the policy's own business. None reads a clock, a file or a global generator, so
    equal arguments, the state of ``rng`` among them, give equal answers.
    """

    name: str

    def choose(self, problem: Problem, trials: Sequence[Trial], rng: Generator) -> Decision:
        """Choose the batch size of the next trial, always one of the candidates."""
        ...

    def cost_bound_j(self, problem: Problem, trials: Sequence[Trial]) -> float | None:
        """Return the cost in joules at which to stop the next trial, or ``None`` for never."""
        ...

    def explain(self, problem: Problem, trials: Sequence[Trial], rng: Generator) -> list[ArmBelief]:
        """Return what is believed of every candidate, ascending."""
        ...


# ``auto`` is the default of a job file; it names the best policy we have, for now the paper's.
POLICIES: Mapping[str, Callable[[], Policy]] = {"auto": Zeus, "zeus": Zeus}


def create_policy(name: str) -> Policy:
    """Make a policy by its name in the job file.

    Raises:
        JobFileError: If there is none of that name.
    """
    if name not in POLICIES:
        close = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(POLICIES)}"
        raise JobFileError(f"unknown policy {name!r} under 'policy.name'; {hint}")
    return POLICIES[name]()

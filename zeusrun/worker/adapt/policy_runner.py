"""Asks the policy of the job file for a batch size: one of zeusrun, or the user's own classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.worker.adapt.policies import MEASURING, POLICIES, Proposal, clip, decide
from zeusrun.worker.adapt.user_policies import UserPolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.adapt.policies import Limits, Observation

_MAX_UNKNOWN = 5  # decisions in a row without a noise scale, after which the user is warned


class PolicyRunner:
    """Asks one policy.

    Args:
        names: One policy of zeusrun, or the user's classes as ``module:Class``.
        warn: Called with a sentence for the user.

    Raises:
        RuntimeError: If a class of the user cannot be imported or created.
    """

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self._name, self._warn = names[0], warn
        self._user_policies = None if self._name in POLICIES else UserPolicies(names, warn)
        self._wished: Proposal | None = None  # at the decision before
        self._unknown = 0  # decisions in a row without a noise scale

    def call(self, method: str, observe: Callable[[], Observation]) -> None:
        """Call a method of the user's classes, if there are any."""
        if self._user_policies is not None:
            self._user_policies.call(method, observe())

    def propose(self, observation: Observation, limits: Limits) -> Proposal | None:
        """Return a batch size within the limits; ``None`` to keep the present one."""
        if self._user_policies is None:
            self._warn_if_unknown(observation)
            proposal = decide(self._name, observation, limits)
            if self._name == "noise-scale":
                return self._confirm(observation.batch_size, proposal)
            return proposal
        proposal = self._user_policies.pop_proposal()
        if proposal is None:
            return None
        size = clip(proposal.batch_size, observation, limits, may_shrink=True)
        return Proposal(size, proposal.reason)

    def _confirm(self, now: int, proposal: Proposal | None) -> Proposal | None:
        """Return the smaller of two changes in the same direction, decided one after the other."""
        before, self._wished = self._wished, proposal
        if proposal is None or before is None:
            return None
        changes = [each.batch_size - now for each in (before, proposal)]
        if changes[0] * changes[1] <= 0:
            return None
        return proposal if abs(changes[1]) <= abs(changes[0]) else before

    def _warn_if_unknown(self, observation: Observation) -> None:
        # A lower bound is enough for noise-scale, once there is a least value to compare it with.
        by_least = self._name == "noise-scale"
        needed = observation.least_noise if by_least else observation.noise_scale
        is_unknown = self._name in MEASURING and needed is None and observation.step > 0
        self._unknown = self._unknown + 1 if is_unknown else 0
        if self._unknown == _MAX_UNKNOWN:
            self._warn(
                f"policy {self._name} does not change the batch size while the noise scale is "
                f"unknown, and it is unknown after {_MAX_UNKNOWN} decisions; "
                "docs/training-watch.md says what it needs"
            )

"""The user's own policies: classes whose methods are called during the training, on rank 0."""

from __future__ import annotations

import importlib
import math
import numbers
from typing import TYPE_CHECKING, Any

from zeusrun.worker.adapt.policies import Proposal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.adapt.policies import Observation

_METHODS = tuple(
    f"{when}_{what}" for when in ("before", "after") for what in ("train", "epoch", "step")
)


class UserPolicies:
    """Calls the methods that the user's classes have, and keeps the last batch size returned.

    Methods that begin with ``before_`` are called in the order of the job file, those that begin
    with ``after_`` in the reverse order.

    Args:
        names: The classes, as ``module:Class``.
        warn: Called with a sentence if a class fails; that class is not called again.

    Raises:
        RuntimeError: If a class cannot be imported, or created without arguments, or has none of
            the methods.
    """

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self._policies = [(name, _create(name)) for name in names]
        self._warn = warn
        self._proposal: Proposal | None = None

    def call(self, method: str, observation: Observation) -> None:
        """Call a method of every class that has it."""
        order = -1 if method.startswith("after_") else 1
        for name, policy in self._policies[::order]:
            problem = None
            try:
                function = getattr(policy, method, None)
                size = None if function is None else function(observation)
                if size is not None and not _is_batch_size(size):
                    problem = f"returned {_describe(size)}, which is no batch size"
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's class may do anything
                problem = f"raised {_describe(error)}"
            if problem is not None:
                self._policies = [each for each in self._policies if each[1] is not policy]
                self._warn(
                    f"{method} of {name} {problem}; the batch size stays as it was, and the class "
                    "is not called again in this run. Correct it"
                )
            elif size is not None:
                self._proposal = Proposal(float(size), f"{name} asked for {size}")

    def pop_proposal(self) -> Proposal | None:
        """Return the last batch size proposed since the last call; ``None`` if there is none."""
        proposal, self._proposal = self._proposal, None
        return proposal


def _create(name: str) -> Any:
    module, _, class_name = name.partition(":")
    try:
        policy = getattr(importlib.import_module(module), class_name)()
    except (Exception, SystemExit) as error:  # importing a script may raise SystemExit
        raise RuntimeError(
            f"zeusrun: adapt.batch_size.policy {name} cannot be used: {_describe(error)}. Correct "
            "the name in the job file, or the class. zeusrun creates it without arguments, from a "
            "module of its own, not from the script"
        ) from error
    if not any(hasattr(policy, method) for method in _METHODS):
        raise RuntimeError(
            f"zeusrun: adapt.batch_size.policy {name} has none of the methods that zeusrun calls: "
            f"{', '.join(_METHODS)}. Correct their names in the class"
        )
    return policy


def _is_batch_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's numbers are Real
        return False
    return math.isfinite(value) and float(value) >= 1


def _describe(value: object) -> str:
    try:
        if isinstance(value, BaseException):
            text = f"{type(value).__name__}: {value}"
        else:
            text = repr(value)
    except Exception:  # noqa: BLE001 - the user's class has its own __repr__ or __str__
        text = type(value).__name__
    return " ".join(text.split())[:300]

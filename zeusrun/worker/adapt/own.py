"""A user's own policies: classes whose methods are called during the training, on rank 0."""

from __future__ import annotations

import importlib
import math
import numbers
from typing import TYPE_CHECKING, Any

from zeusrun.worker.adapt.policies import Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.adapt.policies import Seen


class OwnPolicies:
    """Calls the methods that the user's classes have; the last batch size returned is the wish.

    Methods that begin with ``before_`` are called in the order of the job file, those that begin
    with ``after_`` in the reverse order.

    Args:
        names: The classes, as ``module:Class``.
        say_problem: Gets a sentence about a class that failed; it is not called again.

    Raises:
        RuntimeError: If a class cannot be imported, or made without arguments.
    """

    def __init__(self, names: Sequence[str], say_problem: Callable[[str], None]) -> None:
        self._policies = [(name, _make(name)) for name in names]
        self._say_problem = say_problem
        self._wish: Wish | None = None

    def call(self, method: str, seen: Seen) -> None:
        """Call a method of every class that has it."""
        order = -1 if method.startswith("after_") else 1
        for name, policy in self._policies[::order]:
            problem = None
            try:
                call = getattr(policy, method, None)
                wanted = None if call is None else call(seen)
                if wanted is not None and not _is_size(wanted):
                    problem = f"returned {_shown(wanted)}, which is no batch size"
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's class does
                problem = f"raised {_shown(error)}"
            if problem is not None:
                self._policies = [each for each in self._policies if each[1] is not policy]
                self._say_problem(
                    f"{method} of {name} {problem}; the batch size stays as it was, and the class "
                    "is not called again in this run. Correct it"
                )
            elif wanted is not None:
                self._wish = Wish(float(wanted), f"{name} asked for {wanted}")

    def take_wish(self) -> Wish | None:
        """Return the last batch size asked for since the last call of this."""
        wish, self._wish = self._wish, None
        return wish


def _make(name: str) -> Any:
    module, _, wanted = name.partition(":")
    try:
        return getattr(importlib.import_module(module), wanted)()
    except (Exception, SystemExit) as error:  # the import of a script may end in one
        raise RuntimeError(
            f"zeusrun: adapt.batch_size.policy {name} cannot be used: {_shown(error)}. Correct "
            "the name in the job file, or the class; it is made without arguments, and stands in "
            "a module of its own, not in the script"
        ) from error


def _is_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's are among them
        return False
    return math.isfinite(value) and float(value) >= 1


def _shown(value: object) -> str:
    try:
        text = (
            f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
        )
    except Exception:  # noqa: BLE001 - the user's own text, too
        text = type(value).__name__
    return " ".join(text.split())[:300]

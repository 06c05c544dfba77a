"""Creates objects of user classes that the job file names, and describes their values."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def create_policy(key: str, name: str, methods: Sequence[str]) -> Any:  # noqa: ANN401 - of any class
    """Return an object of a user class; ``key`` is the key of the job file that names the class.

    Raises ``RuntimeError`` if the object cannot be created, or has none of ``methods``.
    """
    module, _, class_name = name.partition(":")
    try:
        policy = getattr(importlib.import_module(module), class_name)()
    except (Exception, SystemExit) as error:  # importing a script may raise SystemExit
        raise RuntimeError(
            f"zeusrun: {key} {name} cannot be used: {describe(error)}. Correct the name in the "
            "job file, or the class. zeusrun creates it without arguments, from a module of its "
            "own, not from the script"
        ) from error
    if not any(hasattr(policy, method) for method in methods):
        raise RuntimeError(
            f"zeusrun: {key} {name} has none of the methods that zeusrun calls: "
            f"{', '.join(methods)}. Correct their names in the class"
        )
    return policy


def describe(value: object) -> str:
    """Return a value or an exception of user code as one short line."""
    try:
        is_error = isinstance(value, BaseException)
        text = f"{type(value).__name__}: {value}" if is_error else repr(value)
    except Exception:  # noqa: BLE001 - the user's class has its own __repr__ or __str__
        text = type(value).__name__
    return " ".join(text.split())[:300]

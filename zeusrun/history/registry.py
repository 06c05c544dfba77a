"""Opens the history that ``ZEUSRUN_HISTORY`` names; by default TinyDB files in the home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.errors import UsageError
from zeusrun.history.base import History
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.plugins import load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

HISTORY_VARIABLE = "ZEUSRUN_HISTORY"
HISTORIES: dict[str, Callable[[Path], History]] = {
    "tinydb": lambda home: TinyDBHistory(home / "history")
}
"""By name: how to open the history of a home directory."""


def open_history(home: Path, environment: Mapping[str, str]) -> History:
    """Open the history of a home directory.

    Raises:
        UsageError: If neither zeusrun nor an installed plugin has a history of that name.
    """
    name = environment.get(HISTORY_VARIABLE) or "tinydb"
    create: Any = HISTORIES.get(name) or load_plugin("zeusrun.histories", name)
    history = create(home) if callable(create) else None
    if not isinstance(history, History):
        raise UsageError(
            f"{HISTORY_VARIABLE} is {name!r}, but no installed plugin makes such a history; unset "
            "it to use zeusrun's own (docs/python-api.md describes plugins)"
        )
    return history

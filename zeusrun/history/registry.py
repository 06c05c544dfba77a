"""Opens the history that ``ZEUSRUN_HISTORY`` names; by default TinyDB files in the home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.history.base import History
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.plugins import create_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

HISTORY_VARIABLE = "ZEUSRUN_HISTORY"
HISTORIES: dict[str, Callable[[Path], History]] = {
    "tinydb": lambda home: TinyDBHistory(home / "history")
}
"""By name: how to open the history of a home directory."""


def open_history(home: Path, environment: Mapping[str, str]) -> History:
    """Open the history of a home directory; raises ``UsageError`` if none has the name."""
    name = environment.get(HISTORY_VARIABLE) or "tinydb"
    if name in HISTORIES:
        return HISTORIES[name](home)
    history: History | None = create_plugin("zeusrun.histories", name, History, home)
    if history is None:
        raise UsageError(
            f"{HISTORY_VARIABLE} is {name!r}, but no installed plugin has that name; unset it to "
            "use zeusrun's own history (docs/python-api.md describes plugins)"
        )
    return history

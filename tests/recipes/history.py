"""A history like the built-in one, in a folder of its own."""

from __future__ import annotations

from zeusrun.history.tinydb.store import TinyDBHistory


def open_in(home):
    return TinyDBHistory(home / "elsewhere")

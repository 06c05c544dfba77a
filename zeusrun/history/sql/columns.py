"""The columns of the table of trials: copies of record fields for searches and for sums."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun.clock import unix_seconds
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

_CHARACTERS = 150  # of a text; an id has at most 102, an index row 2,704 bytes
_MAX_AMOUNT = 1e30  # a larger amount is invalid, and sums would overflow


class _Kind(NamedTuple):
    column: sa.types.TypeEngine[Any]
    convert: Callable[[Any], Any]


def _storable(text: str | None) -> str | None:
    """Return a text, cut to ``_CHARACTERS``; ``None`` if it has a character that is not printable.

    Databases refuse a NUL and half a surrogate pair.
    """
    return text[:_CHARACTERS] if text is not None and text.isprintable() else None


def _addable(amount: float | None) -> float | None:
    return amount if amount is not None and abs(amount) < _MAX_AMOUNT else None


_TEXT = _Kind(sa.String(_CHARACTERS), _storable)
_MOMENT = _Kind(sa.Double(), unix_seconds)  # Unix seconds
_AMOUNT = _Kind(sa.Double(), _addable)
_KINDS = {int: _Kind(sa.BigInteger(), int), float: _AMOUNT}


def _find_stored() -> dict[str, _Kind]:
    hints = typing.get_type_hints(Trial)
    first = {name: (typing.get_args(hint) or [hint])[0] for name, hint in hints.items()}
    stored = [field.name for field in fields(Trial) if field.metadata.get("stored")]
    return {
        name: _MOMENT if name.endswith("_at") else _KINDS.get(first[name], _TEXT) for name in stored
    }


_STORED = _find_stored()
SUMS = tuple(name for name, kind in _STORED.items() if kind is _AMOUNT)
"""The columns that are summed over runs."""


def build_columns() -> list[sa.Column[Any]]:
    """Return the columns; each has the name of its field."""
    return [sa.Column(name, kind.column) for name, kind in _STORED.items()]


def column_values(trial: Trial) -> dict[str, Any]:
    """Return the values of the columns for a trial, by the name of the field."""
    return {name: kind.convert(getattr(trial, name)) for name, kind in _STORED.items()}

"""The columns of trials: fields of the record with a copy of their own, to search and to add up."""

from __future__ import annotations

import typing
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun.clock import unix_seconds
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

_CHARACTERS = 150  # of a text: an id has 102 at most, and a row of an index 2,704 bytes
_MAX_AMOUNT = 1e30  # a larger amount is damaged, and sums would overflow


class _Kind(NamedTuple):
    column: sa.types.TypeEngine[Any]
    convert: Callable[[Any], Any]


def _storable(text: str | None) -> str | None:
    """Return a text; ``None`` if it has half a surrogate pair or a NUL, which databases refuse."""
    return text[:_CHARACTERS] if text is not None and text.isprintable() else None


def _addable(amount: float | None) -> float | None:
    return amount if amount is not None and abs(amount) < _MAX_AMOUNT else None


_TEXT = _Kind(sa.String(_CHARACTERS), _storable)
_MOMENT = _Kind(sa.Double(), unix_seconds)  # in Unix seconds
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
"""Columns that are added up over all runs."""


def build_columns() -> list[sa.Column[Any]]:
    """Return the columns, with the names of the fields."""
    return [sa.Column(name, kind.column) for name, kind in _STORED.items()]


def column_values(trial: Trial) -> dict[str, Any]:
    """Return what the columns of a trial contain."""
    return {name: kind.convert(getattr(trial, name)) for name, kind in _STORED.items()}

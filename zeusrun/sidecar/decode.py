"""Reads the events of the sidecar back; a script can write anything into the file."""

from __future__ import annotations

import contextlib
import json
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, get_args

from zeusrun.clock import is_moment
from zeusrun.sidecar.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN = json.JSONDecoder()
_MAX_TEXT = 1000


def decode_event(line: bytes) -> Event | None:
    """Return the event of a line; ``None`` if this version does not know its kind.

    Raises:
        ValueError: If the line is not an event; the message says why.
    """
    try:
        record = _parse(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for bad lines
    kind = record.get("event")
    if not isinstance(kind, str):
        raise ValueError("no 'event' in it")  # noqa: TRY004
    cls = _KINDS.get(kind)
    if cls is None:
        return None
    event: Event = cls(**{name: _value(name, *how, record) for name, how in _FIELDS[kind].items()})
    return event


def _parse(line: bytes) -> object:
    """Return what ``json.loads`` returns, in half the time where the line is only its value."""
    with contextlib.suppress(ValueError):
        text = line.decode()
        record, end = _PLAIN.raw_decode(text)
        if end == len(text):
            return record
    return json.loads(line)


def _value(name: str, kind: str, default: object, record: dict[str, Any]) -> object:
    """Return the value of a field of an event; its default if the record does not have it."""
    value = record.get(name)
    if name not in record and default is not MISSING:
        return default
    if kind == "bool":
        return value if isinstance(value, bool) else default
    if value is None and kind.endswith(" | None"):
        return None
    return _READERS[kind.removesuffix(" | None")](name, value)


def _moment(name: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and is_moment(value):
        return float(value)
    raise ValueError(f"{name!r} is not a finite number")


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{name!r} is not a whole number from 0")
    return value


def _number(name: str, value: object) -> float:
    if type(value) is float:
        return value
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, (int, float, str)):
            return float(value)
    raise ValueError(f"metric {name!r} is not a number")


def _numbers(name: str, values: object) -> dict[str, float]:
    if not isinstance(values, dict):
        raise ValueError(f"{name!r} is not an object")  # noqa: TRY004 - one error type
    return {key: _number(key, value) for key, value in values.items()}


def _list(name: str, values: object) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{name!r} is not a list")  # noqa: TRY004 - one error type
    return tuple(_number(name, value) for value in values)


_READERS: dict[str, Callable[[str, object], Any]] = {
    "moment": _moment,
    "int": _count,
    "float": _number,
    "str": lambda _, value: str(value)[:_MAX_TEXT],
    "Mapping[str, float]": _numbers,
    "tuple[float, ...]": _list,
}

_KINDS: dict[str, Any] = {cls.__name__.lower(): cls for cls in get_args(Event)}

# By kind of event and name of field: its type and its default.
_FIELDS = {
    kind: {
        each.name: ("moment" if each.name == "t" else str(each.type), each.default)
        for each in fields(cls)
    }
    for kind, cls in _KINDS.items()
}

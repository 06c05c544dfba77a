"""Reads the events of the sidecar back; a script can write anything into the file."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from zeusrun.clock import is_moment
from zeusrun.sidecar.events import (
    REPORT,
    Adapted,
    Applied,
    Asked,
    Built,
    Ended,
    Hooked,
    Loading,
    Observed,
    Reported,
    Spawned,
    Started,
    Watched,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.sidecar.events import Event

_PLAIN = json.JSONDecoder()


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
    decode = _DECODERS.get(kind)
    return None if decode is None else decode(_moment(record), record)


def _parse(line: bytes) -> object:
    """Return what ``json.loads`` returns, in half the time where the line is only its value."""
    with contextlib.suppress(ValueError):
        text = line.decode()
        record, end = _PLAIN.raw_decode(text)
        if end == len(text):
            return record
    return json.loads(line)


def _started(t: float, record: dict[str, Any]) -> Started:
    restart = _count({"restart": 0, **record}, "restart")
    return Started(t, _count(record, "rank"), _count(record, "pid"), restart)


def _asked(t: float, record: dict[str, Any]) -> Asked | None:
    choice = record.get("choice")
    return Asked(t, choice) if choice in ("batch_size", "learning_rate", "stop") else None


def _reported(t: float, record: dict[str, Any]) -> Reported:
    metrics = record.get("metrics")
    if not isinstance(metrics, dict):
        raise ValueError("'metrics' is not an object")  # noqa: TRY004 - one error type
    values = {name: _number(name, value) for name, value in metrics.items()}
    return Reported(
        t,
        _count(record, "epoch"),
        values,
        str(record.get("source", REPORT))[:100],
        _count({"parts": 1, **record}, "parts"),
        record.get("each_step") is True,
        _perhaps(record, "samples"),
        record.get("counted") is True,
        _perhaps(record, "steps"),
    )


def _hooked(t: float, record: dict[str, Any]) -> Hooked:
    problem = record.get("problem")
    library, version = str(record.get("library"))[:100], str(record.get("version"))[:100]
    return Hooked(t, library, version, None if problem is None else str(problem)[:1000])


def _observed(t: float, record: dict[str, Any]) -> Observed:
    rates = record.get("learning_rates", [])
    if not isinstance(rates, list):
        raise ValueError("'learning_rates' is not a list")  # noqa: TRY004
    return Observed(
        t,
        _count(record, "rank"),
        batches=_count(record, "batches"),
        learning_rates=tuple(_number("learning_rates", rate) for rate in rates),
        alone=record.get("alone") is True,
        step=_count(record, "step"),
        **{key: _perhaps(record, key) for key in ("samples", "replicas", "data", "length")},
    )


def _applied(t: float, record: dict[str, Any]) -> Applied:
    given, chosen = (_number(key, record.get(key)) for key in ("given", "chosen"))
    return Applied(t, str(record.get("choice")), given, chosen, str(record.get("where"))[:1000])


def _watched(t: float, record: dict[str, Any]) -> Watched:
    values = record.get("values")
    if not isinstance(values, dict):
        raise ValueError("'values' is not an object")  # noqa: TRY004 - one error type
    problem = record.get("problem")
    return Watched(
        t,
        _count(record, "model"),
        _count(record, "parameters"),
        {str(name): _number(name, value) for name, value in values.items()},
        str(record.get("how"))[:100],
        None if problem is None else str(problem)[:1000],
        _count(record, "rank"),
        _perhaps(record, "samples"),
    )


def _adapted(t: float, record: dict[str, Any]) -> Adapted:
    rate, problem = record.get("learning_rate"), record.get("problem")
    return Adapted(
        t,
        _count(record, "step"),
        _count(record, "epoch"),
        _count(record, "batch_size"),
        None if rate is None else _number("learning_rate", rate),
        str(record.get("why"))[:1000],
        None if problem is None else str(problem)[:1000],
    )


def _spawned(t: float, record: dict[str, Any]) -> Spawned:
    followed, launched = (record.get(key) is True for key in ("followed", "launched"))
    return Spawned(t, _count(record, "pid"), _perhaps(record, "world_size"), followed, launched)


def _ended(t: float, record: dict[str, Any]) -> Ended:
    grouped = record.get("grouped") is not False
    return Ended(t, _count(record, "rank"), _count(record, "code"), grouped)


_DECODERS: dict[str, Callable[[float, dict[str, Any]], Event | None]] = {
    "started": _started,
    "asked": _asked,
    "reported": _reported,
    "hooked": _hooked,
    "loading": lambda t, _: Loading(t),
    "built": lambda t, _: Built(t),
    "observed": _observed,
    "applied": _applied,
    "watched": _watched,
    "adapted": _adapted,
    "spawned": _spawned,
    "ended": _ended,
}


def _moment(record: dict[str, Any]) -> float:
    t = record.get("t")
    if isinstance(t, (int, float)) and not isinstance(t, bool) and is_moment(t):
        return float(t)
    raise ValueError("'t' is not a finite number")


def _count(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(f"{key!r} is not a whole number from 0")
    return value


def _perhaps(record: dict[str, Any], key: str) -> int | None:
    return None if record.get(key) is None else _count(record, key)


def _number(name: str, value: object) -> float:
    if type(value) is float:
        return value
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(value, (int, float, str)):
            return float(value)
    raise ValueError(f"metric {name!r} is not a number")

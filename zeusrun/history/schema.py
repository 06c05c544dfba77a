"""The content of a history file: the tables ``meta`` and ``trials`` as JSON.

A reader ignores and keeps fields and tables that it does not know. Whatever an older reader would
misread, such as a new status, needs a new schema number.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = 3  # 2 added the stages ``look`` and ``retry``, 3 added volumes

Tables: TypeAlias = dict[str, dict[str, Any]]

_RECORD_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class DamagedError(Exception):
    """A file is not a history. Callers of this package get a ``HistoryError`` instead."""


class NewerError(Exception):
    """A file has a later schema than this version reads."""


def empty_tables() -> Tables:
    """Return the tables of a history without trials."""
    return {"meta": {"1": {"schema": SCHEMA}}, "trials": {}}


def encode_tables(tables: Tables) -> bytes:
    """Return the content of a file, in today's schema.

    Raises:
        DamagedError: If an unknown field is a number that JSON cannot express.
    """
    headers = {
        number: {**header, "schema": SCHEMA} if "schema" in header else header
        for number, header in tables["meta"].items()
    }
    try:
        # Without indentation, so that json uses its C encoder.
        text = json.dumps({**tables, "meta": headers}, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise DamagedError(str(error)) from error
    return text.encode() + b"\n"


def decode_tables(data: bytes) -> Tables:
    """Read the content of a file. It checks that trials are JSON objects, and no more.

    Raises:
        DamagedError: If this is not the content of a history.
        NewerError: If a later version wrote it.
    """
    if not data.strip():
        raise DamagedError("it is empty")
    try:
        tables = json.loads(data.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise DamagedError("it is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it is not JSON: {error}") from error
    if not isinstance(tables, dict):
        raise DamagedError("it contains no tables")
    schemas = [each["schema"] for each in _records(tables, "meta") if "schema" in each]
    if not schemas or any(type(schema) is not int or schema < 1 for schema in schemas):
        raise DamagedError("its header names no schema")
    if max(schemas) > SCHEMA:
        raise NewerError(f"it has schema {max(schemas)}, this version reads up to {SCHEMA}")
    _records(tables, "trials")
    return tables


def encode_trial(trial: Trial) -> dict[str, Any]:
    """Return the record of a trial.

    Raises:
        ValueError: If it would not read back equal: a number that is not finite, a wrong type.
    """
    try:
        record = trial.to_json()
        back = Trial.from_json(json.loads(json.dumps(record, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"trial {trial.trial} cannot be stored: {error}") from error
    if back != trial:
        raise ValueError(f"trial {trial.trial} cannot be stored: it would read back differently")
    return record


def decode_trials(records: Iterable[Mapping[str, Any]], job: str) -> list[Trial]:
    """Read the records of a job's trials.

    Raises:
        DamagedError: If one is not a trial of this job, or two have the same id.
    """
    trials: dict[str, Trial] = {}
    for number, record in enumerate(records, start=1):
        try:
            trial = Trial.from_json(dict(record))
        except ValueError as error:
            raise DamagedError(f"trial number {number}: {error}") from error
        if trial.job != job:
            raise DamagedError(f"trial number {number}: it is of job {trial.job!r}")
        if trials.setdefault(trial.trial, trial) is not trial:
            raise DamagedError(f"trial {trial.trial} is there twice")
    return list(trials.values())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _records(tables: dict[str, Any], name: str) -> list[dict[str, Any]]:
    table = tables.get(name)
    if not isinstance(table, dict) or not all(type(item) is dict for item in table.values()):
        raise DamagedError(f"it has no table {name!r} of records")
    for number in table:
        # TinyDB turns the keys into numbers; "1" and "01" would become one record.
        if not _RECORD_NUMBER.fullmatch(number):
            raise DamagedError(f"table {name!r} has a record {number!r:.40}")
    return list(table.values())

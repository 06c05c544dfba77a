"""What a history file holds: tables ``meta`` and ``trials`` as JSON. Pure.

A reader ignores and keeps what it does not know, so new fields and tables come without a new
schema number. Anything that an older reader would misread needs one: a new status, a new unit.

Schema 2 knows the stages ``look`` and ``retry``; schema 3, trials that have moved into volumes.
What was read of an earlier one is written as today's.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = 3

Tables: TypeAlias = dict[str, dict[str, Any]]

_RECORD_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class DamagedError(Exception):
    """A file is not a history; says why. Stays inside this room."""


class NewerError(Exception):
    """A file is of a later schema than this version reads. Stays inside this room."""


def empty_tables() -> Tables:
    """Return the tables of a history without trials."""
    return {"meta": {"1": {"schema": SCHEMA}}, "trials": {}}


def encode_tables(tables: Tables) -> bytes:
    """Return the content of a file, under today's schema whichever the tables were read with.

    Raises:
        DamagedError: If a number is not finite. It was read so: ours are checked before.
    """
    headers = {
        number: {**header, "schema": SCHEMA} if "schema" in header else header
        for number, header in tables["meta"].items()
    }
    try:
        # Compact, because the C encoder does not indent and rewriting is what a begin costs.
        text = json.dumps({**tables, "meta": headers}, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise DamagedError(str(error)) from error
    return text.encode() + b"\n"


def decode_tables(data: bytes) -> Tables:
    """Read the content of a file. Trials are only known to be JSON objects after it.

    Raises:
        DamagedError: If it is not such a content.
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
        raise DamagedError("it holds no tables")
    headers = [header for header in _documents(tables, "meta") if "schema" in header]
    schemas = [header["schema"] for header in headers]
    if not schemas or any(type(schema) is not int or schema < 1 for schema in schemas):
        raise DamagedError("its header names no schema")
    if max(schemas) > SCHEMA:
        raise NewerError(f"it has schema {max(schemas)}, this version reads up to {SCHEMA}")
    _documents(tables, "trials")
    return tables


def encode_trial(trial: Trial) -> dict[str, Any]:
    """Return the document of a trial, having made sure that it can be read back.

    Raises:
        ValueError: If it would not read back equal: a number that is not finite, a wrong type.
    """
    try:
        record = trial.to_json()
        back = decode_trial(json.loads(json.dumps(record, allow_nan=False)), trial.job)
    except (TypeError, ValueError) as error:
        raise ValueError(f"trial {trial.trial} cannot be stored: {error}") from error
    if back != trial:
        raise ValueError(f"trial {trial.trial} would not read back as it is")
    return record


def decode_trial(document: Mapping[str, Any], job: str) -> Trial:
    """Read the document of a trial of this job.

    Raises:
        ValueError: If it is not one.
    """
    trial = Trial.from_json(dict(document))
    if trial.job != job:
        raise ValueError(f"it is of job {trial.job!r}")
    return trial


def decode_trials(documents: Iterable[Mapping[str, Any]], job: str) -> list[Trial]:
    """Read the documents of all trials of a job.

    Raises:
        DamagedError: If one is not a trial of this job, or an id is there twice.
    """
    trials: dict[str, Trial] = {}
    for number, document in enumerate(documents, start=1):
        try:
            trial = decode_trial(document, job)
        except ValueError as error:
            raise DamagedError(f"trial number {number}: {error}") from error
        if trials.setdefault(trial.trial, trial) is not trial:
            raise DamagedError(f"trial {trial.trial} is there twice")
    return list(trials.values())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _documents(tables: dict[str, Any], name: str) -> list[dict[str, Any]]:
    table = tables.get(name)
    if not isinstance(table, dict) or not all(type(item) is dict for item in table.values()):
        raise DamagedError(f"it has no table {name!r} of records")
    for number in table:
        # TinyDB turns the keys into numbers; "1" and "01" would become one record.
        if not _RECORD_NUMBER.fullmatch(number):
            raise DamagedError(f"table {name!r} has a record {number!r:.40}")
    return list(table.values())

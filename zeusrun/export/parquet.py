"""Runs as a Parquet file, with the types that ``Trial`` declares."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.amounts import SAVED
from zeusrun.clock import local_time
from zeusrun.errors import HistoryError
from zeusrun.plain_text import storable_text
from zeusrun.plugins import check_extra
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TIMES = {"started_at", "finished_at"}


def parquet_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the records of trials as a Parquet file.

    A list of points is a list of structs, and a time is a timestamp in UTC.

    Args:
        records: As ``history --json`` prints them, what they saved included.

    Raises:
        UsageError: If pyarrow is not installed.
        HistoryError: If a number of the history does not fit into its column.
    """
    check_extra("--format parquet", "parquet", "pyarrow")
    import pyarrow as pa  # noqa: PLC0415 - optional, and slow to import
    from pyarrow.parquet import write_table  # noqa: PLC0415

    kinds = {**typing.get_type_hints(Trial), **dict.fromkeys(SAVED, float)}
    columns = {}
    for name, kind in kinds.items():
        cells = [_cell(name, kind, record.get(name)) for record in records]
        try:
            columns[name] = pa.array(cells, _arrow_type(pa, name, kind))
        except (pa.ArrowException, OverflowError) as error:
            raise HistoryError(
                f"the history has a value of {name!r} that no column can hold: {error}; "
                "'--format jsonl' exports it"
            ) from error
    sink = pa.BufferOutputStream()
    write_table(pa.table(columns), sink)
    return typing.cast("bytes", sink.getvalue().to_pybytes())


def _arrow_type(pa: Any, name: str, kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    if name in _TIMES:
        return pa.timestamp("ms", tz="UTC")
    if isinstance(kind, types.UnionType):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is tuple:
        return pa.list_(_arrow_type(pa, "", typing.get_args(kind)[0]))
    if typing.get_origin(kind) is dict:
        return pa.map_(pa.string(), pa.string())
    if issubclass(kind, tuple):
        hints = typing.get_type_hints(kind)
        return pa.struct([(each, _arrow_type(pa, "", hints[each])) for each in hints])
    found = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    return found.get(kind, pa.string())  # also for an Enum


def _cell(name: str, kind: Any, value: Any) -> Any:  # noqa: ANN401 - a value of any field
    if name in _TIMES:
        return local_time(value or "")
    if isinstance(value, list):
        names = getattr(typing.get_args(kind)[0], "_fields", None)
        return [
            dict(zip(names, each, strict=True)) if names else storable_text(each) for each in value
        ]
    if isinstance(value, dict):
        return [(storable_text(key), storable_text(text)) for key, text in value.items()]
    return storable_text(value) if isinstance(value, str) else value

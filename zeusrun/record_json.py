"""Writes frozen records as plain JSON values, and reads them back by the types of their fields."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")
_Reader: typing.TypeAlias = "Callable[[Any], Any]"

MAX_COUNT = 1 << 53
"""A larger number of steps or ranks comes from a damaged file, and is not exact as a float."""
_READERS: dict[type, dict[str, _Reader]] = {}  # cached: a history has thousands of trials


def write_fields(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return the fields of a record as plain JSON values; a named tuple becomes a list."""
    return {field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)}


def read_fields(kind: type[_Record], record: dict[str, Any], what: str) -> _Record:
    """Read what ``write_fields`` wrote. Fields that this version does not know are ignored.

    Args:
        kind: The dataclass. A field with ``signed`` in its metadata may be negative.
        record: The fields of the dataclass.
        what: The name of the kind in messages, such as "a trial".

    Raises:
        ValueError: If a field is missing or has the wrong type.
    """
    readers = _READERS.get(kind)
    if readers is None:
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        readers = {each.name: _build_reader(each, hints[each.name], what) for each in fields}
        _READERS[kind] = readers
    try:
        return kind(**{n: readers[n](value) for n, value in record.items() if n in readers})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not {what}: {error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - a value of any field
    if isinstance(value, tuple):
        return [list(each) if isinstance(each, tuple) else each for each in value]
    if isinstance(value, dict):
        return dict(value)
    return value.value if isinstance(value, Enum) else value


def _build_reader(field: dataclasses.Field[Any], hint: Any, what: str) -> _Reader:  # noqa: ANN401 - a type of any form
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return _read_texts if element is str else _build_table_reader(element)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    expected, optional, name = options[0], type(None) in options, field.name
    is_amount = _is_amount(name, expected) and not field.metadata.get("signed")
    if typing.get_origin(expected) is dict:
        return lambda value: None if value is None else _read_words(name, value, what)

    def read(value: Any) -> Any:  # noqa: ANN401 - JSON is any
        if value is None and optional:
            return None
        if type(value) in (int, float) and value < 0 and is_amount:
            raise ValueError(f"not {what}: {name} is {value!r}, and less than 0")
        if expected is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if type(value) is expected and expected is not float:
            if expected is int and abs(value) > MAX_COUNT:
                raise ValueError(f"not {what}: {name} is a number of {len(str(value))} digits")
            return value
        if issubclass(expected, Enum):
            return expected(value)
        raise ValueError(f"not {what}: {name} is {value!r}")

    return read


def _is_amount(name: str, kind: object) -> bool:
    """Whether a field must not be negative: counts, seconds, joules and watts."""
    return kind is int or name.endswith(("_s", "_j", "_w", "progress"))


def _build_table_reader(row: Any) -> _Reader:  # noqa: ANN401 - a named tuple
    hints = typing.get_type_hints(row)
    columns = [_types(hint) for hint in hints.values()]
    amounts = [_is_amount(name, hint) for name, hint in hints.items()]

    def read(rows: Any) -> Any:  # noqa: ANN401 - JSON is any
        # By column, as that is fast.
        table = zip(zip(*rows, strict=True), columns, amounts, strict=True) if rows else ()
        for values, kinds, is_amount in table:
            if not set(map(type, values)) <= kinds:
                raise ValueError(_NO_POINT)
            if str not in kinds and not all(map(math.isfinite, filter(None, values))):
                raise ValueError(_NO_POINT)
            if is_amount and min(filter(None, values), default=0) < 0:
                raise ValueError(_NO_POINT)
        return tuple(map(row._make, rows))

    return read


_NO_POINT = "a point of the curve or of the power profile is no measurement"


def _types(hint: Any) -> set[type]:  # noqa: ANN401 - see above
    kinds = set(typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,))
    return kinds | {int} if float in kinds else kinds  # JSON has one kind of number


def _read_words(name: str, words: Any, what: str) -> dict[str, str]:  # noqa: ANN401 - see above
    if type(words) is not dict or not {str}.issuperset(map(type, [*words, *words.values()])):
        raise ValueError(f"not {what}: {name} is {words!r}")
    return dict(words)


def _read_texts(texts: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON is any
    if type(texts) is not list or not {str}.issuperset(map(type, texts)):
        raise ValueError("a warning is not a sentence")
    return tuple(texts)

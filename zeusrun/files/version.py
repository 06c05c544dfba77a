"""The version that each file of the home names, and the refusal of a newer one.

A reader ignores fields that it does not know. A change needs a new version if an older reader would
misread the file, or lose data when it writes the file again. zeusrun 0.1.0 writes version 1.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.errors import HistoryError, ZeusrunError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_Kind = TypeVar("_Kind")

_PLAIN: dict[str, set[type]] = {"str": {str}, "float": {int, float}, "int": {int}, "bool": {bool}}
_TOO_LARGE = 1e11  # no time in Unix seconds is so large


def check_version(
    record: dict[str, Any], known: int, path: Path, error: type[ZeusrunError] = HistoryError
) -> None:
    """Check the ``version`` of a file: a newer zeusrun may have written it.

    Raises:
        HistoryError: If the version is newer than ``known``; or ``error``, if it is given.
        ValueError: If there is no version: the file is damaged.
    """
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise ValueError("it names no version")
    if version > known:
        raise error(
            f"{path} was written by a newer zeusrun (format {version}; this one knows {known}); "
            "upgrade zeusrun, or use another ZEUSRUN_HOME"
        )


def build_known(kind: type[_Kind], record: Mapping[str, Any], **own: object) -> _Kind:
    """Return a dataclass with the fields that a record has and it knows; ``own`` ones win.

    Raises:
        TypeError: If a field for a text, a number or a flag holds another kind of value, or a
            number that no file of the home contains.
    """
    known = {each.name: record[each.name] for each in fields(kind) if each.name in record}  # type: ignore[arg-type]
    for each in fields(kind):  # type: ignore[arg-type]
        value, (first, *none) = known.get(each.name), str(each.type).split(" | ")
        if each.name not in known or first not in _PLAIN or (none and value is None):
            continue
        wrong = isinstance(value, (int, float)) and not 0 <= value < _TOO_LARGE
        if wrong or type(value) not in _PLAIN[first]:
            raise TypeError(f"{each.name} is {value!r}")
    return kind(**{**known, **own})

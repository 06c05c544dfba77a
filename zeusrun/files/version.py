"""The version that each file of the home names, and the refusal of a newer one.

A reader ignores fields that it does not know. Whatever it would misread, or must not lose when it
writes the file again, needs a new version. All files begin with version 1, in zeusrun 0.1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.errors import HistoryError, ZeusrunError

if TYPE_CHECKING:
    from pathlib import Path


def check_version(
    record: dict[str, Any], known: int, path: Path, error: type[ZeusrunError] = HistoryError
) -> None:
    """Refuse the content of a file that a newer zeusrun has written, by its ``version``.

    Raises:
        HistoryError: If the version is newer than ``known``; another ``error`` if one is given.
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

"""The version that each file of the home names, and the refusal of a newer one.

A reader ignores fields that it does not know. A change needs a new version if an older reader would
misread the file, or lose data when it writes the file again. zeusrun 0.1.0 writes version 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.errors import HistoryError, ZeusrunError

if TYPE_CHECKING:
    from pathlib import Path


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

"""Resolves and checks the paths that a job file names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.jobfile.placeholders import expand_placeholders, find_placeholders

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import ValidationInfo

_MAIN = ("__main__.py", "__main__.pyc")


def resolve_path(source: Path, text: str, *, escape: bool = False) -> Path:
    """Return the absolute form of a path in the job file ``source``.

    ``escape`` doubles a ``$`` in the directory, for a result that will be expanded.
    """
    directory = str(source.parent)
    return Path(os.path.normpath(Path(directory.replace("$", "$$") if escape else directory, text)))


def check_path(
    info: ValidationInfo, text: str, exists: Callable[[Path], bool], what: str, lacks: str = ""
) -> None:
    """Raise ``ValueError`` if a path is missing; one with a placeholder cannot be checked yet.

    ``lacks`` says what a directory would need.
    """
    if not find_placeholders(text):
        path = resolve_path(info.data["source"], expand_placeholders(text, {}))
        if not exists(path):
            if os.path.isdir(path):  # noqa: PTH112 - never raises
                raise ValueError(f"{what}, but it is a directory{lacks}: {path}")
            raise ValueError(f"{what} that is missing: {path}")


def can_run(path: Path) -> bool:
    """Whether Python may run a path: a file, or a folder with a ``__main__.py``."""
    return any(os.path.isfile(each) for each in (path, *(path / name for name in _MAIN)))  # noqa: PTH113 - never raises

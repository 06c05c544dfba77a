"""The paths in a job file: relative to the file, and there when they are needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError
from zeusrun.jobfile.placeholders import expand_placeholders
from zeusrun.jobfile.yaml_reader import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.jobfile.yaml_reader import JobDocument


def resolve_path(source: Path, text: str, *, escape: bool = False) -> Path:
    """Return a path of the job file ``source`` made absolute; ``..`` as people read it.

    Args:
        source: The job file, absolute.
        text: The path; relative to the directory of ``source``.
        escape: The result will be expanded once more, so a ``$`` in the directory is doubled.
    """
    directory = str(source.parent)
    if escape:
        directory = directory.replace("$", "$$")
    return Path(os.path.normpath(Path(directory, text)))


def find_missing_paths(document: JobDocument, source: Path) -> Iterator[Problem]:
    """Look for the script and the workdir on disk, unless a placeholder decides where they are."""
    for key, exists, kind in (
        ("script", os.path.isfile, "file"),  # unlike Path.is_file it is False for any odd name
        ("workdir", os.path.isdir, "directory"),
    ):
        text = document.data.get(key)
        if not isinstance(text, str) or not text or "\0" in text:
            continue
        try:
            path = resolve_path(source, expand_placeholders(text, {}))
        except JobFileError:
            continue  # it has placeholders; a wrong one is reported by the model
        if not exists(path):
            yield Problem((key,), f"'{key}' names a {kind} that is missing: {path}")

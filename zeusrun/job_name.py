"""The rule for the name of a job: one for job files, histories, schedules and run directories."""

from __future__ import annotations

import re

# One path component, never "..", in characters that every file system and terminal can show.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
JOB_NAME = f"^{_NAME.pattern}$"
"""The same rule for a JSON schema."""
_PATTERN = re.compile(r"(?=.{1,200}\Z)(?:[A-Za-z0-9._*?-]|\[!?[A-Za-z0-9._-]+\])+")


def is_job_name(name: str) -> bool:
    """Whether a job can have this name."""
    return _NAME.fullmatch(name) is not None


def check_job_name(name: str) -> str:
    """Return ``name`` if a job can have it.

    Raises:
        ValueError: If not. The message continues a sentence that starts with a key or a name.
    """
    if not is_job_name(name):
        raise ValueError(
            "must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or digit "
            f"(the name of a job is also the name of its directory), not {name[:70]!r}"
        )
    return name


def is_job_pattern(text: str) -> bool:
    """Whether a text is the name of a job, or a pattern of names, such as ``team-*``."""
    return _PATTERN.fullmatch(text) is not None

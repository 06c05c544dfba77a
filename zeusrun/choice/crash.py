"""Whether a crash would happen again."""

from __future__ import annotations

import re

USAGE = re.compile(r"exited with code 2$")
DAMAGED = "is a damaged package"
_BROKEN = re.compile(
    r"(?:^|: )(?:(?:Import|ModuleNotFound|Syntax|Indentation|Tab)Error\b|No module named )"
)


def is_permanent(reason: str, cause: str, *, same_choice: bool) -> bool:
    """Whether a crash would happen again, so that no retry is worth it.

    With another batch size, arguments that were a usage error (exit code 2) may be valid.
    """
    broken = _BROKEN.search(cause) or _BROKEN.search(reason)
    return (
        broken is not None or DAMAGED in reason or (same_choice and USAGE.search(cause) is not None)
    )

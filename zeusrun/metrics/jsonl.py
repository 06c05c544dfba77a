"""Files with one JSON object a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from zeusrun.metrics.lines import LineFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.metrics.rows import Run


def _read_object(line: bytes) -> tuple[int, Mapping[str, object]]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")  # noqa: TRY004 - one error type for bad lines
    return hash(line), {name: value for name, value in row.items() if value is not None}


def open_source(run: Run) -> LineFile:
    """Open the file that ``metrics.path`` names."""
    return LineFile(run, "key", lambda: _read_object)

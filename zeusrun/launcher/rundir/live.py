"""``live.json``: the state of a running trial, for ``status`` and for recovery."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from zeusrun.files.atomic import replace_file
from zeusrun.files.private import read_file
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from zeusrun.launcher.rundir.layout import RunPaths

_UNREADABLE = (
    *(OSError, ValueError, TypeError, AttributeError),
    *(LookupError, ArithmeticError, RecursionError),
)
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Live:
    """A running trial at one moment.

    Attributes:
        trial: Dispatched, with its time, energy, epochs and curve so far.
        pid: Process id of its launcher.
        host: The machine it runs on.
        updated_at: RFC 3339.
        power_w: Watts now; ``None`` if unknown.
        preempted: Whether a scheduler is ending it.
    """

    trial: Trial
    pid: int
    host: str
    updated_at: str
    power_w: float | None = None
    preempted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**record, "trial": self.trial.to_json()}


def write_live(paths: RunPaths, live: Live) -> None:
    """Replace the file. If that fails, the old one stays.

    It is not synced to disk: a power cut loses at most a second.
    """
    with contextlib.suppress(OSError):
        replace_file(paths.live, json.dumps(live.to_json()).encode(), durable=False)


def read_live(paths: RunPaths) -> Live | None:
    """Return the last state that a launcher wrote; ``None`` if it cannot be read."""
    try:
        record = json.loads(read_file(paths.live, _MAX_BYTES))
        return Live(
            Trial.from_json(dict(record["trial"])),
            int(record["pid"]),
            str(record["host"]),
            str(record["updated_at"]),
            _checked(record.get("power_w")),
            record.get("preempted") is True,
        )
    except _UNREADABLE:
        return None


def _checked(value: float | None) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number that JSON has")
    return float(value)

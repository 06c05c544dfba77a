"""The time of day: what schedules go by, and no measure of how long anything takes."""

from __future__ import annotations

from datetime import datetime, timezone


def read_clock() -> float:
    """Return the time of day in Unix seconds."""
    return datetime.now(timezone.utc).timestamp()

"""The time of day: what records and schedules go by, and no measure of how long anything takes."""

from __future__ import annotations

from datetime import datetime, timezone


def read_clock() -> float:
    """Return the time of day in Unix seconds."""
    return datetime.now(timezone.utc).timestamp()


def timestamp(now: float | None = None) -> str:
    """Return a time as it is recorded: RFC 3339, in UTC, to the millisecond.

    Args:
        now: Unix seconds; by default, the time of day.
    """
    moment = datetime.fromtimestamp(read_clock() if now is None else now, timezone.utc)
    return moment.isoformat(timespec="milliseconds")

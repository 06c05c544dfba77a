"""The time of day, for records and schedules; durations need a monotonic clock."""

from __future__ import annotations

from datetime import datetime, timezone

MTIME_S = 0.02
"""The kernel dates what is written to a file up to one of its ticks too early."""


def read_clock() -> float:
    """Return the time of day in Unix seconds."""
    return datetime.now(timezone.utc).timestamp()


def unix_seconds(rfc3339: str | None) -> float | None:
    """Return a recorded time in Unix seconds; ``None`` if there is none."""
    moment = local_time(rfc3339 or "")
    return None if moment is None else moment.timestamp()


def timestamp(now: float | None = None) -> str:
    """Return Unix seconds, by default the time of day, as RFC 3339 in UTC to the millisecond."""
    moment = datetime.fromtimestamp(read_clock() if now is None else now, timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def local_time(rfc3339: str, zone: timezone | None = None) -> datetime | None:
    """Return a recorded time, by default in the local time zone; ``None`` if it is not a time."""
    try:
        return datetime.fromisoformat(rfc3339.replace("Z", "+00:00")).astimezone(zone)
    except (ValueError, OverflowError, OSError):  # also a year that the time zone does not reach
        return None


def is_moment(seconds: float) -> bool:
    """Whether the difference to any other moment is a number; never for NaN."""
    return abs(seconds) < 1 << 53

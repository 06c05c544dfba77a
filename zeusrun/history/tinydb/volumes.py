"""Volumes: files of a job's oldest trials, which keep its main file small and a write fast.

The header of the main file lists its volumes. A volume that it does not list is what a killed
writer or a restored history left, and is not read. A trial that can still change stays in the main
file, however old it is. Record numbers give the order of the trials across all files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.history.schema import DamagedError, Tables, empty_tables
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

# The main file contains up to two volumes' worth of finished trials. A submit reads and writes it
# twice, in about 0.2 ms for each trial of 20 epochs: benchmarks/long_history.py.
VOLUME_TRIALS = 100

_DISPATCHED = TrialStatus.DISPATCHED.value
_CAN_CHANGE = {_DISPATCHED, TrialStatus.PREEMPTED.value}


class Volume(NamedTuple):
    """What the main file says of a volume. ``number`` is in the file name and never used twice."""

    number: int
    trials: int
    last_record: int
    first_recurrence: int
    last_recurrence: int


class Header(NamedTuple):
    """What a main file says of its volumes.

    Attributes:
        volumes: Oldest first.
        following: The number for the next volume.
        changes: How often a trial in a volume was changed.
    """

    volumes: Sequence[Volume]
    following: int
    changes: int


def read_header(tables: Tables) -> Header:
    """Read the header of a main file.

    Raises:
        DamagedError: If it does not describe its volumes.
    """
    header = _header(tables)
    try:
        volumes = [Volume(*map(int, row)) for row in header.get("volumes", [])]
        following = int(header.get("next_volume", 1))
        changes = int(header.get("volume_changes", 0))
    except (TypeError, ValueError, OverflowError) as error:
        raise DamagedError("its header does not describe its volumes") from error
    numbers = [volume.number for volume in volumes]
    if min(numbers, default=1) < 1 or following <= max(numbers, default=0):
        raise DamagedError("its header would use the number of a volume again")
    return Header(volumes, following, changes)


def set_header(tables: Tables, header: Header) -> None:
    """Replace what the header of a main file says of its volumes."""
    _header(tables).update(
        volumes=[list(volume) for volume in header.volumes],
        next_volume=header.following,
        volume_changes=header.changes,
    )


def seal(tables: Tables, size: int) -> dict[int, Tables]:
    """Move the oldest finished trials of a main file into as many volumes as they fill.

    It moves nothing until there are more than two volumes' worth of them, so that the newest trials
    stay and at most every other write has to write a volume.

    Args:
        tables: The main file, whose trials have been decoded. It is changed.
        size: Trials in a volume.

    Returns:
        The volumes by number; write them before the main file.
    """
    records = tables["trials"]
    finished = [
        n for n, each in records.items() if each.get("status", _DISPATCHED) not in _CAN_CHANGE
    ]
    finished.sort(key=int)
    volumes, following, changes = read_header(tables)
    sealed = {}
    while len(finished) > 2 * size:
        numbers, finished = finished[:size], finished[size:]
        moved = {number: records.pop(number) for number in numbers}
        recurrences = [record["recurrence"] for record in moved.values()]
        volume = Volume(following, size, int(numbers[-1]), min(recurrences), max(recurrences))
        volumes = [*volumes, volume]
        sealed[following] = {**empty_tables(), "trials": moved}
        following += 1
    if sealed:
        set_header(tables, Header(volumes, following, changes))
    return sealed


def _header(tables: Tables) -> dict[str, Any]:
    return next(header for header in tables["meta"].values() if "schema" in header)

"""Which trials move out of a job's main file, so that a write stays as quick as the first. Pure.

A volume is a file of the oldest finished trials, never changed again, but for the mark of one that
is forgotten. The header of the main file
lists its volumes; a volume that no header lists is what a dying writer left, and says nothing.
Trials are in the order of their record numbers, across all files: what can still change stays in
the main file however old it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.history.schema import DamagedError, Tables, empty_tables
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.trial import Trial

# A submit reads and writes the main file twice, which is about 0.2 ms for each trial of 20 epochs
# in it, up to twice as many as this: benchmarks/long_history.py. Ten volumes of 100 are read as
# quickly as five of 200.
VOLUME_TRIALS = 100

_DISPATCHED = TrialStatus.DISPATCHED.value
_OPEN = {_DISPATCHED, TrialStatus.PREEMPTED.value}


class Volume(NamedTuple):
    """What the main file knows of a volume without opening it.

    Attributes:
        number: In its file name; none is used twice.
        trials: How many it holds.
        last_record: The highest record number in it.
        first_recurrence: The lowest recurrence in it.
        last_recurrence: The highest.
    """

    number: int
    trials: int
    last_record: int
    first_recurrence: int
    last_recurrence: int


def read_header(tables: Tables) -> tuple[list[Volume], int]:
    """Return the volumes of a main file, oldest first, and the number for the next one.

    Raises:
        DamagedError: If the header does not say so.
    """
    header = _header(tables)
    rows, following = header.get("volumes", []), header.get("next_volume", 1)
    if type(rows) is not list or not all(
        type(row) is list
        and len(row) == len(Volume._fields)
        and all(type(value) is int for value in row)
        and row[0] > 0
        for row in rows
    ):
        raise DamagedError("its header does not describe its volumes")
    volumes = [Volume(*row) for row in rows]
    numbers = [volume.number for volume in volumes]
    if type(following) is not int or len(set(numbers)) < len(numbers):
        raise DamagedError("its header does not number its volumes")
    if following <= max(numbers, default=0):
        raise DamagedError("its header would use the number of a volume again")
    return volumes, following


def with_header(tables: Tables, volumes: Sequence[Volume], following: int) -> Tables:
    """Return the tables of a main file with these volumes; the rest of its header stays."""
    number, header = next((n, h) for n, h in tables["meta"].items() if "schema" in h)
    header = {**header, "volumes": [list(volume) for volume in volumes], "next_volume": following}
    return {**tables, "meta": {**tables["meta"], number: header}}


def count_changes(tables: Tables) -> int:
    """Return how often a volume was changed after it was written.

    Raises:
        DamagedError: If the header does not say so.
    """
    count = _header(tables).get("volume_changes", 0)
    if type(count) is not int:
        raise DamagedError("its header does not count the changes of its volumes")
    return count


def note_change(tables: Tables) -> None:
    """Count a change of a volume in the header of its main file."""
    _header(tables)["volume_changes"] = count_changes(tables) + 1


def seal(tables: Tables, size: int) -> tuple[Tables, dict[int, Tables]]:
    """Take the oldest finished trials out of a main file, as many volumes as there are full ones.

    Nothing happens until it holds more than two volumes' worth, so that of two writes at least one
    seals nothing, and the newest trials stay.

    Args:
        tables: Of a main file whose trials are known to be trials.
        size: Trials in a volume.

    Returns:
        The main file without them, and the volumes by number, to be on disk before it is.
    """
    finished = [
        key
        for key, record in tables["trials"].items()
        if record.get("status", _DISPATCHED) not in _OPEN
    ]
    if len(finished) <= 2 * size:
        return tables, {}
    finished.sort(key=int)
    volumes, following = read_header(tables)
    main = dict(tables["trials"])
    sealed = {}
    while len(finished) > 2 * size:
        keys, finished = finished[:size], finished[size:]
        records = {key: main.pop(key) for key in keys}
        recurrences = [record["recurrence"] for record in records.values()]
        volumes.append(Volume(following, size, int(keys[-1]), min(recurrences), max(recurrences)))
        sealed[following] = {**empty_tables(), "trials": records}
        following += 1
    return with_header({**tables, "trials": main}, volumes, following), sealed


def collect(
    main: dict[int, Trial],
    volumes: Sequence[Volume],
    last: int | None,
    read: Callable[[Volume], dict[int, Trial]],
) -> list[Trial]:
    """Return the newest trials of a job, oldest first, reading only the volumes that hold them.

    Args:
        main: The trials of the main file by record number.
        volumes: Oldest first.
        last: How many; ``None`` for all.
        read: Returns the trials of a volume by record number.
    """
    known = dict(main)
    for count in range(len(volumes), 0, -1):
        # Newer than all that is not read yet.
        edge = max(volume.last_record for volume in volumes[:count])
        if last is not None and sum(number > edge for number in known) >= last:
            break
        known.update(read(volumes[count - 1]))
    trials = [known[number] for number in sorted(known)] if volumes else list(known.values())
    return trials if last is None else trials[len(trials) - min(last, len(trials)) :]


def _header(tables: Tables) -> dict[str, Any]:
    return next(header for header in tables["meta"].values() if "schema" in header)

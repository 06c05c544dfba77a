"""How a job's history is rebuilt from its last good copy, its volumes and its run directories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.errors import HistoryError
from zeusrun.history.rules import check_numbers
from zeusrun.history.schema import (
    DamagedError,
    Tables,
    decode_trials,
    empty_tables,
    encode_tables,
    encode_trial,
)
from zeusrun.history.tinydb.storage import (
    copy_path,
    explained,
    latest_aside,
    restore_command,
    set_aside,
    stored_volumes,
    volume_path,
    written_at,
)
from zeusrun.history.tinydb.stored import read_file, read_volume
from zeusrun.history.tinydb.volumes import read_header, with_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime
    from pathlib import Path

    from zeusrun.trial import Trial

    Record: TypeAlias = tuple[Trial, dict[str, Any]]


@dataclass(frozen=True)
class State:
    """What a main file, or the copy of one, holds.

    Attributes:
        name: ``present`` for the history itself, ``bak`` for the state before the last write.
        written_at: When: RFC 3339, in UTC, to the second.
        tables: ``None`` if it does not read.
        damage: Why it does not; ``None`` if it does.
    """

    name: str
    written_at: str
    tables: Tables | None
    damage: str | None = None


@dataclass(frozen=True)
class Restoration:
    """What a ``restore`` did.

    Attributes:
        copy: What it started from, ``present`` or ``bak``; ``None``: nothing could be read.
        written_at: When that was written; ``None`` if nothing could be read.
        trials: How many trials the history has now.
        found: Ids of those that the run directories knew more of than copy and volumes, oldest
            first.
        aside: Where the history that was there is kept; ``None`` if there was none.
        lost: Empty if nothing can be lost; ``None`` if something does not read, so that nobody
            can say.
        problems: A sentence for each thing that could not be read.
    """

    copy: str | None
    written_at: str | None
    trials: int
    found: tuple[str, ...]
    aside: Path | None
    lost: tuple[str, ...] | None
    problems: tuple[str, ...]


def _read_state(path: Path, name: str, job: str) -> State | None:
    """Read a main file or its copy; ``None`` if there is none.

    Raises:
        HistoryError: If a later version wrote it, or the disk refuses.
    """
    with explained("read", path):
        try:
            written = f"{written_at(path):%Y-%m-%dT%H:%M:%SZ}"
        except FileNotFoundError:
            return None
    try:
        tables = read_file(path)
        if tables is None:
            return None
        count_trials(tables, job)
    except DamagedError as damage:
        return State(name, written, None, str(damage))
    return State(name, written, tables)


def merge(sources: Iterable[Iterable[Record]]) -> list[Record]:
    """Put together what several sources know: each trial once, in the order of its numbers. Pure.

    Of a trial that was preempted more often more is known; of one that has ended, more than of one
    that runs. Where that says nothing, the earlier source holds.
    """
    best: dict[str, Record] = {}
    for source in sources:
        for record in source:
            known = best.setdefault(record[0].trial, record)
            if _knows_more(record[0], known[0]):
                best[record[0].trial] = record
    return sorted(best.values(), key=lambda record: (record[0].recurrence, record[0].attempt))


@dataclass(frozen=True)
class Plan:
    """What a restoration is about to do.

    Attributes:
        tables: The main file to write, with all trials still in it.
        worth_keeping: Whether the main file that is there reads; ``None`` if there is none.
        damaged: Volumes to set aside afterwards.
        restoration: What to report.
    """

    tables: Tables
    worth_keeping: bool | None
    damaged: tuple[Path, ...]
    restoration: Restoration


def plan_restore(path: Path, job: str, found: Iterable[Trial]) -> Plan:
    """Read all that is known of a job and put it together; writes nothing.

    Args:
        path: The main file. The caller holds its lock.
        job: Whose it is.
        found: The trials that the run directories hold.

    Raises:
        HistoryError: If the history is of a later version, or the disk refuses.
    """
    problems: list[str] = []
    present = _read_state(path, "present", job)
    present_tables = None if present is None else present.tables
    if present is not None and present.damage is not None:
        problems.append(f"the history {path} was damaged: {present.damage}")
    start = present if present_tables is not None else _read_state(copy_path(path), "bak", job)
    if start is not None and start.damage is not None:
        problems.append(f"the copy {copy_path(path)} does not read: {start.damage}")
        start = None
    base = start.tables if start and start.tables else empty_tables()
    sealed, damaged = _read_volumes(path, job, base, problems)
    known = merge([_records(base, job), *sealed])
    merged = merge([known, _usable(found, job, problems)])
    before = {trial.trial: trial for trial, _ in known}
    after = {trial.trial: trial for trial, _ in merged}
    aside = latest_aside(path) if present is None else None
    unread = aside is not None or (present is not None and present_tables is None) or damaged
    # Fresh numbers: what is kept of earlier states still names the volumes that are there.
    following = [read_header(base)[1], *(number + 1 for number in stored_volumes(path))]
    records = {str(number): record for number, (_, record) in enumerate(merged, start=1)}
    return Plan(
        tables=with_header({**base, "trials": records}, [], max(following)),
        worth_keeping=None if present is None else present_tables is not None,
        damaged=tuple(damaged),
        restoration=Restoration(
            copy=None if start is None else start.name,
            written_at=None if start is None else start.written_at,
            trials=len(merged),
            found=tuple(name for name, trial in after.items() if before.get(name) != trial),
            aside=aside,
            lost=None if unread else (),
            problems=tuple(problems),
        ),
    )


def _read_volumes(
    path: Path, job: str, base: Tables, problems: list[str]
) -> tuple[list[list[Record]], list[Path]]:
    """Return the records of each volume that reads, and which are damaged.

    The ones of the base come first, then all others, those first that were written last.
    """
    named = [volume.number for volume in read_header(base)[0]]
    others = [number for number in reversed(stored_volumes(path)) if number not in named]
    sealed, damaged = [], []
    for number in [*named, *others]:
        volume = volume_path(path, number)
        try:
            tables = read_volume(volume)
            count_trials(tables, job)
            sealed.append(_records(tables, job))
        except DamagedError as damage:
            problems.append(f"the volume {volume} is damaged: {damage}")
            damaged.append(volume)
        except HistoryError as error:  # no damage: a disk that refuses, or a later version's
            if number in named:
                raise
            problems.append(f"the volume {volume} does not read: {error}")
    return sealed, damaged


def _usable(found: Iterable[Trial], job: str, problems: list[str]) -> list[Record]:
    records = []
    for trial in found:
        try:
            check_numbers(trial, job)
            records.append((trial, encode_trial(trial)))
        except ValueError as error:
            problems.append(f"a run directory holds what is no trial of {job}: {error}")
    return records


def _records(tables: Tables, job: str) -> list[Record]:
    records = list(tables["trials"].values())
    return list(zip(decode_trials(records, job), records, strict=True))


def _knows_more(trial: Trial, other: Trial) -> bool:
    return (trial.preemptions, trial.status.finished) > (other.preemptions, other.status.finished)


def build_refusal(path: Path, job: str, damage: DamagedError) -> HistoryError:
    """Set what is damaged aside and describe the way out. The caller holds the lock.

    Returns:
        The error to raise, naming the damaged file and offering its last good copy.

    Raises:
        HistoryError: If the damaged file cannot be set aside.
    """
    aside = set_aside(path)
    if aside is not None:
        problem = f"the history {path} is damaged ({damage}) and was set aside as {aside}"
    else:
        problem = f"the history {path} is missing"
        with explained("read", path):
            earlier = latest_aside(path)
        if earlier is not None:
            problem += f"; a damaged one was set aside as {earlier}"
    return HistoryError(f"{problem}; {_offer(path, job)}")


def count_trials(tables: Tables, job: str) -> int:
    """Return how many trials a main file and its volumes hold, having read those of the file.

    Raises:
        DamagedError: If they are not trials of this job, or could not be written again.
    """
    volumes, _ = read_header(tables)
    here = len(decode_trials(tables["trials"].values(), job))
    encode_tables(tables)
    return here + sum(volume.trials for volume in volumes)


def _offer(path: Path, job: str) -> str:
    """Say which copy there is and how to go on; a damaged copy is set aside, too."""
    copy, problem = copy_path(path), "it has no earlier copy"
    try:
        tables = read_file(copy)
        if tables is not None:
            count = count_trials(tables, job)
            with explained("read", copy):
                return _describe(count, written_at(copy), job)
    except DamagedError as damage:
        aside = set_aside(copy)
        problem = f"its copy {copy.name} is damaged, too ({damage}), and was set aside as {aside}"
    except HistoryError as error:
        problem = f"its copy is {copy}: {error}"
    with explained("read", path):
        left = copy.exists() or stored_volumes(path)
    if left:
        end = f"{restore_command(job)} goes on from what its volumes and run directories hold"
    else:
        end = (
            "the next run starts a fresh history, and "
            f"{restore_command(job)} adds what the run directories hold"
        )
    return f"{problem}; {end}"


def _describe(count: int, written: datetime, job: str) -> str:
    return (
        f"its last good copy has {count} trial{'' if count == 1 else 's'} and is of "
        f"{written:%Y-%m-%d %H:%M:%S} UTC; {restore_command(job)} goes on from it and from what "
        "the run directories hold"
    )

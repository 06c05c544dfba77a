"""Copies of a job's history, and how it is put together again from one and what else is known."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.errors import HistoryError
from zeusrun.history.rules import check_numbers
from zeusrun.history.schema import (
    DamagedError,
    Tables,
    decode_trials,
    empty_tables,
    encode_trial,
)
from zeusrun.history.tinydb.recovery import (
    count_trials,
    latest_aside,
    read_file,
    read_volume,
)
from zeusrun.history.tinydb.storage import (
    copy_path,
    day_copies,
    explained,
    stored_volumes,
    volume_path,
    written_at,
)
from zeusrun.history.tinydb.volumes import read_header, with_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from zeusrun.trial import Trial

    Record: TypeAlias = tuple[Trial, dict[str, Any]]


@dataclass(frozen=True)
class Copy:
    """An earlier state of a job's history.

    Attributes:
        name: What a user calls it: ``bak``, the state before the last write; ``day-20250601``, the
            state at the end of that day (UTC); ``replaced-…``, what a ``restore`` has replaced;
            ``present`` for the history itself.
        path: Its main file.
        trials: How many trials it has, those in its volumes included; ``None`` if it does not read.
        unreadable: Why it does not; ``None`` if it does.
        written_at: When that state was written: RFC 3339, in UTC, to the second.
    """

    name: str
    path: Path
    trials: int | None
    unreadable: str | None
    written_at: str


@dataclass(frozen=True)
class Restoration:
    """What a ``restore`` did.

    Attributes:
        copy: What it started from; ``None``: nothing could be read.
        trials: How many trials the history has now.
        found: Ids of those that the run directories knew more of than copy and volumes, oldest
            first.
        aside: Where the history that was there is kept; ``None`` if there was none.
        lost: Ids of trials of which only ``aside`` knows, or knows how they ended; ``None`` where
            it does not read, so that nobody can say.
        problems: A sentence for each thing that could not be read.
    """

    copy: Copy | None
    trials: int
    found: tuple[str, ...]
    aside: Path | None
    lost: tuple[str, ...] | None
    problems: tuple[str, ...]


def list_copies(path: Path, job: str) -> list[Copy]:
    """Return the copies of a history, newest state first; none for an unknown job.

    Raises:
        HistoryError: If the directory cannot be read.
    """
    with explained("read", path):
        paths = [copy_path(path), *day_copies(path), *path.parent.glob(f"{path.name}.replaced-*")]
    copies = [look_at(copy, copy.name.removeprefix(f"{path.name}."), job) for copy in paths]
    return sorted(filter(None, copies), key=lambda copy: copy.written_at, reverse=True)


def look_at(path: Path, name: str, job: str) -> Copy | None:
    """Describe the copy in a file; ``None`` if there is none."""
    trials, unreadable = None, None
    with explained("read", path):
        try:
            written = f"{written_at(path):%Y-%m-%dT%H:%M:%SZ}"
        except FileNotFoundError:
            return None
    try:
        tables = read_file(path)
        if tables is None:
            return None  # a writer has replaced it
        trials = count_trials(tables, job)
    except (DamagedError, HistoryError) as error:
        unreadable = str(error)
    return Copy(name, path, trials, unreadable, written)


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


def plan_restore(path: Path, job: str, copy: Copy | None, found: Iterable[Trial]) -> Plan:
    """Read all that is known of a job and put it together; writes nothing.

    Args:
        path: The main file. The caller holds its lock.
        job: Whose it is.
        copy: What to start from; ``None``: the newest state that reads, the present one included.
        found: The trials that the run directories hold.

    Raises:
        HistoryError: If ``copy`` does not read, or the history is of a later version.
    """
    problems: list[str] = []
    present, present_tables = _read_present(path, job)
    if present is not None and present.unreadable is not None:
        problems.append(f"the history {path} was damaged: {present.unreadable}")
    chosen, base = _choose(path, job, copy, (present, present_tables), problems)
    sealed, damaged = _read_volumes(path, job, base, problems)
    known = merge([_records(base, job), *sealed])
    merged = merge([known, _usable(found, job, problems)])
    before = {trial.trial: trial for trial, _ in known}
    after = {trial.trial: trial for trial, _ in merged}
    if present is None:
        lost: list[str] | None = None if latest_aside(path) else []
    elif present_tables is None or damaged:
        lost = None
    else:
        lost = [
            trial.trial
            for trial, _ in _records(present_tables, job)
            if trial.trial not in after or _knows_more(trial, after[trial.trial])
        ]
    # Fresh numbers: what is kept of earlier states still names the volumes that are there.
    following = [read_header(tables)[1] for tables in (base, present_tables) if tables]
    following += [number + 1 for number in stored_volumes(path)]
    records = {str(number): record for number, (_, record) in enumerate(merged, start=1)}
    return Plan(
        tables=with_header({**base, "trials": records}, [], max(following)),
        worth_keeping=None if present is None else present_tables is not None,
        damaged=tuple(damaged),
        restoration=Restoration(
            copy=chosen,
            trials=len(merged),
            found=tuple(name for name, trial in after.items() if before.get(name) != trial),
            aside=latest_aside(path) if present is None else None,
            lost=None if lost is None else tuple(lost),
            problems=tuple(problems),
        ),
    )


def _read_present(path: Path, job: str) -> tuple[Copy | None, Tables | None]:
    present = look_at(path, "present", job)
    if present is None or present.trials is not None:
        return present, read_file(path)
    with suppress(DamagedError):  # but not a later version, or a failing disk
        read_file(path)
    return present, None


def _choose(
    path: Path,
    job: str,
    copy: Copy | None,
    present: tuple[Copy | None, Tables | None],
    problems: list[str],
) -> tuple[Copy | None, Tables]:
    if copy is not None:
        again = look_at(copy.path, copy.name, job)
        if again is None or again.trials is None:
            why = again.unreadable if again else "it is not there any more"
            raise HistoryError(
                f"the copy {copy.path} cannot be restored: {why}; nothing was changed"
            )
        return again, read_file(copy.path) or empty_tables()
    if present[1] is not None:
        return present[0], present[1]
    for each in list_copies(path, job):
        if each.unreadable is not None:
            problems.append(f"the copy {each.path} does not read: {each.unreadable}")
        elif not each.name.startswith("replaced-"):
            return each, read_file(each.path) or empty_tables()
    return None, empty_tables()


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

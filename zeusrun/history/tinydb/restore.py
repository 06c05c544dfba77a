"""Rebuilds a job's history from its last good copy, its volumes and its run directories."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.files.private import keep_link
from zeusrun.history.base import Restoration
from zeusrun.history.rules import check_numbers, encode_trial
from zeusrun.history.tinydb import storage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.trial import Trial

    Record: TypeAlias = tuple[Trial, dict[str, Any]]


def restore(path: Path, job: str, found: Iterable[Trial], volume_trials: int) -> Restoration:
    """Write a history with every trial that a file or a run directory contains.

    It starts from the history, or from its last good copy if the history is damaged or missing,
    and adds the trials of all volumes and run directories (``found``). What it replaces is kept
    beside it. The caller holds the lock.

    Raises:
        HistoryError: If a later version wrote a file, or the disk refuses. The history is then
            unchanged, or restored already.
    """
    old, copy_path = _Old(job), storage.copy_path(path)
    with storage.explained("read", path):
        stored = storage.stored_volumes(path)
        absent = not os.path.lexists(path) or storage.is_dangling(path)
        missing = absent and (copy_path.exists() or bool(stored))
    if missing:
        old.problems.append(f"{path} is missing")
    tables, copy, written_at = storage.empty_tables(), None, None
    sources: list[list[Record]] = []
    for name, file in (("present", path), ("bak", copy_path)):
        content = old.read(file, may_be_missing=True)
        if content is not None:
            sources.append(content[1])
        if content is not None and copy is None:
            tables, copy, written_at = content[0], name, _written_at(file)
        if content is not None and file not in old.damaged:
            break
    volumes, following, changes = storage.read_header(tables)
    # The newest volumes first: a history that was restored before lists those.
    numbers = sorted({*stored, *(volume.number for volume in volumes)}, reverse=True)
    read = (old.read(storage.volume_path(path, number)) for number in numbers)
    # Before the copy, which may be older: of equal trials, the first source wins.
    sources[1:1] = [content[1] for content in read if content is not None]
    known = {trial.trial: trial for trial, _ in merge(sources)}
    merged = merge([*sources, _usable(found, job, old.problems)])
    tables["trials"] = {str(n): record for n, (_, record) in enumerate(merged, start=1)}
    # New volumes get new numbers, because the files that are kept list the old ones.
    storage.set_header(
        tables, storage.Header([], max([following, *(number + 1 for number in stored)]), changes)
    )
    storage.renew_basis(tables)
    aside = _keep(path, "corrupt" if path in old.damaged else "replaced")
    storage.write_main(path, tables, volume_trials, kept=None)
    with storage.explained("set aside", path):
        for file in old.damaged:
            if file != path and os.path.lexists(file):
                file.rename(_unused_name(file, "corrupt"))
    return Restoration(
        copy=copy,
        written_at=written_at,
        trials=len(merged),
        found=tuple(trial.trial for trial, _ in merged if known.get(trial.trial) != trial),
        unfinished=tuple(trial.trial for trial, _ in merged if not trial.status.finished),
        aside=aside,
        lost=None if old.damaged or missing else (),
        problems=tuple(old.problems),
    )


@dataclass
class _Old:
    """The files of a history as they are found, and what is wrong with them."""

    job: str
    problems: list[str] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)

    def read(
        self, file: Path, *, may_be_missing: bool = False
    ) -> tuple[storage.Tables, list[Record]] | None:
        """Return the tables of a file and its trials, less those that have changed."""
        changed: storage.Changed = []
        try:
            data = storage.read_bytes(file)
            if data is None and may_be_missing:
                return None
            tables = storage.read_tables(file, data, changed)
            storage.read_header(tables)
            storage.encode_tables(tables)  # what could not be written again is damaged
            records = list(tables["trials"].values())
            content = list(zip(storage.decode_trials(records, self.job), records, strict=True))
        except storage.DamagedError as damage:
            self.problems.append(f"{file} was damaged: {damage}")
            self.damaged.append(file)
            return None
        if changed:
            numbers = ", ".join(changed)
            self.problems.append(f"{file}: these records have changed, and are left out: {numbers}")
            self.damaged.append(file)
        return tables, content


def merge(sources: Iterable[Iterable[Record]]) -> list[Record]:
    """Return each trial once, in the order of its numbers.

    Of two records of a trial, the one that was preempted more often wins, then the one that has
    ended, then the one in the earlier source.
    """
    best: dict[str, Record] = {}
    for record in itertools.chain.from_iterable(sources):
        known = best.setdefault(record[0].trial, record)
        if _progress(record[0]) > _progress(known[0]):
            best[record[0].trial] = record
    return sorted(best.values(), key=lambda record: (record[0].recurrence, record[0].attempt))


def _progress(trial: Trial) -> tuple[int, bool]:
    return trial.preemptions, trial.status.finished


def _usable(found: Iterable[Trial], job: str, problems: list[str]) -> list[Record]:
    records = []
    for trial in found:
        try:
            check_numbers(trial, job)
            records.append((trial, encode_trial(trial)))
        except ValueError as error:
            problems.append(f"a run directory contains no trial of {job}: {error}")
    return records


def _written_at(file: Path) -> str:
    with storage.explained("read", file):
        return f"{datetime.fromtimestamp(file.stat().st_mtime, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def _keep(path: Path, why: str) -> Path | None:
    """Keep the main file under another name until it is replaced; ``None`` if there is none."""
    with storage.explained("set aside", path):
        if not os.path.lexists(path) or storage.is_dangling(path):
            return None
        for spare in path.parent.glob(f"{path.name}.{why}-*.tmp"):  # of a restore that was killed
            spare.unlink()
        target = _unused_name(path, why)
        if path.is_file():
            keep_link(Path(os.path.realpath(path)), target)
        else:  # a directory, a pipe, a circle of links
            path.rename(target)
    return target


def _unused_name(path: Path, why: str) -> Path:
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    targets = (path.with_name(f"{path.name}.{why}-{name}") for name in names)
    return next(target for target in targets if not os.path.lexists(target))

"""Writes to a shared history that does not respond: retries, what waits, and its delivery.

Each write that waits is a file.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from zeusrun.errors import HistoryError, writes_to
from zeusrun.files.lock import FileLock, SafeLock
from zeusrun.files.private import check_version, make_folder, read_file, replace_file
from zeusrun.history import rules
from zeusrun.history.base import UnavailableError
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from zeusrun.history.base import Shared

Kind = Literal["begin", "finish", "withdraw"]
"""The start of an offline trial; the end of a trial; the end of a trial that may not have begun."""

_NAME = re.compile(r"\d{8,12}\.json")
_MAX_BYTES = 256 << 20
_VERSION = 1
_LOCK_S = 30.0  # to write a file takes milliseconds


@dataclass(frozen=True)
class Entry:
    """A write that waits. The uuid of its trial names that in every history that has it."""

    path: Path
    kind: Kind
    trial: Trial  # as it was then


class Spool:
    """The writes that wait, in a folder of the home; safe for threads and processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused = folder / "refused"

    def put(self, kind: Kind, trial: Trial) -> Path:
        """Store a write durably, behind those that wait; raises ``HistoryError``."""
        record = {"version": _VERSION, "kind": kind, "trial": trial.to_json()}
        with self._locked():
            # A refused number is not used again.
            used = [*_list_entries(self.folder), *self.list_refused()]
            number = max((int(path.stem) for path in used), default=0) + 1
            path = self.folder / f"{number:08d}.json"
            replace_file(path, json.dumps(record).encode())
        return path

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(_list_entries(self.folder))

    def entries(self) -> list[Entry]:
        """Return what waits, oldest first; a file that is no entry is set aside.

        Raises:
            HistoryError: If a file cannot be read, or a newer zeusrun has written it.
        """
        found = []
        for path in _list_entries(self.folder):
            try:
                record = json.loads(read_file(path, _MAX_BYTES))
                check_version(record, _VERSION, path)
                trial = Trial.from_json(record["trial"])
                found.append(Entry(path, record["kind"], trial))
            except FileNotFoundError:
                continue  # delivered just now
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                self.set_aside(path, f"the file is damaged: {error}")
            except OSError as error:
                raise HistoryError(f"{path} cannot be read: {error.strerror}") from error
        return found

    def trials(self) -> dict[str, Trial]:
        """Return the trials with a begin or an outcome that waits, as they are then, by uuid."""
        entries = [each for each in self.entries() if each.kind in {"begin", "finish"}]
        return {each.trial.uuid: each.trial for each in entries}

    def merge(self, job: str, trials: Sequence[Trial], last: int | None = None) -> list[Trial]:
        """Return trials as they are with what waits; those that the history lacks come last.

        A trial without a number counts as the next recurrence of its own.
        """
        waiting = {key: each for key, each in self.trials().items() if each.job == job}
        known = [newer(each, waiting.pop(each.uuid, None)) for each in trials]
        found = [each for each in known if each is not None]
        newest = (found[-1].recurrence, found[-1].attempt) if found else (0, 0)
        number = newest[0]
        for each in waiting.values():
            if rules.is_offline(each):
                number += 1
                found.append(replace(each, recurrence=number))
            elif (each.recurrence, each.attempt) > newest:
                number = max(number, each.recurrence)
                found.append(each)
        return found[0 if last is None else max(0, len(found) - last) :]

    def remove(self, entry: Entry) -> None:
        """Remove what has been delivered."""
        with contextlib.suppress(OSError):
            entry.path.unlink()

    def list_refused(self) -> list[Path]:
        """Return the files that were set aside, oldest first."""
        return _list_entries(self.refused)

    @contextlib.contextmanager
    def delivering(self, wait_s: float) -> Iterator[bool]:
        """Be the only one that delivers; yields false if another process still does."""
        with FileLock(self.folder / "delivery.lock") as lock:
            with writes_to(self.folder):
                make_folder(self.folder)
                free = lock.acquire(wait_s)
            yield free

    def set_aside(self, path: Path, why: str) -> Path:
        """Keep a refused or damaged file in a folder of its own; return where."""
        target = self.refused / path.name
        with contextlib.suppress(OSError, HistoryError), self._locked():
            make_folder(self.refused)
            path.replace(target)
            replace_file(target.with_suffix(".txt"), f"{why}\n".encode(errors="replace"))
        return target

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = SafeLock(self.folder / "lock")
        otherwise = f"{lock.path} is held by another process; end it, and try again"
        with writes_to(self.folder), lock.held(_LOCK_S, otherwise):
            yield


def _list_entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []


def newer(known: Trial | None, waiting: Trial | None) -> Trial | None:
    """Return a trial as it is when what waits is delivered."""
    if known is None or waiting is None:
        return waiting if known is None else known
    if (
        known.uuid != waiting.uuid
        or known.status not in rules.OPEN
        or not waiting.status.finished
        or known.preemptions != waiting.preemptions
    ):
        return known
    return replace(waiting, trial=known.trial, recurrence=known.recurrence, attempt=known.attempt)


def deliver(spool: Spool, remote: Shared, tell: Callable[[str], None]) -> None:
    """Deliver what waits, in order, each once.

    What is refused for good is set aside.

    ``tell`` shows a sentence to the user.

    Raises:
        UnavailableError: If the history does not respond.
    """
    if not spool:
        return
    with spool.delivering(PATIENCE_S) as alone:
        held: set[str] = set()  # trials of which an earlier write still waits
        for entry in spool.entries() if alone else ():
            if entry.trial.uuid in held:
                continue
            try:
                _send(entry, remote, tell)
            except UnavailableError:
                raise
            except ValueError as error:
                path = spool.set_aside(entry.path, str(error))
                tell(f"the result of {entry.trial.trial} is refused, and kept in {path}: {error}")
            except HistoryError as error:
                held.add(entry.trial.uuid)
                tell(f"the result of {entry.trial.trial} still waits: {error}")
            else:
                spool.remove(entry)


def _send(entry: Entry, remote: Shared, tell: Callable[[str], None]) -> None:
    """Deliver one write. Again, it changes nothing: an earlier answer may have been lost."""
    trial, kind = entry.trial, entry.kind
    if kind == "begin":
        remote.add([trial])
        return
    known = remote.find(trial.uuid)
    if known is None:
        if kind == "finish":
            add_lost(trial, remote, tell)
        return
    if known.preemptions != trial.preemptions:
        return  # it has gone on since
    if kind == "withdraw" and known.status not in rules.OPEN:
        return
    try:
        remote.finish(trial.uuid, trial.outcome)
    except ValueError:
        if trial.status is not TrialStatus.LOST:  # else a better outcome is known
            raise


def add_lost(trial: Trial, remote: Shared, tell: Callable[[str], None]) -> None:
    """Store a trial that the history has lost; if another one has its number now, under the next.

    The uuid finds it, so that it is stored once.
    """
    try:
        remote.add([trial])
    except ValueError:
        other = remote.find(trial.trial)
        if other is None or other.uuid == trial.uuid:
            raise
        name = rules.offline_name(trial.job, trial.uuid)
        (stored,) = remote.add([replace(trial, trial=name)])
        tell(
            f"{trial.trial} is now {stored.trial}: the history was restored from a backup, and "
            "another run has the number"
        )


PATIENCE_S = 5.0
"""How long a launcher that records an outcome tries to reach the history."""
READ_S = 2.0
"""How long a command that reads tries to."""
_PAUSE_READS_S = 10.0  # so long after a failure, a read does not wait again
_LONG_S = 20.0  # the user is informed of such a wait
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_Result = TypeVar("_Result")


class Patience:
    """Calls again, after pauses that grow: exponential backoff with full jitter."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._error, self._until_t = UnavailableError(), 0.0

    @property
    def is_over(self) -> bool:
        """Whether the history did not respond just now."""
        return time.monotonic() < self._until_t

    def check(self) -> None:
        """Raise ``UnavailableError`` if the history did not respond just now."""
        if self.is_over:
            raise self._error

    def renew(self) -> None:
        """Forget that the history did not respond."""
        self._until_t = 0.0

    def read(self, call: Callable[[], _Result]) -> _Result:
        """Call for up to ``READ_S``; not at all if the history did not respond just now."""
        self.check()
        return self.keep_calling(call, READ_S)

    def keep_calling(
        self,
        call: Callable[[], _Result],
        patience_s: float,
        pause: Callable[[float], None] = time.sleep,
    ) -> _Result:
        """Call until the history is there; raises ``UnavailableError`` after ``patience_s``.

        It calls at least once. The call must be idempotent.
        """
        until_t = time.monotonic() + patience_s
        limit_s = _FIRST_PAUSE_S
        while True:
            try:
                result = call()
            except UnavailableError as error:
                left_s = until_t - time.monotonic()
                if left_s <= 0:
                    self._error, self._until_t = error, time.monotonic() + _PAUSE_READS_S
                    raise
                if patience_s >= _LONG_S:
                    self._tell(f"{error}; waiting for it, for up to {patience_s:g} s")
                jitter_s = random.uniform(0, limit_s)  # noqa: S311 - no secret
                pause_s = (error.retry_after_s or 0.0) + jitter_s
                pause(min(pause_s, left_s))
                limit_s = min(2 * limit_s, _LONGEST_PAUSE_S)
            else:
                self.renew()
                return result

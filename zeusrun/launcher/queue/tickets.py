"""The submits of a home in the order they came, each with a ticket.

A ticket is a file that describes the submit, beside a file that the submit has locked: the kernel
releases that lock when the process dies. One more lock, held for a moment, makes submits that start
at the same time agree on their order.

A submit that is queued in a scheduler is no process: its ticket lives until its job there ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError, writes_to
from zeusrun.files.lock import FileLock, SafeLock, is_locked
from zeusrun.files.private import build_known, check_version, read_file, replace_file
from zeusrun.history.rules import has_expired
from zeusrun.run_on.registry import find_ended, read_states

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from typing_extensions import Self

    from zeusrun.trial import Trial

State = Literal["queued", "waiting", "running"]  # queued: in a scheduler

_ADOPT_S = 30.0  # the submit that queued the job writes its name
_LOCK_WAIT_S = 60.0  # each holds it for milliseconds, but fifty may start at once on a busy machine
_NAME = re.compile(r"([0-9]{1,15})\.json")
_MAX_BYTES = 64 << 10
_VERSION = 1


@dataclass(frozen=True)
class Ticket:
    """A submit that has not ended."""

    number: int  # its place in the order, from 1
    job: str
    pid: int  # of its zeusrun
    state: State
    since: str  # RFC 3339
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that it has, or wants
    replaces: bool = False  # earlier submits of its job are to end for it
    holds: bool = False  # it has its GPUs
    on_cpu: bool = False  # it runs without any GPU
    host: str = ""
    allocation: str = ""  # its job of a scheduler, such as slurm:1234

    def to_json(self) -> dict[str, Any]:
        """Return what ``status --json`` prints."""
        return asdict(self)


class Tickets:
    """The tickets under a home. As a context manager, it keeps other submits from changing them."""

    def __init__(self, home: Path) -> None:
        self._directory = home / "submits"
        self._lock = SafeLock(self._directory / "lock")

    def __enter__(self) -> Self:
        """Wait for the lock; raises ``HistoryError``."""
        with contextlib.suppress(HistoryError, OSError):
            self.present()  # so that no one waits for the lock while a scheduler is asked
        if not self._lock.acquire(_LOCK_WAIT_S):
            raise HistoryError(
                f"another process has locked {self._lock.path} and does not release it; "
                f"`fuser -v {self._lock.path}` names it"
            )
        return self

    def __exit__(self, *_exc: object) -> None:
        """Release the lock."""
        self._lock.release()

    def present(self) -> list[Ticket]:
        """Return the tickets of submits that are alive, in their order; raises ``OSError``."""
        return [ticket for _, ticket, alive in self._found() if alive and ticket is not None]

    def take(
        self,
        job: str,
        state: State = "waiting",
        gpus: tuple[str, ...] = (),
        *,
        replaces: bool = False,
        allocation: str = "",
    ) -> HeldTicket:
        """Return a ticket, the last in the order; raises ``HistoryError``. Call it locked."""
        number = 0
        for found, _, alive in self._found():
            number = max(number, found)
            if not alive:
                self.remove(found)
        at, host = timestamp(), platform.node()
        ticket = Ticket(number + 1, job, os.getpid(), state, at, gpus, replaces, host=host)
        held = HeldTicket(self, replace(ticket, allocation=allocation))
        held.write()
        return held

    def adopt(self, number: int, job: str, allocation: str) -> HeldTicket:
        """Return the ticket that a submit took for a job of a scheduler, or a new one.

        Raises ``HistoryError``. Call it unlocked.
        """
        lock = FileLock(self.lock_path(number))
        if self._read(number) is not None and lock.acquire(_ADOPT_S):
            ticket = self._read(number)
            if ticket and ticket.job == job and ticket.allocation in {"", allocation}:
                held = HeldTicket(self, replace(ticket, allocation=allocation), lock)
                held.write(pid=os.getpid(), host=platform.node())
                return held
            lock.release()
        with self:
            return self.take(job, "running", allocation=allocation)

    def _found(self) -> Iterator[tuple[int, Ticket | None, bool]]:
        """Yield each number, its ticket if that can be read, and whether its submit is alive.

        If a newer zeusrun has written the ticket of a living submit, it raises ``HistoryError``: it
        is unknown which GPUs that submit has.
        """
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self._directory.iterdir()]
            numbers = sorted(int(m[1]) for name in names if (m := _NAME.fullmatch(name)))
            # If the lock cannot be checked, assume that the submit is alive.
            alive = {n: is_locked(self.lock_path(n)) is not False for n in numbers}
            queued = [t for n in numbers if not alive[n] and (t := self._read(n)) and t.allocation]
            states = read_states([ticket.allocation for ticket in queued])
            there = {t.number: t for t in queued if states[t.allocation] != "ended"}
            for number in numbers:
                if (ticket := there.get(number)) is not None:  # whatever its last launcher wrote
                    runs = states[ticket.allocation] == "running"
                    state: State = "running" if runs else "queued"
                    state = "waiting" if ticket.state == "waiting" else state
                    ticket = replace(ticket, state=state, gpus=(), holds=False, on_cpu=False)
                    yield number, ticket, True
                else:
                    yield number, self._read(number) if alive[number] else None, alive[number]

    def _read(self, number: int) -> Ticket | None:
        try:
            record = json.loads(read_file(self.path(number), _MAX_BYTES))
            check_version(record, _VERSION, self.path(number))
            ticket = build_known(Ticket, record, number=number, gpus=tuple(record["gpus"]))
            return ticket if all(isinstance(uuid, str) for uuid in ticket.gpus) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # removed just now, or cut short by a power failure

    def remove(self, number: int) -> None:
        """Remove the files of a ticket, as far as possible."""
        # The lock first: a number whose ticket still exists is not given to another submit.
        for path in (self.lock_path(number), self.path(number)):
            with contextlib.suppress(OSError):
                path.unlink()

    def path(self, number: int) -> Path:
        """Return the file of a ticket."""
        return self._directory / f"{number}.json"

    def lock_path(self, number: int) -> Path:
        """Return the file that its submit has locked."""
        return self._directory / f"{number}.lock"


def find_waiting(trials: Iterable[Trial], inside: str | None = None) -> set[str]:
    """Return the allocations of some trials that run now or will run again.

    ``inside`` is the allocation of this process, which is left out.
    """
    going_on = [trial for trial in trials if not trial.status.final or has_expired(trial)]
    names = {t.allocation for t in going_on if t.allocation is not None and t.allocation != inside}
    return names - find_ended(names)


def read_waiting(home: Path, job: str | None = None, running: Iterable[Trial] = ()) -> list[Ticket]:
    """Return the submits of a job, or of all, that have begun no run; none if unreadable.

    ``running`` are the runs that go on, to tell which submit in a scheduler has begun one.
    """
    begun = {"", *(trial.allocation for trial in running)}
    with contextlib.suppress(OSError):
        found = [each for each in Tickets(home).present() if job in {None, each.job}]
        return [t for t in found if t.state != "running" or t.allocation not in begun]
    return []


class HeldTicket:
    """The ticket of this submit, until it is released."""

    def __init__(self, tickets: Tickets, ticket: Ticket, lock: FileLock | None = None) -> None:
        self._tickets = tickets
        self.ticket = ticket
        self._lock = lock or FileLock(tickets.lock_path(ticket.number))

    def write(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Ticket
        """Write the ticket with these changes, for other submits; raises ``HistoryError``."""
        self.ticket = replace(self.ticket, **changes)
        path = self._tickets.path(self.ticket.number)
        with writes_to(path):
            if not self._lock.acquire(1.0):  # somebody who lists tickets tries it for a moment
                raise HistoryError(f"{path} belongs to another submit; try again")
            # Not durable: after a power failure no submit is alive.
            content = {"version": _VERSION, **self.ticket.to_json()}
            replace_file(path, json.dumps(content).encode(), durable=False)

    def leave(self) -> None:
        """Leave the ticket to its job of a scheduler, which runs now or later."""
        self._lock.release()

    def release(self) -> None:
        """Remove the ticket. More than once is fine."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            with contextlib.suppress(HistoryError):
                stack.enter_context(self._tickets)
            self._tickets.remove(self.ticket.number)

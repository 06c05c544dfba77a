"""Which submits there are now, in the order they came: running, or waiting for their turn.

Each holds a ticket: a file with what it is, and the operating system's lock on another that is
freed when it dies. Who comes first is decided under one lock that is held for a moment only, so
that two submits that start at once agree on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError, unwritable
from zeusrun.files.atomic import replace_file
from zeusrun.files.lock import FileLock, SafeLock, is_locked
from zeusrun.files.private import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

_PATIENCE_S = 60.0  # each is done in milliseconds, but fifty may start at once on a busy machine
_NAME = re.compile(r"([0-9]{1,15})\.json")
_MAX_BYTES = 64 << 10
_KINDS = {
    **dict.fromkeys(("job", "state", "since", "host"), str),
    **dict.fromkeys(("replaces", "holds", "on_cpu"), bool),
    "pid": int,
}


@dataclass(frozen=True)
class Ticket:
    """A submit that has not ended.

    Attributes:
        number: Its place in the order, from 1.
        job: Whose.
        pid: Of its zeusrun.
        state: Whether it waits or runs.
        since: When it came, RFC 3339.
        gpus: UUIDs of the GPUs that it has, or wants.
        replaces: Whether earlier ones of its job are to end for it.
        holds: Whether it has them.
        on_cpu: Whether it runs without any GPU.
        host: Name of its machine.
    """

    number: int
    job: str
    pid: int
    state: Literal["waiting", "running"]
    since: str
    gpus: tuple[str, ...] = ()
    replaces: bool = False
    holds: bool = False
    on_cpu: bool = False
    host: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what ``status --json`` prints."""
        return asdict(self)


class Tickets:
    """The submits under a home. Entered, it is its caller alone who may come or change."""

    def __init__(self, home: Path) -> None:
        """Remember where; nothing is read yet."""
        self._directory = home / "submits"
        self._lock = SafeLock(self._directory / "lock")

    def __enter__(self) -> Self:
        """Wait for everybody else.

        Raises:
            HistoryError: If the home cannot be written, or somebody does not let go.
        """
        if not self._lock.acquire(_PATIENCE_S):
            raise HistoryError(
                f"another process holds {self._directory / 'lock'} and does not let go; "
                f"`fuser -v {self._directory / 'lock'}` names it"
            )
        return self

    def __exit__(self, *_exc: object) -> None:
        """Let others in."""
        self._lock.release()

    def present(self) -> list[Ticket]:
        """Return the tickets of submits that live, first come first.

        Unless entered, some may come and go meanwhile.

        Raises:
            OSError: If the tickets cannot be listed.
        """
        return [ticket for _, ticket, alive in self._found() if alive and ticket is not None]

    def take(
        self,
        job: str,
        state: Literal["waiting", "running"] = "waiting",
        gpus: tuple[str, ...] = (),
        *,
        replaces: bool = False,
    ) -> HeldTicket:
        """Return a ticket, the last in the order. To be called while entered.

        Raises:
            HistoryError: If it cannot be written.
        """
        number = 0
        for found, _, alive in self._found():
            number = max(number, found)
            if not alive:
                self.remove(found)
        came, host = timestamp(), platform.node()
        ticket = Ticket(number + 1, job, os.getpid(), state, came, gpus, replaces, host=host)
        held = HeldTicket(self, ticket)
        held.show()
        return held

    def _found(self) -> Iterator[tuple[int, Ticket | None, bool]]:
        """Yield each number, its ticket, if that can be read, and whether its holder lives."""
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self._directory.iterdir()]
            for number in sorted(int(m[1]) for name in names if (m := _NAME.fullmatch(name))):
                # Where it cannot be told, nobody may be called dead on a guess.
                yield number, self._read(number), is_locked(self.lock_path(number)) is not False

    def _read(self, number: int) -> Ticket | None:
        try:
            record = json.loads(read_file(self.path(number), _MAX_BYTES))
            ticket = Ticket(**{**record, "number": number, "gpus": tuple(record["gpus"])})
            datetime.fromisoformat(ticket.since)
            kinds = [type(getattr(ticket, name)) for name in _KINDS]
            if kinds != [*_KINDS.values()] or not all(isinstance(gpu, str) for gpu in ticket.gpus):
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None  # it has just gone, or nobody can say what it was
        return ticket

    def remove(self, number: int) -> None:
        """Take the files of a ticket away; as much as can be."""
        # The lock first: a number whose ticket is still seen is not given to another one.
        for path in (self.lock_path(number), self.path(number)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def path(self, number: int) -> Path:
        """Return the file of a ticket."""
        return self._directory / f"{number}.json"

    def lock_path(self, number: int) -> Path:
        """Return the file that its holder has locked."""
        return self._directory / f"{number}.lock"


def read_waiting(home: Path, job: str | None = None) -> list[Ticket]:
    """Return the submits that wait for their turn, of one job or of all; first come first."""
    tickets = Tickets(home)
    if not tickets.path(1).parent.is_dir():
        return []
    try:
        with tickets:
            present = tickets.present()
    except HistoryError:
        return []  # a home that cannot be written; what runs is shown all the same
    return [t for t in present if t.state == "waiting" and job in {None, t.job}]


class HeldTicket:
    """A ticket of this process, until it is let go."""

    def __init__(self, tickets: Tickets, ticket: Ticket) -> None:
        self._tickets = tickets
        self.ticket = ticket
        self._lock = FileLock(tickets.lock_path(ticket.number))

    def show(self, **changes: Any) -> None:  # noqa: ANN401 - fields of Ticket
        """Write the ticket, changed or as it is, for others to see.

        Raises:
            HistoryError: If it cannot be written.
        """
        self.ticket = replace(self.ticket, **changes)
        path = self._tickets.path(self.ticket.number)
        try:
            if not self._lock.acquire():
                raise HistoryError(f"{path} is another submit's; try again")
            # Not durable: after a power cut nobody holds a ticket.
            replace_file(path, json.dumps(self.ticket.to_json()).encode(), durable=False)
        except OSError as error:
            raise unwritable(path, error) from error

    def release(self) -> None:
        """Go. More than once is fine."""
        try:
            with self._tickets:
                self._tickets.remove(self.ticket.number)
        except HistoryError:
            self._tickets.remove(self.ticket.number)
        finally:
            self._lock.release()

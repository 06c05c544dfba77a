"""The board of an elastic training: who trains, and how far each process is.

The agent decides on *generations*. It writes the members of one into a file of its own first, and
then its number on the board, a memory-mapped file. So whoever reads the number finds the members.
A member has a *slot*, the number of its process, which no other one gets; its rank is its place
among the members, and the newcomers are last.

With several hosts, each has a board of its own, and their agents copy what changes
(``elastic/nodes/``). A copy is a few milliseconds behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_writing, read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_SLOTS = 4096
BY_STEPS, BY_EPOCHS, FIXED = 1, 2, 3
"""How the ranks can change: see ``Place.mode``."""

FOLDER = "elastic"
"""The folder of the run directory with the board and the generations."""

ORDERED_BY = ("a user", "the schedule", "a policy", "provisioning", "the endpoint")

ENDED, HOST_LOST = 1, 2
"""Values of ``Place.ended``, beside 0."""

# Places of numbers of eight bytes each; from _LOADERS on, two for each loader.
_NEWEST, _ANNOUNCED, _BEGINS, _ORDER, _SIZE, _BY, _DECIDED, _STOPS = range(8)
_ACCEPTED, _AIM, _IS_SHARED, _CONFIRMED, _LOADERS = range(8, 13)
_MOST_LOADERS = 64
_HEAD = _LOADERS + 2 * _MOST_LOADERS
_SHARED = (_ANNOUNCED, _BEGINS, _DECIDED, _STOPS, *range(_CONFIRMED, _HEAD))
_MAX_JSON = 1 << 16
_POLL_S = 0.001


@dataclass(frozen=True)
class Generation:
    """The processes that train together, from some step on.

    Attributes:
        number: From 1.
        members: Their slots, in the order of their ranks; empty: the training ends.
        why: A sentence for people.
        address: Of the host of rank 0.
        since_t: When they were ordered, or one was lost, by the clock of the agent.
    """

    number: int
    members: tuple[int, ...]
    why: str = ""
    address: str = "localhost"
    since_t: float | None = None


class Place(ctypes.Structure):
    """The state of one process; each attribute is a number on the board.

    Attributes:
        pid: Its process, on its host.
        ended: ``ENDED`` once its agent has seen its end; ``HOST_LOST`` if its host is lost.
        is_ready: 1 once a newcomer waits for its generation.
        steps: Optimizer steps of the training that it has completed.
        joins: The generation that it joins; others wait until all members do.
        has_state: The generation for which it has the state of the training.
        generation: That it trains in; 0 before the first.
        mode: ``BY_STEPS`` if its script trains on if another rank dies; ``BY_EPOCHS`` if its size
            can only change between two epochs; ``FIXED`` if it cannot; 0: not known yet.
        loader: Which loader of an unedited script feeds its steps, from 1; 0: not known.
        epoch: The pass over that loader, from 1.
        is_in_step: Whether it is within a step.
        collectives: Those of the default process group that it has begun.
        cpu_ms: CPU time of its main thread, in milliseconds.
        beats: Heartbeats so far.
        store: Of rank 0, if there are several hosts: the number of the generation for which it
            serves a store, times 65,536, plus the port.
    """

    pid: int
    ended: int
    is_ready: int
    steps: int
    joins: int
    has_state: int
    generation: int
    mode: int
    loader: int
    epoch: int
    is_in_step: int
    collectives: int
    cpu_ms: int
    beats: int
    store: int

    @property
    def is_alive(self) -> bool:
        """Whether the process has started, and its agent has not seen its end."""
        return bool(self.pid) and not self.ended

    def read(self) -> tuple[int, ...]:
        """Return all numbers, in the order of the attributes."""
        return tuple(getattr(self, name) for name in Place.__annotations__)

    def write(self, numbers: Sequence[int]) -> None:
        """Take over all numbers."""
        for name, number in zip(Place.__annotations__, numbers, strict=True):
            setattr(self, name, number)

    def clear(self) -> None:
        """Forget the process that had the slot."""
        ctypes.memset(ctypes.addressof(self), 0, ctypes.sizeof(self))


Place._fields_ = [(name, ctypes.c_uint64) for name in Place.__annotations__]
_BYTES = 8 * _HEAD + MAX_SLOTS * ctypes.sizeof(Place)


class Board:
    """The board of a run; the agent creates it.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, run_dir: Path, *, create: bool = False) -> None:
        """Open the board; raises ``OSError``."""
        self.folder = run_dir / FOLDER
        if create:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        descriptor = open_for_writing(self.folder / "board", flags)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, _BYTES)  # a hole would be a SIGBUS on a full disk
            elif os.fstat(descriptor).st_size < _BYTES:
                raise OSError(errno.EAGAIN, "it is just being created", str(self.folder))
            self._map = mmap.mmap(descriptor, _BYTES)
        finally:
            os.close(descriptor)
        self._numbers = memoryview(self._map).cast("Q")

    def close(self) -> None:
        """Close it; the memory of a place that somebody has is freed with that place."""
        self._numbers.release()
        with contextlib.suppress(BufferError):
            self._map.close()

    def place(self, slot: int) -> Place:
        """Return the state of a process."""
        return Place.from_buffer(self._map, 8 * _HEAD + slot * ctypes.sizeof(Place))

    @property
    def newest(self) -> int:
        """The number of the newest generation; 0 before the first."""
        return self._numbers[_NEWEST]

    def publish(self, generation: Generation) -> None:
        """Write a generation, its number last; raises ``OSError``."""
        path = self.folder / f"{generation.number}.json"
        replace_file(path, json.dumps(asdict(generation)).encode(), durable=False)
        self._numbers[_NEWEST] = generation.number

    def read_generation(self, number: int) -> Generation:
        """Return a generation whose number has been on the board."""
        content = json.loads(read_file(self.folder / f"{number}.json", _MAX_JSON))
        return Generation(**{**content, "members": tuple(content["members"])})

    @property
    def members(self) -> tuple[int, ...]:
        """The members of the newest generation; empty before the first."""
        return self.read_generation(self.newest).members if self.newest else ()

    def read_loader(self, number: int) -> tuple[int, int]:
        """Return the batch size of a loader of an unedited script, over all ranks and on one.

        They are those with which it was first seen; 0 and 0 before that.
        """
        at, known = _LOADERS + 2 * (number - 1), number <= _MOST_LOADERS
        return (self._numbers[at], self._numbers[at + 1]) if known else (0, 0)

    def write_loader(self, number: int, whole: int, share: int) -> None:
        """Write the batch size of a loader; rank 0 does so."""
        if number <= _MOST_LOADERS:
            place = _LOADERS + 2 * (number - 1)
            self._numbers[place], self._numbers[place + 1] = whole, share

    @property
    def switch(self) -> tuple[int, int]:
        """The generation that rank 0 has announced, and after how many steps or passes it begins.

        Every rank reads it in time, because rank 0 has announced it before the last all-reduce of
        gradients that all ranks wait for.
        """
        return self._numbers[_ANNOUNCED], self._numbers[_BEGINS]

    def announce(self, number: int, at: int) -> None:
        """Write when a generation begins; rank 0 of the present one does so.

        With several hosts, wait until all of them have read it.
        """
        self._numbers[_BEGINS] = at
        self._numbers[_ANNOUNCED] = number
        while self.is_shared and self._numbers[_CONFIRMED] < number:
            time.sleep(_POLL_S)

    def share(self, *, several: bool) -> None:
        """Write whether there are several hosts; the agent does so."""
        self._numbers[_IS_SHARED], self._numbers[_CONFIRMED] = several, 0

    def confirm(self, number: int) -> None:
        """Write that all hosts know when a generation begins; the agent of the head does so."""
        self._numbers[_CONFIRMED] = number

    @property
    def is_shared(self) -> bool:
        """Whether there are several hosts."""
        return bool(self._numbers[_IS_SHARED])

    def read_shared(self) -> dict[int, int]:
        """Return the numbers that are the same on all hosts, by their place."""
        return {place: self._numbers[place] for place in _SHARED}

    def write_shared(self, numbers: Mapping[int, int]) -> None:
        """Take over numbers of another host; last those that announce what comes after them."""
        for place in sorted(numbers, reverse=True):
            self._numbers[place] = numbers[place]

    @property
    def decision(self) -> tuple[int, int]:
        """For how many questions it is decided whether to stop, and at which one the ranks do."""
        return self._numbers[_DECIDED], self._numbers[_STOPS]

    def decide(self, question: int, *, stops: bool) -> None:
        """Decide on a question, from 1; rank 0 does so."""
        if stops:
            self._numbers[_STOPS] = question
        self._numbers[_DECIDED] = question

    def clear(self, *, orders: bool) -> None:
        """Forget decisions of an earlier start of the ranks, and orders."""
        of_orders = (_ORDER, _SIZE, _BY, _ACCEPTED, _AIM) if orders else ()
        for place in (_DECIDED, _STOPS, *of_orders):
            self._numbers[place] = 0

    @property
    def wanted(self) -> tuple[int, int, str]:
        """The number of the last order, the size it asks for, and who has given it."""
        number, size = self._numbers[_ORDER], self._numbers[_SIZE]
        return number, size, ORDERED_BY[self._numbers[_BY]]

    @property
    def accepted(self) -> tuple[int, int]:
        """The number of the last order that the agent has taken up, and the ranks it aims at."""
        return self._numbers[_ACCEPTED], self._numbers[_AIM]

    def accept(self, order: int, aim: int) -> None:
        """Write which order is taken up, and how many ranks there will be; the agent does so."""
        self._numbers[_AIM] = aim
        self._numbers[_ACCEPTED] = order

    def order(self, size: int, by: str) -> int:
        """Ask for another number of ranks; return the number of the order.

        ``by``: one of ``ORDERED_BY``.
        """
        with os.fdopen(open_for_writing(self.folder / "board", os.O_RDWR)) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two orders at once would have one number
            self._numbers[_SIZE], self._numbers[_BY] = size, ORDERED_BY.index(by)
            self._numbers[_ORDER] += 1
            return self._numbers[_ORDER]

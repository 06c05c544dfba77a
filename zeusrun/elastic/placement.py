"""Which host has which rank of an elastic training, and what a rank is told about its place."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from zeusrun.elastic.rank.board import MAX_SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.elastic.processes import Host


class Placement:
    """The hosts of a run, and the slots of the processes on each.

    Attributes:
        hosts: Those that are connected, in the order of their numbers.
    """

    def __init__(self, host: Host) -> None:
        self.hosts = [host]
        self._of: dict[int, Host] = {}
        self._local_ranks: dict[int, int] = {}

    def host_of(self, slot: int) -> Host:
        """Return the host of a process."""
        return self._of[slot]

    @property
    def most(self) -> int:
        """How many ranks these hosts may have."""
        return sum(host.most for host in self.hosts)

    def share_out(self, ranks: int) -> int:
        """Place so many ranks from slot 0 on, host by host; return how many fit."""
        counts: collections.Counter[int] = collections.Counter()
        for _ in range(ranks):
            if (host := self._find(counts)) is not None:
                counts[host.number] += 1
        places = [(host, n) for host in self.hosts for n in range(counts[host.number])]
        self._of = {slot: host for slot, (host, _) in enumerate(places)}
        self._local_ranks = {slot: n for slot, (_, n) in enumerate(places)}
        return len(places)

    def add(self, slot: int, others: Iterable[int]) -> bool:
        """Place a new process beside ``others``; return whether a host has room for it.

        It gets the lowest free local rank, which a script may use as the number of its GPU.
        """
        alive = list(others)
        host = self._find(collections.Counter(self._of[each].number for each in alive))
        if host is None:
            return False
        used = {self._local_ranks[each] for each in alive if self._of[each] is host}
        self._of[slot], self._local_ranks[slot] = host, min(set(range(MAX_SLOTS)) - used)
        return True

    def _find(self, counts: Mapping[int, int]) -> Host | None:
        """Return the host of the next rank: first one with fewer ranks than at the start.

        ``counts``: the ranks of each host, by its number. ``None`` if no host has room.
        """
        free = [host for host in self.hosts if counts.get(host.number, 0) < host.most]

        def order(host: Host) -> tuple[bool, int, int]:
            count = counts.get(host.number, 0)
            return count >= host.ranks, count, host.number

        return min(free, key=order, default=None)

    def describe(self, slot: int, size: int, hosts: int) -> dict[str, object]:
        """Return the variables of torchrun by which a process knows its place on its host.

        Args:
            slot: Of the process.
            size: The number of ranks.
            hosts: The number of hosts at the start.
        """
        host, local = self._of[slot], self._local_ranks[slot]
        here = size if hosts == 1 else max(host.ranks, local + 1)
        group = {"GROUP_RANK": host.number, "GROUP_WORLD_SIZE": hosts}
        return {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": here, **group}

"""The ranks of a running trial: which have started, and how they ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zeusrun.sidecar.events import Ended, Spawned, Started
from zeusrun.trial import Interruption

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class Ranks:
    """One generation of workers: the ranks that torchrun has started together."""

    world_size: int = 1
    generation: int = 0  # how often torchrun has restarted them
    started: frozenset[int] = frozenset()  # ranks that have ever begun to run the script
    exit_codes: Mapping[int, int] = field(default_factory=dict)  # in the order of their ends
    restarts: tuple[tuple[float, int], ...] = ()  # of rank 0: when, and epochs reported by then
    alone: frozenset[int] = frozenset()  # ranks that ended without ever joining a process group
    spawned: Mapping[int, Spawned] = field(default_factory=dict)  # by pid

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ranks."""
        return iter(range(self.world_size))

    @property
    def scripts_ended(self) -> bool:
        """Whether the script of every rank has ended with exit code 0."""
        return all(self.exit_codes.get(rank) == 0 for rank in self)

    @property
    def all_alone(self) -> bool:
        """Whether every one of several ranks ended its script without a process group."""
        return self.world_size > 1 and self.scripts_ended and len(self.alone) == self.world_size

    @property
    def trained_by(self) -> int | None:
        """How many processes share a batch; ``None`` where hooks do not see all that train."""
        sizes = {each.world_size if each.followed else None for each in self.spawned.values()}
        if not sizes:
            return self.world_size
        return sizes.pop() if len(sizes) == self.world_size == 1 else None

    @property
    def is_grown(self) -> bool:
        """Whether processes that torchrun has not started train in the process group."""
        return any((each.world_size or 1) > 1 for each in self.spawned.values())

    def interruptions(
        self, training_t: float | None, time_s: float | None
    ) -> tuple[Interruption, ...]:
        """Return the restarts within the first seconds of training."""
        if training_t is None or time_s is None:
            return ()
        found = [Interruption(t - training_t, epochs) for t, epochs in self.restarts]
        return tuple(each for each in found if 0 < each.time_s < time_s)

    def take(self, event: Started | Spawned | Ended, epochs: int = 0) -> Ranks:
        """Return the ranks after one of them has started or has ended its script."""
        if isinstance(event, Spawned):
            return replace(self, spawned={**self.spawned, event.pid: event})
        if isinstance(event, Ended):
            codes = {**self.exit_codes, event.rank: event.code}
            alone = self.alone - {event.rank} if event.grouped else self.alone | {event.rank}
            return replace(self, exit_codes=codes, alone=alone)
        codes = {rank: code for rank, code in self.exit_codes.items() if rank != event.rank}
        again = event.rank == 0 and 0 in self.started
        return replace(
            self,
            exit_codes=codes,
            generation=max(self.generation, event.restart),
            started=self.started | {event.rank},
            restarts=(*self.restarts, (event.t, epochs)) if again else self.restarts,
        )

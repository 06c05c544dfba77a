"""The heartbeats of a process of an elastic training, which show its agent what it does."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from zeusrun.elastic.rank.board import HOST_LOST

if TYPE_CHECKING:
    from zeusrun.elastic.rank.board import Board, Place

_BEAT_S = 0.5


def begin_beat(board: Board, place: Place) -> None:
    """Write heartbeats to the board from a thread, with what this process does."""
    args = board, place, time.pthread_getcpuclockid(threading.main_thread().ident or 0)
    threading.Thread(target=_beat, args=args, name="zeusrun-beat", daemon=True).start()


def _beat(board: Board, place: Place, main: int) -> None:
    while True:
        place.collectives = count_collectives()
        place.cpu_ms = int(1000 * time.clock_gettime(main))
        place.beats += 1
        if place.joins not in {place.generation, board.newest} or _has_lost_host(board, place):
            _interrupt()
        time.sleep(_BEAT_S)


def _has_lost_host(board: Board, place: Place) -> bool:
    """Whether the host of another member is lost: connections to it may never raise an error."""
    if not board.is_shared or not 0 < place.generation == place.joins < board.newest:
        return False
    members = board.read_generation(place.generation).members
    return any(board.place(slot).ended == HOST_LOST for slot in members)


def count_collectives() -> int:
    """Return how many collectives of the default process group this process has begun.

    All ranks begin the same collectives in the same order, so the others wait for the rank that has
    begun fewest. 0 without a process group.
    """
    module = sys.modules.get("torch.distributed.distributed_c10d")
    with contextlib.suppress(Exception):  # the group may be closing; an echo has no number
        return int(module.GroupMember.WORLD._get_sequence_number_for_group())  # type: ignore[union-attr]
    return 0


def _interrupt() -> None:
    """Close the connections on which the main thread waits: another member is lost."""
    if (groups := sys.modules.get("zeusrun.elastic.rank.groups")) is not None:
        groups.close_connections()

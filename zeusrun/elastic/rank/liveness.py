"""Heartbeats of the ranks: whether a process is alive, and whether it waits for others."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from zeusrun.elastic.rank.board import Board, Place

_BEAT_S = 0.5
_WAITING = ("/torch/autograd/graph.py", "/torch/distributed/", "/zeusrun/elastic/rank/")


def exists(pid: int) -> bool:
    """Whether there is a process."""
    return Path(f"/proc/{pid}").exists()


def is_in_collective(frame: FrameType | None) -> bool:
    """Whether a thread is within a collective, or a backward pass."""
    while frame is not None:
        if any(part in frame.f_code.co_filename for part in _WAITING):
            return True
        frame = frame.f_back
    return False


def begin_beat(board: Board, place: Place) -> None:
    """Write heartbeats to the board from a thread, with whether this process waits for others."""
    args = (board, place, threading.main_thread().ident or 0)
    threading.Thread(target=_beat, args=args, name="zeusrun-beat", daemon=True).start()


def _beat(board: Board, place: Place, main: int) -> None:
    while True:
        frame = sys._current_frames().get(main)
        place.is_waiting = is_in_collective(frame)
        del frame
        place.beats += 1
        if place.joins not in {place.generation, board.newest}:
            _interrupt()
        time.sleep(_BEAT_S)


def _interrupt() -> None:
    """End what the main thread waits for: a member has died while they joined each other."""
    if (groups := sys.modules.get("zeusrun.elastic.rank.groups")) is not None:
        groups.close_connections()

"""Reads the ranks' logs, of a finished trial or of a running one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.plain_text import type_over

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.rundir.ownership import Lease

_POLL_S = 0.2


def log_tails(paths: RunPaths, ranks: Iterable[int]) -> dict[int, LineTail]:
    """Return a tail for the log of each rank."""
    return {rank: LineTail(paths.rank_log(rank)) for rank in ranks}


def read_text_lines(tail: LineTail, *, final: bool = False, raw: bool = False) -> list[str]:
    """Return the new lines of a log as text; of a progress bar, its last state.

    ``final`` includes an unfinished last line. ``raw`` keeps every byte (``os.fsencode``).
    """
    lines = tail.read_lines(final=final)
    if raw:
        return [os.fsdecode(line) for line in lines]
    texts = (line.decode(errors="replace").rstrip("\r").rpartition("\r")[2] for line in lines)
    return [type_over(text) for text in texts]


def follow_logs(
    tails: Mapping[int, LineTail], lease: Lease | None = None, *, raw: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield ``(rank, line)``: what is there now, or with a lease until its launcher has ended."""
    running = lease is not None
    while lease is not None and running:
        running = lease.is_held()
        lines = [
            (rank, line) for rank, tail in tails.items() for line in read_text_lines(tail, raw=raw)
        ]
        yield from lines
        if running and not lines:
            time.sleep(_POLL_S)
    for rank, tail in tails.items():
        while rest := read_text_lines(tail, final=True, raw=raw):
            yield from ((rank, line) for line in rest)

"""Reads the ranks' logs, of a finished trial or of a running one."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_reading
from zeusrun.files.tail import LineTail
from zeusrun.plain_text import plain_text, storable_text, type_over
from zeusrun.redaction import Mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.rundir.ownership import RunLock

_POLL_S = 0.2
_END_BYTES = 64_000
_LINE_END = re.compile(r"\r\n|\r|\n")
_NO_MASK = Mask()


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
    return [_shown(line.decode(errors="replace")) for line in lines]


def _shown(line: str) -> str:
    """Return a line as a terminal shows it in the end."""
    return type_over(line.rstrip("\r").rpartition("\r")[2])


def read_end(path: Path, mask: Mask = _NO_MASK) -> str:
    """Return the last 64 kB of a log, without secrets; nothing if it cannot be read."""
    try:
        with open(open_for_reading(path), "rb") as file:  # noqa: PTH123 - a descriptor
            cut = file.seek(0, os.SEEK_END) - _END_BYTES
            file.seek(max(0, cut))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    if mask and cut > 0:  # the first line may be the end of a secret, which the mask cannot find
        text = "".join(_LINE_END.split(text, maxsplit=1)[1:])
    return mask.text(text)


def read_last_lines(path: Path, mask: Mask, lines: int, characters: int) -> list[str]:
    """Return the last lines of a log as plain text without secrets, each cut to so many."""
    *found, last = read_end(path, mask).split("\n")
    if mask:  # it may end in the beginning of a secret
        last = last.rpartition("\r")[0]
    found += [last] * bool(last)
    # Control characters can stand in the middle of a secret.
    texts = (mask.text(storable_text(plain_text(_shown(line)))) for line in found[-lines:])
    return [text[:characters] for text in texts]


def follow_logs(
    tails: Mapping[int, LineTail], lease: RunLock | None = None, *, raw: bool = False
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

"""Reads a file that other processes append to."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_reading

if TYPE_CHECKING:
    from pathlib import Path

MAX_LINE_BYTES = 8 << 20
TOO_LONG = b"[a line of more than 8 MiB is left out]"
_CHUNK_BYTES = 256 << 10
_MAX_CHUNKS = 1024  # a file may be one hole of 50 GB: supervision waits for 256 MB of a line
_LAST_BYTES = 64


class LineTail:
    """Reads a file that others may append to, truncate, replace, or create later.

    Attributes:
        path: The file.
        restarts: How often reading began at the start of the file, the first time included.
        modified_s: When the file was last written, in Unix seconds; ``None`` before it was seen.
    """

    def __init__(self, path: Path, *, rewritten: bool = False) -> None:
        """Begin at the start; ``rewritten``: also begin again if what was read has changed."""
        self.path = path
        self._rewritten = rewritten
        self._last = b""  # what stands before the offset, unless the file was rewritten
        self._stamp = (0, 0)
        self.restarts = 0
        self.modified_s: float | None = None
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._pending = b""
        self._skipping = False

    def read_lines(self, *, final: bool = False) -> list[bytes]:
        """Return the next complete lines, without their newlines; a long file takes many calls.

        With ``final``, nothing more will be written: also return an unfinished last line.
        """
        lines: list[bytes] = []
        try:
            descriptor = open_for_reading(self.path)
        except FileNotFoundError:
            return self._take_pending(lines, final=final)
        try:
            self._detect_change(os.fstat(descriptor), descriptor)
            chunks = 0
            while not lines and chunks < _MAX_CHUNKS:
                if not (chunk := os.pread(descriptor, _CHUNK_BYTES, self._offset)):
                    break
                chunks += 1
                self._offset += len(chunk)
                self._last = chunk[-_LAST_BYTES:] if self._rewritten else b""
                self._split(chunk, lines)
        finally:
            os.close(descriptor)
        return lines or self._take_pending(lines, final=final)

    @property
    def position(self) -> int:
        """Bytes up to the end of the last line that was returned."""
        return self._offset - len(self._pending)

    def skip_backlog(self, keep_bytes: int) -> int:
        """Skip unread bytes except the last ``keep_bytes``; return how many were skipped.

        Reading continues with the first whole line of what is left.
        """
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):  # counts as missing
            return 0
        self._detect_change(status)
        skipped = max(0, status.st_size - self._offset - keep_bytes)
        if skipped:
            self._offset += skipped
            self._pending, self._skipping, self._last = b"", True, b""
        return skipped

    def _detect_change(self, status: os.stat_result, descriptor: int | None = None) -> None:
        """Start again if the file was replaced, or is shorter than what was read."""
        identity = (status.st_dev, status.st_ino)
        changed = identity != self._identity or status.st_size < self._offset
        stamp = (status.st_size, status.st_mtime_ns)
        if not changed and descriptor is not None and self._last and stamp != self._stamp:
            before = self._offset - len(self._last)
            changed = os.pread(descriptor, len(self._last), before) != self._last
        self._stamp, self.modified_s = stamp, status.st_mtime
        if changed:
            self._identity, self._offset, self._last = identity, 0, b""
            self._pending, self._skipping = b"", False
            self.restarts += 1

    def _split(self, chunk: bytes, lines: list[bytes]) -> None:
        head, *rest = chunk.split(b"\n")
        self._pending += head
        for part in rest:
            if not self._skipping:
                lines.append(self._pending)
            self._pending, self._skipping = part, False
        if len(self._pending) > MAX_LINE_BYTES:
            lines.append(TOO_LONG)  # no part of the line: it may be a part of a secret
            self._pending, self._skipping = b"", True
        elif self._skipping:
            self._pending = b""

    def _take_pending(self, lines: list[bytes], *, final: bool) -> list[bytes]:
        if final and self._pending and not self._skipping:
            lines.append(self._pending)
            self._pending = b""
        return lines

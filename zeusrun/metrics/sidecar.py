"""The metric source that every run has: the sidecar, to which its ranks append."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.sidecar.decode import decode_event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from zeusrun.sidecar.events import Event

MAX_WARNINGS = 5


class SidecarReader:
    """Reads the events that ranks append to the sidecar; bad lines become warnings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._tail = LineTail(path)
        self._line_number = self._bad_lines = 0

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; raises ``OSError`` if a file cannot be read."""
        return [event for events in self.read_parts(final=final) for event in events]

    def read_parts(self, *, final: bool = False) -> Iterator[list[Event]]:
        """Yield what ``read`` returns, in parts of about 2,000 events."""
        while lines := self._tail.read_lines(final=final):
            events: list[Event] = []
            for raw in lines:
                self._line_number += 1
                line = raw.replace(b"\0", b"").strip()  # a crash can leave holes that read as NUL
                try:
                    event = decode_event(line) if line else None
                except ValueError as error:
                    self._warn(str(error))
                    continue
                if event is not None:
                    events.append(event)
            yield events

    def _warn(self, reason: str) -> None:
        self._bad_lines += 1
        if self._bad_lines <= MAX_WARNINGS:
            self.warnings.append(f"{self.path.name}:{self._line_number}: {reason}; line ignored")
        elif self._bad_lines == MAX_WARNINGS + 1:
            self.warnings.append(f"{self.path.name}: more lines are not events; all were ignored")

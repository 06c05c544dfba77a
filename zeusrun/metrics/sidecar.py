"""Reads the events that ranks append to the sidecar file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.sidecar.events import decode_event

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.sidecar.events import Event

MAX_WARNINGS = 5


@dataclass
class SidecarReader:
    """Tails a sidecar and returns its events; bad lines become warnings, never exceptions.

    Attributes:
        path: The sidecar; it need not exist yet.
        warnings: One sentence for each of the first bad lines.
        bad_lines: How many lines were not events.
    """

    path: Path
    warnings: list[str] = field(default_factory=list)
    bad_lines: int = 0
    _line_number: int = 0
    _tail: LineTail | None = None

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; ``final`` once the writers are gone.

        Raises:
            OSError: If the sidecar exists and cannot be read.
        """
        if self._tail is None:
            self._tail = LineTail(self.path)
        events: list[Event] = []
        while lines := self._tail.read_lines(final=final):
            for raw in lines:
                event = self._decode(raw)
                if event is not None:
                    events.append(event)
        return events

    def _decode(self, raw: bytes) -> Event | None:
        self._line_number += 1
        line = raw.replace(b"\0", b"").strip()  # a crash can leave holes that read as NUL
        if not line:
            return None
        try:
            return decode_event(line)
        except ValueError as error:
            self._warn(str(error))
            return None

    def _warn(self, reason: str) -> None:
        self.bad_lines += 1
        if self.bad_lines <= MAX_WARNINGS:
            self.warnings.append(f"{self.path.name}:{self._line_number}: {reason}; line ignored")
        elif self.bad_lines == MAX_WARNINGS + 1:
            self.warnings.append(f"{self.path.name}: more lines are not events; all were ignored")

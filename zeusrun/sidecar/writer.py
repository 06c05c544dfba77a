"""Appends events to a sidecar."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_writing
from zeusrun.sidecar.events import encode_event

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.sidecar.events import Event


class EventWriter:
    """Appends events to a sidecar; several processes may share its path."""

    def __init__(self, path: Path | str) -> None:
        self._descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._torn = False

    def write(self, event: Event) -> None:
        """Append one event.

        Raises:
            OSError: If the file system refuses.
        """
        line = (b"\n" if self._torn else b"") + encode_event(event)
        written = os.write(self._descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

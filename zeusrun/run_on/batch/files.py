"""The files of a submit that is queued: what its batch step does, what it prints, how it ends."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from zeusrun.clock import read_clock
from zeusrun.errors import UsageError, writes_to
from zeusrun.files.private import build_known, check_version, make_folder, read_file, replace_file
from zeusrun.launcher.queue.admission import Request

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1
_MAX_BYTES = 64 << 20  # a result contains the trials of a recurrence
_KEPT_S = 30 * 86_400.0  # what a submit printed, for people who look for a failure


@dataclass(frozen=True)
class QueuedFiles:
    """The files of one submit that is queued."""

    folder: Path

    @property
    def output(self) -> Path:
        """What the batch step prints."""
        return self.folder / "output.log"

    def write(self, name: str, content: bytes) -> None:
        """Write a file for the owner alone; raises ``HistoryError``."""
        path = self.folder / name
        with writes_to(path):
            make_folder(self.folder)
            replace_file(path, content, durable=False)

    def write_request(self, request: Request) -> None:
        """Write what the batch step does; raises ``HistoryError``."""
        content = json.dumps({"version": _VERSION, **asdict(request)})
        self.write("request.json", content.encode())

    def read_request(self) -> Request:
        """Return what the batch step does; raises ``UsageError`` if that cannot be read."""
        path = self.folder / "request.json"
        try:
            record = json.loads(read_file(path, _MAX_BYTES))
            check_version(record, _VERSION, path, UsageError)
            return build_known(Request, record, overrides=tuple(record["overrides"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{path}, which contains the request, cannot be read: {why}; submit the job again"
            ) from error

    def remove_result(self) -> None:
        """Remove how the submit ended before."""
        with contextlib.suppress(OSError):
            (self.folder / "result.json").unlink()

    def read_result(self) -> dict[str, Any] | None:
        """Return how the submit ended; ``None`` if it has not."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(read_file(self.folder / "result.json", _MAX_BYTES))
            return found if isinstance(found, dict) else None
        return None


def new_files(folder: Path) -> QueuedFiles:
    """Return the files of a new submit, which do not exist yet; remove those of a month ago."""
    with contextlib.suppress(OSError):  # another submit does the same
        for output in folder.glob("*/output.log"):
            # A job that was started again writes its output alone.
            if output.stat().st_mtime < read_clock() - _KEPT_S:
                shutil.rmtree(output.parent, ignore_errors=True)
    return QueuedFiles(folder / uuid4().hex[:12])


def find_files(folder: Path, allocation: str) -> QueuedFiles | None:
    """Return the files of the submit that a job runs; ``None`` if they are gone."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir(), key=_changed_at, reverse=True):
            with contextlib.suppress(UsageError):
                if QueuedFiles(path).read_request().allocation == allocation:
                    return QueuedFiles(path)
    return None


def _changed_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # another submit has removed the file
        return 0.0

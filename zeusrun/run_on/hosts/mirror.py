"""Copies what the ranks of a node write into the run directory of the head, while they write it.

The node's own files are in ``nodes/<number>`` of the run directory, on its own disk or on a shared
one. So nobody depends on a shared file system, and no two hosts append to one file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

from zeusrun.files.private import make_folder, open_for_reading, open_for_writing, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zeusrun.launcher.rundir.layout import RunPaths

_CHUNK_BYTES = 512 << 10
_NAME = re.compile(r"metrics\.jsonl|error\.json|logs/(torchrun\.log|rank[0-9]{1,9}\.(log|stack))")


def create_node_folders(paths: RunPaths, number: int) -> None:
    """Create the folders of a node's part of a run, empty; raises ``OSError``."""
    files = paths.of_node(number)
    shutil.rmtree(files.run_dir, ignore_errors=True)
    for folder in (paths.checkpoints, files.logs, files.clocks):
        make_folder(folder)


def remove_node_folders(paths: RunPaths, number: int) -> None:
    """Remove a node's part of a run that the head has copied, and folders that are empty then."""
    run_folder = paths.of_node(number).run_dir
    shutil.rmtree(run_folder, ignore_errors=True)
    folders = [run_folder.parent]
    if not paths.trial.exists():  # else they are the head's
        folders += [paths.checkpoints, paths.run_dir, paths.run_dir.parent]
    with contextlib.suppress(OSError):  # one is not empty
        for folder in folders:
            folder.rmdir()


class FileReader:
    """Reads what is new in the files of a node's ranks."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._offsets: dict[Path, int] = {}
        self._error = b""

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name of each file with new content, and a part of it: of events, whole lines.

        The record of a failure is replaced after a restart, so it is always whole.
        """
        for path in (self._paths.sidecar, *sorted(self._paths.logs.glob("*"))):
            if not _NAME.fullmatch(str(path.relative_to(self._paths.run_dir))):
                continue
            offset = self._offsets.get(path, 0)
            data = _read_from(path, offset)
            if path == self._paths.sidecar and (len(data) < _CHUNK_BYTES or b"\n" in data):
                data = data[: data.rfind(b"\n") + 1]  # else it is a part of one long line
            if data:
                self._offsets[path] = offset + len(data)
                yield str(path.relative_to(self._paths.run_dir)), data
        error = _read_from(self._paths.error, 0)
        if error != self._error:
            self._error = error
            yield self._paths.error.name, error


def _read_from(path: Path, offset: int) -> bytes:
    """Return what a file has from there on; nothing if it cannot be read now (ESTALE of NFS)."""
    try:
        with os.fdopen(open_for_reading(path), "rb", buffering=0) as file:
            return os.pread(file.fileno(), _CHUNK_BYTES, offset)
    except OSError:
        return b""


def write_copy(
    paths: RunPaths, number: int, name: str, data: bytes, to_own_time: Callable[[float], float]
) -> None:
    """Write what a node has read into the run directory; raises ``OSError``.

    The time of each event becomes that of this host's clock. Each node has a log of torchrun and a
    record of its failure; all other files are of one rank, or are appended to.
    """
    path = paths.run_dir / name
    if not _NAME.fullmatch(name):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)
    if path in {paths.torchrun_log, paths.error}:
        path = path.with_suffix(f".{number}{path.suffix}")
    if name == paths.error.name:
        write_file(path, data)
        return
    if name == paths.sidecar.name:
        data = b"".join(_as_here(each, number, to_own_time) for each in data.splitlines(True))
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # One write, so that lines of several hosts do not mix.
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def _as_here(line: bytes, number: int, to_own_time: Callable[[float], float]) -> bytes:
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
        record: dict[str, Any] = json.loads(line)
        record["t"] = to_own_time(float(record["t"]))
        if record.get("event") in {"spawned", "started"}:
            record["pid"] += number << 32  # the id of no process here, nor on another host
        return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"
    return line

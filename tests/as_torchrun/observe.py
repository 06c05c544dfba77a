"""What a run has left: its exit code, its output, its files and its processes."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import re
import shutil
import signal
import sqlite3
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests.as_torchrun.cases import SCRIPTS
from tests.runs import wait_for

MARK = "AS_TORCHRUN"
"""The environment variable by which the processes of a run are found."""


@dataclass(frozen=True)
class Seen:
    """What a run has left.

    ``code``: of rank 0; -n for signal n. ``files``: each file by its path, with what can be read
    of it. ``temporary``: how many files and folders are left in ``TMPDIR``.
    """

    code: int
    output: str
    files: dict[str, object]
    temporary: int
    left: int


@dataclass(frozen=True)
class Place:
    """The folders of one run."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def log(self) -> Path:
        return self.root / "run" / "logs" / "rank0.log"

    @property
    def environment(self) -> dict[str, str]:
        return {MARK: str(self.root), "TMPDIR": str(self.temporary)}

    def fill(self, case, first: str = "") -> None:
        """Put the script and what it needs into the working directory.

        ``first``: a line to put before the first one of the script.
        """
        self.temporary.mkdir(parents=True)
        self.work.mkdir()
        for name in case.copied:
            path, to = SCRIPTS / name, self.work / name
            to.parent.mkdir(exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, to, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.with_suffix(".py").is_file():
                shutil.copy2(path.with_suffix(".py"), to.with_suffix(".py"))
        if case.make is not None:
            case.make(self.work)
        if first:
            path = self.work / case.words[0]
            path.write_text(f"{first}\n{path.read_text()}")

    def command(self, case) -> tuple[str, ...]:
        """Return the words for Python: a script by its absolute path."""
        first, *rest = case.words
        return (first, *rest) if first == "-m" else (str(self.work / first), *rest)

    def look(self, case, code: int, log: Path | None = None) -> Seen:
        """Return what is left, once no process is left but those that may be; end these."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.end)
            wait_for(
                lambda: len(self.processes()) <= case.left, what=f"the end of {self.processes()}"
            )
            left = len(self.processes())
            output = (log or self.log).read_text(encoding="utf-8", errors="backslashreplace")
            files = {
                str(path.relative_to(self.work)): self._read(path)
                for path in sorted(self.work.rglob("*"))
                if path.is_file() and not path.is_symlink()
            }
            temporary = sum(1 for _ in self.temporary.rglob("*"))
            return Seen(code, self._plain(case, output), files, temporary, left)

    def processes(self) -> list[int]:
        """Return the living processes that have the mark of this run."""
        mark, found = f"{MARK}={self.root}\0".encode(), []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended; that of a zombie is empty
                if mark in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
        return found

    def end(self) -> None:
        """Kill what is left of this run."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _plain(self, case, text: str) -> str:
        """Take out what differs between two runs of one script: folders, addresses, chance."""
        text = re.sub(r"0x[0-9a-f]{6,16}\b", "0x", text.replace(str(self.work), "<work>"))
        text = re.sub(r"/psm_[0-9a-f]{8}\b", "/psm", text)  # a random name of shared memory
        return "\n".join(sorted(set(text.splitlines()))) if case.racy_order else text

    def _read(self, path: Path) -> object:
        reader = READERS.get(path.suffix)
        if reader is None:
            return path.read_bytes().replace(os.fsencode(self.work), b"<work>")
        try:
            return reader(path)
        except Exception as error:  # noqa: BLE001 - both runs must have left the same damage
            return type(error).__name__


def _stream(opener):
    def read(path):
        parts = []
        with opener(path, "rb") as file:
            try:
                while part := file.read(100):
                    parts.append(part)
            except EOFError:
                parts.append(b"<no end>")
        return b"".join(parts)

    return read


def _zip(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _tar(path):
    with tarfile.open(path) as archive:
        return archive.getnames()


def _h5(path):
    import h5py

    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, node: found.update({name: _h5_value(node)}))
    return found


def _h5_value(node):
    return dict(node.attrs) or (node[()].tolist() if hasattr(node, "shape") else None)


def _sqlite(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def _torch(path):
    return {k.split("/", 1)[-1]: v for k, v in _zip(path).items()}


READERS = {
    ".gz": _stream(gzip.open),
    ".bz2": _stream(bz2.open),
    ".xz": _stream(lzma.open),
    ".zip": _zip,
    ".npz": _zip,
    ".tar": _tar,
    ".h5": _h5,
    ".sqlite": _sqlite,
    ".pt": _torch,
    ".pyc": lambda _: "compiled",
}

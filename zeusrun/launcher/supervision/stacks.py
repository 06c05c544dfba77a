"""Reads where each rank is from the stacks that ``faulthandler`` wrote."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zeusrun
from zeusrun.files.private import open_for_reading, open_for_writing

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_BYTES = 1 << 20  # a hundred threads of a hundred frames

_THREAD = re.compile(r"^(Current thread|Thread) .*:$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_OWN = str(Path(zeusrun.__file__).parent)
_WORKER = str(Path(_OWN, "worker", "__main__.py"))
# The ranks run under this interpreter, too (torchrun.py).
_LIBRARIES = (
    *{
        f"{path}/"
        for name, path in sysconfig.get_paths().items()
        if name.endswith(("lib", "lib64"))
    },
    f"{_OWN}/",
    "<",  # <frozen runpy>
)


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether the file is the user's: not of Python, of an installed package, or ours."""
        return not self.file.startswith(_LIBRARIES) and "/site-packages/" not in self.file


def read_frames(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, innermost first; empty if there are none.

    The main thread is the one that runs our worker. In a child of the script that thread may be
    missing; then use the thread that took the signal, which the kernel gives to the main thread if
    it can.
    """
    starts = list(_THREAD.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    threads = [
        (start[1] == "Current thread", _frames(text[start.end() : end]))
        for start, end in zip(starts, ends, strict=False)
    ]
    mains = [frames for _, frames in threads if any(frame.file == _WORKER for frame in frames)]
    current = [frames for is_current, frames in threads if is_current]
    return next(iter([*mains, *current]), ())


def _frames(text: str) -> tuple[Frame, ...]:
    return tuple(Frame(file, int(line), function) for file, line, function in _FRAME.findall(text))


def describe_place(frames: tuple[Frame, ...]) -> str | None:
    """Return ``in all_reduce, train.py:33``: the innermost call, and the user's line before it.

    If no frame is the user's, the innermost line; ``None`` without frames.
    """
    if not frames:
        return None
    top = frames[0]
    users = next((frame for frame in frames if frame.is_users), top)
    line = f"{Path(users.file).name}:{users.line}"
    return f"at {line}" if top.function == "<module>" else f"in {top.function}, {line}"


def size_of_stack(path: Path) -> int:
    """Return the size of a stack file; 0 if there is none."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def read_stack(path: Path, offset: int) -> str:
    """Return what a rank wrote after ``offset``; empty if the file cannot be read."""
    try:
        descriptor = open_for_reading(path)
    except OSError:
        return ""
    try:
        return os.pread(descriptor, _MOST_BYTES, offset).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def keep_stacks(path: Path, heading: str, texts: Mapping[int, str]) -> None:
    """Append the stacks of all ranks to one file.

    Raises:
        OSError: If it cannot be written.
    """
    parts = [f"rank {rank}:\n{text or 'no answer'}\n" for rank, text in texts.items()]
    content = "\n".join([heading, "", *parts, ""]).encode()
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with os.fdopen(descriptor, "ab") as file:
        file.write(content)

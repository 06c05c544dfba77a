"""``error.json``: which rank failed first, and of what."""

from __future__ import annotations

import contextlib
import json
import os
import traceback
from typing import TYPE_CHECKING

from zeusrun.files.private import read_file, write_file

if TYPE_CHECKING:
    from types import TracebackType

    from zeusrun.redaction import Mask

_MEMORY_WORDS = (
    "out of memory",  # CUDA, HIP, MPS
    "can't allocate memory",  # torch's CPU allocator
    "not enough memory",  # the same, older
    "Cannot allocate memory",  # ENOMEM
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN
)
_MAX_MESSAGE = 4000
_MAX_TRACEBACK = 64_000
_MAX_RECORD_BYTES = 1 << 20  # six bytes for each of its characters at most


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one that caused it, is memory running out, on a GPU or on the host."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError) or type(current).__name__ == "OutOfMemoryError":
            return True
        if isinstance(current, (RuntimeError, OSError)) and any(
            word in _text(current) for word in _MEMORY_WORDS
        ):
            return True
        current = current.__cause__ or current.__context__
    return False


def record_failure(
    path: str,
    rank: int,
    restart: int,
    error: BaseException,
    trace: TracebackType | None,
    *,
    mask: Mask | None = None,
) -> None:
    """Write ``error.json`` unless another rank of the same restart was first.

    The first to fail is the cause; the others fail because it is gone. A failure to write is let
    go: the training has failed already, and its own message matters more.

    Args:
        path: Where to.
        rank: Of this process.
        restart: How often torchrun has restarted the ranks; a later failure replaces an earlier.
        error: What ended the script; ``SystemExit`` with a code other than 0 included.
        trace: Its traceback, without zeusrun's own frames.
        mask: What must not be written; ``None`` for nothing.
    """
    if isinstance(error, SystemExit):
        told = f"code {error.code}" if isinstance(error.code, int) else str(error.code)
        kind, message = "exit", f"the script exited with {told}"
    else:
        kind = "out_of_memory" if ran_out_of_memory(error) else "exception"
        message = _text(error)
    lines = "".join(traceback.format_exception(type(error), error, trace))
    if mask is not None:  # before they are cut, which could leave a part of a secret
        message, lines = mask.text(message), mask.text(lines)
    record = {
        "rank": rank,
        "restart": restart,
        "kind": kind,
        "type": type(error).__name__,
        "message": message[:_MAX_MESSAGE],
        "traceback": lines[-_MAX_TRACEBACK:],
    }
    temporary = f"{path}.rank{rank}"
    with contextlib.suppress(OSError):
        write_file(temporary, json.dumps(record).encode())
        recorded = failed_in_restart(path)
        if recorded is not None and recorded < restart:
            os.replace(temporary, path)  # noqa: PTH105
        else:
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)  # fails if another rank was first
            os.unlink(temporary)  # noqa: PTH108


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the script's own __str__ may fail in any way
        return "<an error whose text cannot be made>"


def failed_in_restart(path: str) -> int | None:
    """Return the restart that the recorded failure is of; ``None`` where none can be read."""
    try:
        return int(json.loads(read_file(path, _MAX_RECORD_BYTES))["restart"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None

"""Writes ``error.json``: which rank failed first, and why."""

from __future__ import annotations

import contextlib
import json
import os
import traceback

from zeusrun.files.private import read_file, write_file

_MEMORY_WORDS = (
    "out of memory",  # CUDA, HIP, MPS
    "can't allocate memory",  # torch's CPU allocator
    "not enough memory",  # the same, older
    "Cannot allocate memory",  # ENOMEM
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuDNN
)
_USAGE = 2  # the exit code of argparse and click for wrong arguments
_MAX_MESSAGE = 4000
_MAX_TRACEBACK = 64_000
_MAX_RECORD_BYTES = 1 << 20  # six bytes for each of its characters at most


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the error or one of its causes says that memory ran out, on a GPU or the host."""
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


def record_failure(path: str, rank: int, restart: int, error: BaseException) -> None:
    """Write ``error.json`` unless another rank of the same restart has done it.

    The first failure is the cause; the other ranks fail because that rank is gone. But a failure
    after one more ``restart`` by torchrun replaces it. If the disk refuses, nothing is written.
    """
    error, exit_code = _cause_of_exit(error) or error, None
    if isinstance(error, SystemExit):
        exit_code = error.code if isinstance(error.code, int) else None
        code = str(error.code) if exit_code is None else f"code {exit_code}"
        kind, message = "exit", f"the script exited with {code}"
    else:
        kind = "out_of_memory" if ran_out_of_memory(error) else "exception"
        message = _text(error)
    lines = "".join(traceback.format_exception(error))
    if len(lines) > _MAX_TRACEBACK:  # whole lines: half a secret could not be masked later
        lines = lines[-_MAX_TRACEBACK:].partition("\n")[2]
    record = {
        "rank": rank,
        "restart": restart,
        "kind": kind,
        "exit_code": exit_code,
        "type": type(error).__name__,
        "message": message[:_MAX_MESSAGE],
        "traceback": lines,
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


def _cause_of_exit(error: BaseException) -> Exception | None:
    """Return the exception that the script was handling when it exited; ``None`` if it was none.

    Hydra does so for every exception. A usage error (code 2) and a message of the script's own say
    more than what they are raised from.
    """
    if not isinstance(error, SystemExit) or not isinstance(error.code, int) or error.code == _USAGE:
        return None
    handled = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    is_exit = type(handled).__name__ == "Exit"  # by which click and typer leave
    return handled if isinstance(handled, Exception) and not is_exit else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the script's own __str__ may fail in any way
        return "<an error whose text cannot be made>"


def failed_in_restart(path: str, kind: str | None = None) -> int | None:
    """Return after which restart the recorded failure happened; ``None`` without one of a kind."""
    try:
        record = json.loads(read_file(path, _MAX_RECORD_BYTES))
        return int(record["restart"]) if kind in {None, record["kind"]} else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None

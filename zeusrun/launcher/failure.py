"""Why a training failed: the worker's ``error.json``, else what torchrun's log says."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeusrun.launcher.paths import RunPaths

_LOG_TAIL_BYTES = 64_000


@dataclass(frozen=True)
class Failure:
    """The first failure of a run.

    Attributes:
        rank: Which rank failed; ``None`` if unknown.
        out_of_memory: Whether memory ran out.
        reason: One sentence for people.
    """

    rank: int | None
    out_of_memory: bool
    reason: str


def read_failure(paths: RunPaths) -> Failure | None:
    """Return the root cause, or ``None`` if nothing was left to tell."""
    return _from_worker(paths.error) or _from_torchrun(paths.torchrun_log)


def read_traceback(paths: RunPaths) -> str | None:
    """Return the traceback of the root cause, else torchrun's last lines, else ``None``."""
    record = _read_record(paths.error)
    trace = "" if record is None else str(record.get("traceback") or "")
    return trace or "\n".join(_read_tail(paths.torchrun_log).splitlines()[-20:]) or None


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _from_worker(path: Path) -> Failure | None:
    record = _read_record(path)
    if record is None:
        return None
    try:
        rank, kind = int(record["rank"]), str(record["kind"])
        message, trace = str(record["message"]), str(record.get("traceback", ""))
        name = str(record["type"])
    except (ValueError, KeyError, TypeError):
        return None
    first_line = message.strip().splitlines()[0][:200] if message.strip() else ""
    what = first_line if kind == "exit" else f"{name}: {first_line}" if first_line else name
    frames = re.findall(r'File "([^"]+)", line (\d+)', trace)
    where = f" at {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames and kind != "exit" else ""
    return Failure(rank, kind == "out_of_memory", f"rank {rank}{where}: {what}")


def _from_torchrun(path: Path) -> Failure | None:
    """Read torchrun's table of failures: the exit code of the first rank that failed."""
    text = _read_tail(path)
    _, found, root = text.rpartition("Root Cause (first observed failure):")
    rank = re.search(r"^\s*rank\s*:\s*(\d+)", root, re.MULTILINE)
    code = re.search(r"^\s*exitcode\s*:\s*(-?\d+)", root, re.MULTILINE)
    if found and rank and code:
        how = _describe_exit(int(code[1]))
        return Failure(int(rank[1]), out_of_memory=False, reason=f"rank {rank[1]} {how}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (
        Failure(None, out_of_memory=False, reason=f"torchrun: {lines[-1][:200]}") if lines else None
    )


def _read_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

"""Why a training failed: by the worker's ``error.json``, else by torchrun's log."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.choice.crash import DAMAGED, USAGE
from zeusrun.files.private import open_for_reading, read_file
from zeusrun.plugins import find_damaged_packages
from zeusrun.redaction import Mask

if TYPE_CHECKING:
    from zeusrun.launcher.rundir.layout import RunPaths

STALLED = "stalled"
LAUNCHER_DIED = "its launcher died"
RUN_DELETED = "the run directory was deleted while the training ran"
OUT_OF_HOST_MEMORY = "the host ran out of memory, and the kernel chose it"

_LOG_TAIL_BYTES = 64_000
_MAX_RECORD_BYTES = 1 << 20
_MAX_REASON = 500
_MAX_LINE = 200
_MAX_ADVICE = 30  # lines
_EXTERNAL_SIGTERM = 143  # the worker's exit code: 128 + SIGTERM
_NO_MASK = Mask()
_LINE_END = re.compile(r"[\r\n]")  # \r: of progress bars
# A row of torchrun's table of failures.
_ROW = re.compile(
    r"^\s*rank\s*:\s*(\d{1,9})\b.*\n\s*exitcode\s*:\s*(-?\d{1,9})\b(?: \(pid: (\d+)\))?",
    re.MULTILINE,
)
# Messages of gloo, NCCL and TCPStore in a rank that has lost another one.
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|\bpeer|\bremote|NCCL", re.IGNORECASE
)
_RANK = re.compile(r"^rank \d+(?: at |:? )")
_ENDING = re.compile(r"(exited with code|ended by signal) -?\d+|SIG[A-Z]+\d*")
_EXITED = re.compile(r"exited with code \d+$")
# What torch.multiprocessing raises in the parent; the text ends with the child's traceback.
_OF_SPAWNED = "ProcessRaisedException"
_RAISED = re.compile(r"(?:\w+\.){0,20}(\w+)(?:: ?(.*))?")
_LAST_LINE = re.compile(r"(exited with code \d+): .*", re.DOTALL)
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")
# PyTorch's message when the kernel has killed a data loader's process.
_KILLED_CHILD = re.compile(r"DataLoader worker .*(killed by signal: Killed|exited unexpectedly)")
_ASKS_FOR_SIZE = re.compile(r"\bget_terminal_size\b|\bstty\b")
_NO_TERMINAL = (
    "the script asks for the size of a terminal; it has one only as the single rank of a zeusrun "
    "that was started in a terminal. Elsewhere, put the command into  script -qec 'zeusrun ...' "
    "/dev/null  which makes one"
)


@dataclass(frozen=True)
class Failure:
    """The first failure of a run."""

    rank: int | None  # which failed; ``None`` if unknown
    out_of_memory: bool
    reason: str  # one sentence for people
    last_line: str | None = None  # what the log says, if only the rank's exit code is known
    is_own: bool = False  # an exception of the rank, not the consequence of another one's end
    advice: str | None = None  # what to do

    @property
    def sentence(self) -> str:
        """The reason with what the rank's log says, and what to do."""
        text = self.reason if self.last_line is None else f"{self.reason}: {self.last_line}"
        return _shortened(text if self.advice is None else f"{text}; {self.advice}", _MAX_REASON)

    @property
    def cause(self) -> str:
        """The reason without ranks, sizes and addresses, so that similar failures are equal."""
        text = _RANK.sub("", self.reason)
        if text.startswith(STALLED):
            return STALLED
        text = _LAST_LINE.sub(r"\1", text)  # the reason may be a stored sentence
        return text if _ENDING.search(text) else _VARIES.sub("#", text)


def read_failure(
    paths: RunPaths, restarts: int, oom_kills: int | None = None, mask: Mask = _NO_MASK
) -> Failure | None:
    """Return the root cause of a failed run; ``None`` if there is no sign of one.

    A rank that is killed writes no ``error.json``; then the first rank that lost its connection to
    it writes one. So if the error is a lost connection, torchrun's table of exit codes comes first.
    Errors before the last of ``restarts`` are not the cause. ``oom_kills`` are the kernel's out-of-
    memory kills during the run; ``None`` if unknown.
    """
    log = _read_tail(paths.torchrun_log, mask)
    recorded = _from_worker(paths.error, restarts, mask)
    if recorded is not None and oom_kills and _KILLED_CHILD.search(recorded.reason):
        return replace(recorded, out_of_memory=True)
    certain = recorded is not None and (
        recorded.out_of_memory or not _LOST_PEER.search(recorded.reason)
    )
    found = recorded if certain else _killed(log, oom_kills) or recorded or _from_torchrun(log)
    if found is None or found.rank is None:
        return found
    printed = _read_tail(paths.rank_log(found.rank), mask)
    found = replace(found, advice=_NO_TERMINAL if _needs_terminal(printed) else None)
    if not _EXITED.search(found.reason):
        return found
    raised = None if USAGE.search(found.reason) else _last_raised(printed, within=_MAX_ADVICE)
    lines = [": ".join(filter(None, raised))] if raised else _LINE_END.split(printed)
    printable = ("".join(filter(str.isprintable, line)).strip() for line in reversed(lines))
    return replace(found, last_line=next((_shortened(line) for line in printable if line), None))


def _last_raised(text: str, within: int | None = None) -> tuple[str, str] | None:
    """Return type and first line of the exception of the last traceback; ``None`` without one.

    ``within``: at most so many lines may follow it, such as advice; what is older was handled.
    """
    _, found, block = text.rpartition("Traceback (most recent call last):\n")
    lines = block.splitlines()
    at = next((n for n, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    if not found or not (match := _RAISED.fullmatch("".join(lines[at : at + 1]))):
        return None
    return None if within is not None and len(lines) - at > within else (match[1], match[2] or "")


def _needs_terminal(printed: str) -> bool:
    """Whether a rank failed because it asked for the size of a terminal, by its log."""
    before, raised, trace = printed.rpartition("Traceback (most recent call last)")
    told = any(line.startswith("stty: ") for line in before.splitlines()[-5:])
    return raised != "" and (told or _ASKS_FOR_SIZE.search(trace) is not None)


def run_deleted(paths: RunPaths) -> Failure | None:
    """Return the failure of a training that has deleted its run directory, else ``None``."""
    try:
        paths.trial.lstat()  # written before the training starts
    except (FileNotFoundError, NotADirectoryError):
        text = f"{RUN_DELETED}; the script must leave {paths.run_dir} (ZEUSRUN_RUN_DIR) as it is"
        return Failure(None, out_of_memory=False, reason=text)
    except OSError:
        pass  # unknown
    return None


def torchrun_was_signalled(paths: RunPaths) -> bool:
    """Whether torchrun's log says that a signal ended torchrun."""
    return "SignalException" in _read_tail(paths.torchrun_log)


def read_traceback(paths: RunPaths, mask: Mask = _NO_MASK) -> str | None:
    """Return the traceback of the root cause, else torchrun's last lines, else ``None``.

    What torchrun says about a signal that it got is not the cause.
    """
    trace = mask.text(str((_read_record(paths.error) or {}).get("traceback") or ""))
    log = "" if torchrun_was_signalled(paths) else _read_tail(paths.torchrun_log, mask)
    return trace or "\n".join(log.splitlines()[-20:]) or None


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_file(path, _MAX_RECORD_BYTES).decode(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _from_worker(path: Path, restarts: int, mask: Mask) -> Failure | None:
    record = _read_record(path)
    if record is None:
        return None
    try:
        rank, kind = int(record["rank"]), str(record["kind"])
        message, trace = str(record["message"]), str(record.get("traceback", ""))
        name, restart = str(record["type"]), int(record.get("restart", 0))
    except (ValueError, KeyError, TypeError, OverflowError):  # infinity is no rank
        return None
    if restart < restarts:
        return None
    if name == _OF_SPAWNED and (raised := _last_raised(trace)):
        name, message = raised
    first_line = _shortened(next(iter(mask.cut_text(message).strip().splitlines()), ""))
    reason = f"rank {rank}: {first_line}"
    if kind == "exit":
        return Failure(rank, out_of_memory=False, reason=reason)
    frames = [
        frame
        for frame in re.findall(r'File "([^"]+)", line (\d+)', trace)
        if not frame[0].endswith("/zeusrun/worker/run.py")  # it rejected the script's value
    ]
    where = f" at {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""
    reason = f"rank {rank}{where}: {name}" + (f": {first_line}" if first_line else "")
    is_own = not (_LOST_PEER.search(reason) or "DataLoader worker" in reason)
    return Failure(rank, kind == "out_of_memory", reason, is_own=is_own)


def _killed(log: str, oom_kills: int | None) -> Failure | None:
    """Return the rank that a signal other than SIGTERM ended, by torchrun's last table."""
    _, _, table = log.rpartition("FAILED")
    ended_by_torchrun = set(re.findall(r"Unable to shutdown process (\d+)", log))
    for rank, code, pid in _ROW.findall(table):
        if int(code) < 0 and -int(code) != signal.SIGTERM and pid not in ended_by_torchrun:
            killed = int(code) == -signal.SIGKILL
            by_kernel = killed and bool(oom_kills)
            may_be = "; the kernel's out-of-memory killer does that"
            hint = f": {OUT_OF_HOST_MEMORY}" if by_kernel else may_be if oom_kills is None else ""
            how = _describe_exit(int(code)) + hint * killed
            return Failure(int(rank), out_of_memory=by_kernel, reason=f"rank {rank} {how}")
    return None


def _from_torchrun(log: str) -> Failure | None:
    """Return the first failure of torchrun's table, else torchrun's last line."""
    _, found, root = log.rpartition("Root Cause (first observed failure):")
    row = _ROW.search(root)
    if found and row:
        reason = f"rank {row[1]} {_describe_exit(int(row[2]))}"
        return Failure(int(row[1]), out_of_memory=False, reason=reason)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return None
    reason = f"torchrun: {_shortened(lines[-1])}"
    if "importlib/metadata" in log:  # torch reads the entry points of all packages
        packages = find_damaged_packages().items()
        reason += "".join(f"; {name} {DAMAGED}: {damage}" for name, damage in packages)
    return Failure(None, out_of_memory=False, reason=reason)


def _shortened(text: str, most: int = _MAX_LINE) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _read_tail(path: Path, mask: Mask = _NO_MASK) -> str:
    try:
        with open(open_for_reading(path), "rb") as file:  # noqa: PTH123 - a descriptor
            cut = file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES
            file.seek(max(0, cut))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    if mask and cut > 0:  # the first line may be the end of a secret, which the mask cannot find
        text = "".join(_LINE_END.split(text, maxsplit=1)[1:])
    return mask.text(text)


def _describe_exit(code: int) -> str:
    if code == _EXTERNAL_SIGTERM:
        return "ended on a SIGTERM that zeusrun did not send"
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, ``signal 99`` for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

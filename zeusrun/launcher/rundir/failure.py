"""Why a training failed: the worker's ``error.json``, else what torchrun's log says."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.files.private import open_for_reading, read_file

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
_ENDED_BY_STRANGER = 143  # how the worker exits then: 128 + SIGTERM
# A row of torchrun's table of failures.
_ROW = re.compile(
    r"^\s*rank\s*:\s*(\d{1,9})\b.*\n\s*exitcode\s*:\s*(-?\d{1,9})\b(?: \(pid: (\d+)\))?",
    re.MULTILINE,
)
# What gloo, NCCL and TCPStore say when another rank is gone.
_COMPLAINT = re.compile(
    r"connection (closed|reset|refused)|broken pipe|\bpeer|\bremote|NCCL", re.IGNORECASE
)


_RANK = re.compile(r"^rank \d+(?: at |:? )")
_ENDING = re.compile(r"(exited with code|ended by signal) -?\d+|SIG[A-Z]+\d*")
_EXITED = re.compile(r"exited with code \d+$")
_USAGE = re.compile(r"exited with code 2$")
_BROKEN = re.compile(r"(?:^|: )(?:Import|ModuleNotFound|Syntax|Indentation|Tab)Error\b")
_LAST_LINE = re.compile(r"(exited with code \d+): .*", re.DOTALL)
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")
# What PyTorch says of a loader's process that the kernel has killed.
_KILLED_CHILD = re.compile(r"DataLoader worker .*(killed by signal: Killed|exited unexpectedly)")


@dataclass(frozen=True)
class Failure:
    """The first failure of a run.

    Attributes:
        rank: Which rank failed; ``None`` if unknown.
        out_of_memory: Whether memory ran out.
        reason: One sentence for people.
        last_line: What the rank printed last, where its exit code alone says little.
        is_own: Whether it is an exception that the rank recorded, and not one of another rank or
            of a data loader that ended.
    """

    rank: int | None
    out_of_memory: bool
    reason: str
    last_line: str | None = None
    is_own: bool = False

    @property
    def sentence(self) -> str:
        """The reason with the rank's last line."""
        text = self.reason if self.last_line is None else f"{self.reason}: {self.last_line}"
        return _shortened(text, _MAX_REASON)

    @property
    def cause(self) -> str:
        """The reason without what differs between failures that are alike.

        Which rank was the first is chance, and messages hold sizes and addresses; the number of
        an exit code or a signal is the cause itself.
        """
        text = _RANK.sub("", self.reason)
        if text.startswith(STALLED):
            return STALLED
        text = _LAST_LINE.sub(r"\1", text)  # where the reason is a sentence already
        if _ENDING.search(text):
            return text
        return _VARIES.sub("#", text)


def read_failure(paths: RunPaths, restarts: int, oom_kills: int | None = None) -> Failure | None:
    """Return the root cause, or ``None`` if nothing was left to tell.

    The first to fail says so in ``error.json``; but a rank that was killed cannot, and then the
    first to write is one that misses it. So where a rank complains of others, torchrun's table of
    exit codes is asked for one that a signal ended.

    Args:
        paths: Files of the run.
        restarts: How often the ranks were restarted; a record of an earlier life is no cause.
        oom_kills: How often the kernel has killed for want of memory while it ran; ``None`` if
            unknown.
    """
    log = _read_tail(paths.torchrun_log)
    said = _from_worker(paths.error, restarts)
    if said is not None and oom_kills and _KILLED_CHILD.search(said.reason):
        return replace(said, out_of_memory=True)
    if said is not None and (said.out_of_memory or not _COMPLAINT.search(said.reason)):
        return _with_last_line(said, paths)
    found = _killed(log, oom_kills) or said or _from_torchrun(log)
    return None if found is None else _with_last_line(found, paths)


def run_deleted(paths: RunPaths) -> Failure | None:
    """Return the failure of a training that has deleted its run directory; ``None`` if it has not.

    What it reported is deleted, too, so that nothing says whether it reached its target.
    """
    try:
        paths.trial.lstat()  # from before the training starts
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:  # it cannot be seen now
        return None
    else:
        return None
    reason = f"{RUN_DELETED}; the script must leave {paths.run_dir} (ZEUSRUN_RUN_DIR) as it is"
    return Failure(None, out_of_memory=False, reason=reason)


def is_permanent(reason: str, cause: str, *, same_choice: bool) -> bool:
    """Whether a crash would come again, so that the run is not tried again.

    Args:
        reason: Of the trial; ends with what the rank printed last.
        cause: Of the trial.
        same_choice: Whether the next attempt has the same batch size. Exit code 2 is a usage
            error, and the arguments may be valid with another batch size.
    """
    broken = _BROKEN.search(cause) or _BROKEN.search(reason)
    return broken is not None or (same_choice and _USAGE.search(cause) is not None)


def _with_last_line(failure: Failure, paths: RunPaths) -> Failure:
    """Add what the rank printed last, where all that is known is its exit code."""
    if failure.rank is None or not _EXITED.search(failure.reason):
        return failure
    lines = re.split(r"[\r\n]", _read_tail(paths.rank_log(failure.rank)))  # progress bars use \r
    printable = ("".join(filter(str.isprintable, line)).strip() for line in reversed(lines))
    last = next((_shortened(line) for line in printable if line), None)
    return replace(failure, last_line=last)


def torchrun_was_signalled(paths: RunPaths) -> bool:
    """Whether torchrun says that it ended because of a signal to itself."""
    return "SignalException" in _read_tail(paths.torchrun_log)


def read_traceback(paths: RunPaths) -> str | None:
    """Return the traceback of the root cause, else torchrun's last lines, else ``None``."""
    record = _read_record(paths.error)
    trace = "" if record is None else str(record.get("traceback") or "")
    return trace or "\n".join(_read_tail(paths.torchrun_log).splitlines()[-20:]) or None


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_file(path, _MAX_RECORD_BYTES).decode(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _from_worker(path: Path, restarts: int) -> Failure | None:
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
    first_line = _shortened(message.strip().splitlines()[0]) if message.strip() else ""
    what = first_line if kind == "exit" else f"{name}: {first_line}" if first_line else name
    frames = [
        frame
        for frame in re.findall(r'File "([^"]+)", line (\d+)', trace)
        if not frame[0].endswith("/zeusrun/worker/context.py")  # refused what the script gave it
    ]
    where = f" at {Path(frames[-1][0]).name}:{frames[-1][1]}" if frames and kind != "exit" else ""
    reason = f"rank {rank}{where}: {what}"
    is_own = kind != "exit" and not (_COMPLAINT.search(reason) or "DataLoader worker" in reason)
    return Failure(rank, kind == "out_of_memory", reason, is_own=is_own)


def _killed(log: str, oom_kills: int | None) -> Failure | None:
    """Return the rank that torchrun's last table says was killed by a signal other than SIGTERM.

    A SIGKILL while the kernel has killed for want of memory is taken for its doing.
    """
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
    """Read torchrun's table of failures: the exit code of the first rank that failed."""
    _, found, root = log.rpartition("Root Cause (first observed failure):")
    row = _ROW.search(root)
    if found and row:
        reason = f"rank {row[1]} {_describe_exit(int(row[2]))}"
        return Failure(int(row[1]), out_of_memory=False, reason=reason)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return None
    return Failure(None, out_of_memory=False, reason=f"torchrun: {_shortened(lines[-1])}")


def _shortened(text: str, most: int = _MAX_LINE) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _read_tail(path: Path) -> str:
    try:
        with open(open_for_reading(path), "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _describe_exit(code: int) -> str:
    if code == _ENDED_BY_STRANGER:
        return "ended on a SIGTERM that zeusrun did not send"
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, ``signal 99`` for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

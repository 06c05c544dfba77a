"""Why a training failed: by the worker's ``error.json``, else by torchrun's log."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.errors import SHORTAGES
from zeusrun.files.private import NO_SPACE, read_file, write_file
from zeusrun.launcher.rundir.logs import read_end
from zeusrun.plugins import find_damaged_packages
from zeusrun.reasons import ReasonCode
from zeusrun.redaction import Mask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.launcher.rundir.layout import RunPaths

NO_CAUSE = "torchrun failed without a recorded cause"

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
_WARNING = re.compile(r"\[[IW]\d{4} ")  # a line of torch's C++ log
_USAGE = 2  # the exit code of argparse and click for wrong arguments
_BROKEN = re.compile(
    r"(?:^|: )(?:(?:Import|ModuleNotFound|Syntax|Indentation|Tab)Error\b|No module named )"
)
_FULL = re.compile(
    f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}|StorageFull|errno = {errno.ENOSPC}\\b"
)
_CANNOT_SAVE = re.compile(r"inline_container|PytorchStreamWriter|file write failed|\[Errno 27\]")
_PROBE_BYTES = 1 << 16  # a disk that is full for a model may still have some KB
# What torch.multiprocessing raises in the parent; the text ends with the child's traceback.
_OF_SPAWNED = "ProcessRaisedException"
_RAISED = re.compile(r"(?:\w+\.){0,20}(\w+)(?:: ?(.*))?")
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
    reason: str  # one sentence for people
    code: ReasonCode = ReasonCode.CRASHED
    cause: str = NO_CAUSE  # the reason without ranks, sizes and addresses, to compare failures
    exit_code: int | None = None  # of the rank, if only that is known
    last_line: str | None = None  # what the log says then
    lost_peer: bool = False  # it may be the consequence of another one's end
    of_file: bool = False  # it may be the consequence of a full disk
    is_own: bool = False  # an exception of the rank, not the consequence of another one's end
    advice: str | None = None  # what to do

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out, on a GPU or the host."""
        return self.code is ReasonCode.OUT_OF_MEMORY

    @property
    def sentence(self) -> str:
        """The reason with what the rank's log says, and what to do."""
        text = self.reason if self.last_line is None else f"{self.reason}: {self.last_line}"
        return _shortened(text if self.advice is None else f"{text}; {self.advice}", _MAX_REASON)


def read_failure(
    paths: RunPaths, restarts: int, oom_kills: int | None = None, mask: Mask = _NO_MASK
) -> Failure | None:
    """Return the root cause of a failed run; ``None`` if there is no sign of one.

    A rank that is killed writes no ``error.json``; then the first rank that lost its connection to
    it writes one. So if the error is a lost connection, torchrun's table of exit codes comes first.
    Errors before the last of ``restarts`` are not the cause. ``oom_kills`` are the kernel's out-of-
    memory kills during the run; ``None`` if unknown.
    """
    logs = [read_end(path, mask) for path in paths.all_torchrun_logs]
    errors = (_from_worker(path, restarts, oom_kills, mask) for path in paths.all_errors)
    recorded = [each for each in errors if each is not None]
    certain = [each for each in recorded if each.out_of_memory or not each.lost_peer]
    killed = (_killed(log, oom_kills) for log in logs if not certain)
    found = next(filter(None, (*certain, *killed, *recorded, *map(_from_torchrun, logs))), None)
    if found is None or found.rank is None:
        return found
    printed = read_end(paths.rank_log(found.rank), mask)
    found = replace(found, advice=_NO_TERMINAL if _needs_terminal(printed) else None)
    if found.exit_code is None:
        return found
    usage = found.exit_code == _USAGE
    raised = None if usage else _last_raised(printed, within=_MAX_ADVICE)
    lines = [": ".join(filter(None, raised))] if raised else _LINE_END.split(printed)
    printable = ("".join(filter(str.isprintable, line)).strip() for line in reversed(lines))
    last = next((_shortened(line) for line in printable if line), None)
    code = _code_of(last or "", ReasonCode.USAGE_ERROR if usage else ReasonCode.CRASHED)
    # If the log has no traceback, the disk may have been too full for it.
    of_file = raised is None or _CANNOT_SAVE.search(last or "") is not None
    return replace(found, last_line=last, code=code, of_file=of_file)


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
    stty_failed = any(line.startswith("stty: ") for line in before.splitlines()[-5:])
    return raised != "" and (stty_failed or _ASKS_FOR_SIZE.search(trace) is not None)


def lost_host(why: str | None) -> Failure | None:
    """Return the failure of a training that has lost a host; ``why`` names it."""
    return None if why is None else Failure(None, why, ReasonCode.HOST_LOST)


def run_deleted(paths: RunPaths) -> Failure | None:
    """Return the failure of a training that has deleted its run directory, else ``None``."""
    try:
        paths.trial.lstat()  # written before the training starts
    except (FileNotFoundError, NotADirectoryError):
        text = (
            "the run directory was deleted while the training ran; the script must leave "
            f"{paths.run_dir} (ZEUSRUN_RUN_DIR) as it is"
        )
        return Failure(None, text, ReasonCode.RUN_DELETED)
    except OSError:
        pass  # unknown
    return None


def blame_disk(paths: RunPaths, failure: Failure | None) -> Failure | None:
    """Return a failure with a full disk as its reason, if that may be and no file can grow."""
    if failure is not None and not failure.of_file:
        return failure
    probe = paths.run_dir / "trial.probe.tmp"
    try:
        write_file(probe, b" " * _PROBE_BYTES)
    except OSError as error:
        if error.errno in NO_SPACE:
            cause, text = str(error.strerror), f"{paths.run_dir}: {error.strerror}"
            found = failure or Failure(None, text, ReasonCode.DISK_FULL, cause)
            return replace(found, code=ReasonCode.DISK_FULL, advice=SHORTAGES[error.errno])
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return failure


def _code_of(message_text: str, otherwise: ReasonCode = ReasonCode.CRASHED) -> ReasonCode:
    """Return what an error is by what Python says: ``ImportError: cannot import name``."""
    if _FULL.search(message_text):
        return ReasonCode.DISK_FULL
    return ReasonCode.CANNOT_IMPORT if _BROKEN.search(message_text) else otherwise


def torchrun_was_signalled(paths: RunPaths, host: int | None = None) -> bool:
    """Whether torchrun's log says that a signal ended torchrun; ``host``: that of one of them."""
    log = paths.torchrun_log.with_suffix(f".{host}.log") if host else paths.torchrun_log
    logs = paths.all_torchrun_logs if host is None else [log]
    return any("SignalException" in read_end(path) for path in logs)


def read_traceback(paths: RunPaths, mask: Mask = _NO_MASK) -> str | None:
    """Return the traceback of the root cause, else torchrun's last lines, else ``None``.

    What torchrun says about a signal that it got is not the cause.
    """
    records = [_read_record(path) or {} for path in paths.all_errors]
    records.sort(key=lambda record: _LOST_PEER.search(str(record.get("message"))) is not None)
    traces = (mask.text(str(record.get("traceback") or "")) for record in records)
    trace = next(filter(None, traces), "")
    log = "" if torchrun_was_signalled(paths) else read_end(paths.torchrun_log, mask)
    return trace or "\n".join(log.splitlines()[-20:]) or None


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(read_file(path, _MAX_RECORD_BYTES).decode(errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _from_worker(path: Path, restarts: int, oom_kills: int | None, mask: Mask) -> Failure | None:
    record = _read_record(path)
    if record is None:
        return None
    try:
        rank, kind = int(record["rank"]), str(record["kind"])
        message, trace = str(record["message"]), str(record.get("traceback", ""))
        name, restart = str(record["type"]), int(record.get("restart", 0))
        exit_code = None if record.get("exit_code") is None else int(record["exit_code"])
    except (ValueError, KeyError, TypeError, OverflowError):  # infinity is no rank
        return None
    if restart < restarts:
        return None
    if name == _OF_SPAWNED and (raised := _last_raised(trace)):
        name, message = raised
    first_line = _shortened(next(iter(mask.cut_text(message).strip().splitlines()), ""))
    exited = kind == "exit"
    message_text = ": ".join(filter(None, ("" if exited else name, first_line)))
    frames = [
        frame
        for frame in re.findall(r'File "([^"]+)", line (\d+)', "" if exited else trace)
        if not frame[0].endswith("/zeusrun/worker/run.py")  # it rejected the script's value
    ]
    where = f"{Path(frames[-1][0]).name}:{frames[-1][1]}: " if frames else ""
    if first_line.startswith("zeusrun: "):  # zeusrun refuses what the script does
        where, message_text = "", first_line.removeprefix("zeusrun: ")
    memory = kind == "out_of_memory" or (oom_kills and _KILLED_CHILD.search(message_text))
    lost_peer = _LOST_PEER.search(message_text) is not None
    return Failure(
        rank,
        f"rank {rank}{' at ' if where else ': '}{where}{message_text}",
        ReasonCode.OUT_OF_MEMORY if memory else _code_of(message_text),
        _without_numbers(f"{where}{message_text}") if exit_code is None else message_text,
        exit_code,
        lost_peer=lost_peer,
        of_file=_CANNOT_SAVE.search(message_text) is not None,
        is_own=not (exited or lost_peer or "DataLoader worker" in message_text),
    )


def _killed(log: str, oom_kills: int | None) -> Failure | None:
    """Return the rank that a signal other than SIGTERM ended, by torchrun's last table."""
    _, _, table = log.rpartition("FAILED")
    ended_by_torchrun = set(re.findall(r"Unable to shutdown process (\d+)", log))
    for rank, code, pid in _ROW.findall(table):
        if int(code) < 0 and -int(code) != signal.SIGTERM and pid not in ended_by_torchrun:
            killed = int(code) == -signal.SIGKILL
            by_kernel = killed and bool(oom_kills)
            may_be = "; the kernel's out-of-memory killer does that"
            full = ": the host ran out of memory, and the kernel chose it"
            hint = full if by_kernel else may_be if oom_kills is None else ""
            how = describe_exit(int(code)) + hint * killed
            kind = ReasonCode.OUT_OF_MEMORY if by_kernel else ReasonCode.CRASHED
            return Failure(int(rank), f"rank {rank} {how}", kind, cause=how)
    return None


def _from_torchrun(log: str) -> Failure | None:
    """Return the first failure of torchrun's table, else torchrun's last line."""
    _, found, root = log.rpartition("Root Cause (first observed failure):")
    row = _ROW.search(root)
    if found and row:
        code, how = int(row[2]), describe_exit(int(row[2]))
        exited = None if code < 0 or code == _EXTERNAL_SIGTERM else code
        return Failure(int(row[1]), f"rank {row[1]} {how}", cause=how, exit_code=exited)
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = [line for line in lines if not _WARNING.match(line)]
    if not lines:
        return None
    # torch reads the entry points of all packages.
    damaged = find_damaged_packages() if "importlib/metadata" in log else {}
    text = f"torchrun: {_shortened(lines[-1])}"
    text += "".join(f"; {name} is a damaged package: {what}" for name, what in damaged.items())
    kind = ReasonCode.CANNOT_IMPORT if damaged else _code_of(lines[-1])
    return Failure(None, text, kind, cause=_without_numbers(text))


def _without_numbers(text: str) -> str:
    return _VARIES.sub("#", text)


def _shortened(text: str, limit: int = _MAX_LINE) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def describe_exit(code: int) -> str:
    """Return how a process has ended, by its exit code; one below 0 is the number of a signal."""
    if code == _EXTERNAL_SIGTERM:
        return "ended on a SIGTERM that zeusrun did not send"
    return f"exited with code {code}" if code >= 0 else f"was ended by {signal_name(-code)}"


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, ``signal 99`` for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills(root: Path = Path("/")) -> int | None:
    """Return the out-of-memory kills so far in this process's control group, else on this host.

    ``None`` if the kernel does not count. ``memory.events`` of cgroup v2, ``memory.oom_control`` of
    v1 and ``/proc/vmstat`` have a line ``oom_kill N`` (Linux 4.13 and later).
    """
    for path in (*_control_group_files(root), root / "proc/vmstat"):
        try:
            found = _COUNT.search(path.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _control_group_files(root: Path) -> Iterator[Path]:
    """Yield the files that may hold the count of this process's control group.

    In a container, /proc may name the group's path on the host, while the group itself is mounted.
    """
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = group.lstrip("/")
        if "memory" in controllers.split(","):
            yield mounts / "memory" / inside / "memory.oom_control"
            yield mounts / "memory/memory.oom_control"
        elif not controllers:
            for mount in (mounts, mounts / "unified"):
                yield mount / inside / "memory.events"
                yield mount / "memory.events"

"""The exit codes of zeusrun, the exceptions that carry them, and advice for their messages."""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SHORTAGES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota on that disk",
    errno.EFBIG: "raise the file size limit (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files: `ulimit -n`",
    errno.ENFILE: "this machine has too many open files; end what does not need them",
    errno.ENOMEM: "end other programs, or raise the memory limit (`ulimit -v`, or the container's)",
    errno.EAGAIN: "end other processes, or raise their limit (`ulimit -u`, or the container's)",
}
"""What to do if the machine has run out of something, by errno."""

_ACCESS = "give yourself access to it, or point ZEUSRUN_HOME to a directory of your own"
_IN_THE_WAY = "a directory is expected there: move the file in the way, or change ZEUSRUN_HOME"
_HOME_ADVICE = {
    **SHORTAGES,
    errno.EROFS: _ACCESS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.ENAMETOOLONG: "shorten the job's name",
    errno.ENOLCK: "point ZEUSRUN_HOME to a local disk, or mount its present disk with locks",
}
# Messages of the dynamic loader and of CPython if there is too little memory.
_NO_THREAD = "can't start new thread"
_UNLOADED = re.compile("failed to map segment|annot allocate memory", re.IGNORECASE)


class ExitCode(IntEnum):
    """Exit codes of the ``zeusrun`` command. Scripts rely on them."""

    REACHED = 0
    BUG = 1
    BAD_INPUT = 2
    TRAINING_FAILED = 3
    TARGET_MISSED = 4
    LAUNCH = 5
    HISTORY = 6
    BUSY = 75
    TIMED_OUT = 124
    SIGNAL_BASE = 128


class ZeusrunError(Exception):
    """Something a user can act on. The message says where, what, and what to do next."""

    exit_code: int = ExitCode.BUG


class JobFileError(ZeusrunError):
    """The job file, or an override of it, is not valid."""

    exit_code = ExitCode.BAD_INPUT


class UsageError(ZeusrunError):
    """A flag, an argument or an environment variable is not valid."""

    exit_code = ExitCode.BAD_INPUT


class DeviceError(ZeusrunError):
    """A device that the job needs is missing or does not respond."""

    exit_code = ExitCode.LAUNCH


class VisibleGpusError(DeviceError):
    """``CUDA_VISIBLE_DEVICES`` names a GPU that is not in this machine, or the same one twice."""


class LimitRefusedError(DeviceError):
    """Neither NVML nor a ``zeusd`` allows this user to set a power limit."""


class BusyError(ZeusrunError):
    """Another run is in the way."""

    exit_code: int = ExitCode.BUSY


class LaunchError(ZeusrunError):
    """The training process could not be started."""

    exit_code = ExitCode.LAUNCH


class ExportError(ZeusrunError):
    """A server to which runs are exported refuses them or does not respond; or a disk is full."""

    exit_code = ExitCode.LAUNCH


class HistoryError(ZeusrunError):
    """The history cannot be read or written."""

    exit_code = ExitCode.HISTORY


def advice_on(error: OSError, otherwise: str) -> str:
    """Return what to do about an error: about the shortage if it is one, else ``otherwise``."""
    return SHORTAGES.get(error.errno or 0, otherwise)


def home_advice(error: OSError) -> str:
    """Return what to do about an error with a file in zeusrun's home."""
    return _HOME_ADVICE.get(error.errno or 0, "check that disk")


@contextlib.contextmanager
def writes_to(path: Path) -> Iterator[None]:
    """Raise ``HistoryError`` if a file or directory of zeusrun's home cannot be written."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror}; {home_advice(error)}"
        raise HistoryError(f"{path} cannot be written: {reason}") from error


def describe_shortage(error: BaseException) -> str | None:
    """Return a sentence on what the machine has run out of; ``None`` for any other error."""
    if isinstance(error, MemoryError) or (
        isinstance(error, ImportError) and _UNLOADED.search(str(error))
    ):
        return f"there is not enough memory for zeusrun itself; {SHORTAGES[errno.ENOMEM]}"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return f"no thread can be started; {SHORTAGES[errno.EAGAIN]}"
    if not isinstance(error, OSError) or error.errno not in SHORTAGES:
        return None
    where = "" if error.filename is None else f"{error.filename}: "
    return f"{where}{error.strerror}; {SHORTAGES[error.errno]}"


def did_you_mean(name: str, known: Sequence[str], rest: str = "") -> str:
    """Return the end of a message, with a known name that is similar; empty if there is none.

    ``rest`` is what stood after the name, and is repeated.
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0] + rest!r}?" if close else ""


def list_known(name: str, jobs: Sequence[str], run: str = "") -> str:
    """Return which jobs there are, and which one was probably meant by a name that none has.

    ``run`` is what stood after the name, such as ``-7-1``.
    """
    return f"known jobs: {', '.join(jobs) or 'none yet'}{did_you_mean(name, jobs, run)}"

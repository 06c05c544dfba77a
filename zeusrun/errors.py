"""Every way zeusrun can end, as an exit code and as an exception that carries it."""

from __future__ import annotations

import errno
import re
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SHORTAGES = {
    errno.ENOSPC: "free some space on that disk",
    errno.EDQUOT: "free some of your quota on that disk",
    errno.EFBIG: "raise the file size limit (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files: `ulimit -n 1024`",
    errno.ENFILE: "this machine has too many open files; end what does not need them",
    errno.ENOMEM: "end other programs, or raise the memory limit (`ulimit -v`, or the container's)",
    errno.EAGAIN: "end other processes, or raise their limit (`ulimit -u`, or the container's)",
}
"""What to do where the machine has no more of something, by errno."""

ACCESS = "give yourself access to it, or point ZEUSRUN_HOME to a directory of your own"
"""What to do where the home does not let itself be written."""

# What the dynamic loader and CPython say where a library found no memory.
_NO_THREAD = "can't start new thread"
_UNLOADED = re.compile("failed to map segment|annot allocate memory", re.IGNORECASE)


class ExitCode(IntEnum):
    """Exit codes of the ``zeusrun`` command; a promise to whoever calls it from a script."""

    REACHED = 0
    BUG = 1
    BAD_INPUT = 2
    TRAINING_FAILED = 3
    TARGET_MISSED = 4
    LAUNCH = 5
    HISTORY = 6
    BUSY = 75
    TIMED_OUT = 124
    NOT_EXECUTABLE = 126  # of a command to measure; as env(1), time(1) and the shells have it
    NOT_FOUND = 127
    SIGNAL_BASE = 128


class ZeusrunError(Exception):
    """Something a user can act on. The message says where, what, and what to do next."""

    exit_code: int = ExitCode.BUG


class JobFileError(ZeusrunError):
    """The job file, or an override of it, is not usable."""

    exit_code = ExitCode.BAD_INPUT


class UsageError(ZeusrunError):
    """A flag, an argument or an environment variable is not usable."""

    exit_code = ExitCode.BAD_INPUT


class DeviceError(ZeusrunError):
    """A device that the job needs is absent or does not answer."""

    exit_code = ExitCode.LAUNCH


class VisibleGpusError(DeviceError):
    """``CUDA_VISIBLE_DEVICES`` names what is no GPU of this machine, or the same one twice."""


class LimitRefusedError(DeviceError):
    """A power limit may not be set: neither NVML nor a ``zeusd`` allows it."""


class BusyError(ZeusrunError):
    """Another run is in the way."""

    exit_code: int = ExitCode.BUSY


class LaunchError(ZeusrunError):
    """The training process could not be started."""

    exit_code = ExitCode.LAUNCH


class NotStartedError(ZeusrunError):
    """A command to measure could not be started.

    Attributes:
        exit_code: What a shell would end with.
    """

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class HistoryError(ZeusrunError):
    """The history cannot be read or written."""

    exit_code = ExitCode.HISTORY


def advice_on(error: OSError, otherwise: str) -> str:
    """Return what to do about an error of the operating system: its shortage, else another."""
    return SHORTAGES.get(error.errno or 0, otherwise)


def unwritable(path: Path, error: OSError) -> HistoryError:
    """Build the error for a file or directory of zeusrun's home that cannot be written."""
    advice = advice_on(error, ACCESS)
    return HistoryError(f"{path} cannot be written: {error.strerror}; {advice}")


def describe_shortage(error: Exception) -> str | None:
    """Return a sentence on what the machine has run out of; ``None`` if it is not that."""
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

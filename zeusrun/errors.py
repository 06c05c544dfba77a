"""Every way zeusrun can end, as an exit code and as an exception that carries it."""

from __future__ import annotations

from enum import IntEnum


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

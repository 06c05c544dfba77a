"""Why a trial ended and where it stalled, as values: code compares these, and no sentences."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ReasonCode(str, Enum):
    """Why a trial ended. ``Trial.reason`` is the sentence for people."""

    TARGET_REACHED = "target_reached"
    TARGET_MISSED = "target_missed"
    NO_METRIC = "no_metric"  # the script did not report the metric
    NOT_TRAINED = "not_trained"  # no step was made, or the target was met before the first one
    # Somebody stopped it.
    HOPELESS = "hopeless"  # its policy, or the bound of its cost
    SPEED_CHECKED = "speed_checked"  # another batch size follows
    TIMEOUT = "timeout"
    SIGNAL = "signal"  # to zeusrun, such as Ctrl-C
    PREEMPTED = "preempted"  # by a signal of a scheduler
    CANCELLED = "cancelled"  # by ``zeusrun cancel``
    REQUESTED = "stop_requested"  # by a part of the job that serves such requests
    PLANNED = "planned_end"  # a part of the job has ended the training, as the job file says
    CANCELLED_LATER = "cancelled_later"  # by the same, after it was preempted
    REPLACED = "replaced"  # by a newer run of the job
    JOB_DELETED = "job_deleted"  # by a Zeus client
    # It failed.
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out_of_memory"
    USAGE_ERROR = "usage_error"  # exit code 2, for wrong arguments
    CANNOT_IMPORT = "cannot_import"  # the script, a module or a package
    DISK_FULL = "disk_full"  # that of the run directory, or another one of the script
    STALLED = "stalled"
    HOST_LOST = "host_lost"  # one of several
    RUN_DELETED = "run_deleted"  # the script deleted its run directory
    ENDED_BY_SIGNAL = "ended_by_signal"  # that zeusrun did not send
    PROCESS_ENDED = "process_ended"  # that of a Zeus client
    # zeusrun failed.
    NOT_BEGUN = "not_begun"  # it could not be stored
    LAUNCHER_FAILED = "launcher_failed"
    LAUNCHER_DIED = "launcher_died"
    LEASE_EXPIRED = "lease_expired"  # nobody renewed it in time
    UNKNOWN = "unknown"  # of a later version
    REPORTED_LATE = "reported_late"  # its lease has expired, but its Zeus client goes on

    @classmethod
    def _missing_(cls, _value: object) -> ReasonCode:
        return cls.UNKNOWN


class Stall(NamedTuple):
    """A time in which a training took no optimizer step."""

    standing_s: float  # since the last step
    longest_s: float  # the longest pause before
    ranks: str  # those that took no step, such as ``ranks 0-2, 5``; empty: all
    places: str  # where each rank was, for people

    def describe(self) -> str:
        """Return which ranks stalled, how long, and where each rank was, without full stop."""
        whose = f" on {self.ranks}" if self.ranks else ""
        return (
            f"no optimizer step{whose} for {seconds_text(self.standing_s)}, after pauses of at "
            f"most {seconds_text(self.longest_s)}; {self.places}"
        )


def seconds_text(seconds: float) -> str:
    """Return ``62 s`` or ``0.4 s``."""
    return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


def short_text(seconds: float) -> str:
    """Return ``65 ms``, ``2.9 s`` or ``62 s``."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else seconds_text(seconds)

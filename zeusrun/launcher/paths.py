"""Where a run's files are, and the lock that says whether its launcher lives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import platformdirs

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Mapping


def home_directory(environment: Mapping[str, str]) -> Path:
    """Return zeusrun's home: ``ZEUSRUN_HOME``, else the platform's user state directory."""
    named = environment.get("ZEUSRUN_HOME")
    try:
        path = Path(named).expanduser() if named else platformdirs.user_state_path("zeusrun")
    except RuntimeError as error:  # neither HOME nor an entry in /etc/passwd
        raise HistoryError(
            "zeusrun keeps its history in the home directory, but this user has none; "
            "set ZEUSRUN_HOME to an absolute directory"
        ) from error
    return path.absolute()


@dataclass(frozen=True)
class RunPaths:
    """The files of one trial, all under ``run_dir``."""

    run_dir: Path

    @property
    def job_copy(self) -> Path:
        """The job as it was run, overrides included."""
        return self.run_dir / "job.yaml"

    @property
    def trial(self) -> Path:
        """The trial as JSON, apart from the history."""
        return self.run_dir / "trial.json"

    @property
    def reserve(self) -> Path:
        """Room that is kept on the disk for the outcome."""
        return self.run_dir / "trial.reserve"

    @property
    def sidecar(self) -> Path:
        """The events of the ranks."""
        return self.run_dir / "metrics.jsonl"

    @property
    def power(self) -> Path:
        """The power samples."""
        return self.run_dir / "power.csv"

    @property
    def logs(self) -> Path:
        """The folder of ``rank<k>.log`` and ``torchrun.log``."""
        return self.run_dir / "logs"

    @property
    def torchrun_log(self) -> Path:
        """What torchrun itself said."""
        return self.logs / "torchrun.log"

    @property
    def error(self) -> Path:
        """The root cause of a crash."""
        return self.run_dir / "error.json"

    @property
    def stop(self) -> Path:
        """Exists once the script should stop; the worker looks for it before each epoch."""
        return self.run_dir / "stop"

    @property
    def cancel(self) -> Path:
        """Asks the launcher to stop, ``gently`` or ``now``."""
        return self.run_dir / "cancel"

    @property
    def live(self) -> Path:
        """The trial as it stands while it runs."""
        return self.run_dir / "live.json"

    @property
    def clocks(self) -> Path:
        """The folder of the ranks' step clocks."""
        return self.run_dir / "clock"

    @property
    def checkpoints(self) -> Path:
        """Kept across the attempts of one trial."""
        return self.run_dir / "checkpoints"

    @property
    def lock(self) -> Path:
        """Locked for as long as the launcher lives."""
        return self.run_dir / "lock"

    def rank_clock(self, rank: int) -> Path:
        """Return the step clock of a rank."""
        return self.clocks / f"rank{rank}"

    def rank_log(self, rank: int) -> Path:
        """Return the log of a rank."""
        return self.logs / f"rank{rank}.log"

    def rank_stack(self, rank: int) -> Path:
        """Return the file in which a rank tells its stacks when it is asked."""
        return self.logs / f"rank{rank}.stack"

    @property
    def stacks(self) -> Path:
        """The stacks of all ranks, whenever they stood still."""
        return self.logs / "stacks.txt"


def limits_directory(home: Path) -> Path:
    """Return the folder of the power limits found before any was changed."""
    return home / "gpus"


def runs_directory(home: Path, job: str) -> Path:
    """Return the folder that holds a job's runs."""
    return home / "runs" / job


def create_run(home: Path, job: str, trial: str) -> RunPaths:
    """Create the folders of a new trial, for its owner alone.

    Raises:
        HistoryError: If the home cannot be written, or the trial's folder is there already.
    """
    paths = RunPaths(runs_directory(home, job) / trial)
    try:
        paths.run_dir.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (paths.run_dir, paths.logs, paths.clocks, paths.checkpoints):
            folder.mkdir(mode=0o700)
    except OSError as error:
        raise unwritable_home(home, error) from error
    return paths


_KEPT = {"job.yaml", "trial.json", "checkpoints", "lock"}


def reopen_run(home: Path, paths: RunPaths, part: int) -> None:
    """Prepare the folder of a preempted trial for its next part.

    What the earlier part wrote moves into ``part<number>``, whole, so that nobody takes an event,
    a clock or a failure of then for one of now. The checkpoints stay where the script left them.

    Args:
        home: Zeusrun's.
        paths: Of the trial.
        part: Number of the part that is over, from 1.

    Raises:
        HistoryError: If the home cannot be written.
    """
    earlier = paths.run_dir / f"part{part}"
    try:
        earlier.mkdir(mode=0o700, exist_ok=True)
        for path in list(paths.run_dir.iterdir()):
            if path.name not in _KEPT and not re.fullmatch(r"part\d+", path.name):
                path.rename(earlier / path.name)
        for folder in (paths.logs, paths.clocks):
            folder.mkdir(mode=0o700)
        paths.checkpoints.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable_home(home, error) from error


def unwritable_home(home: Path, error: OSError) -> HistoryError:
    """Return the error for a home that refuses to be written."""
    return HistoryError(
        f"{error.filename or home}: {error.strerror or error}; zeusrun keeps its history and runs "
        f"under {home}. Make it writable, or set ZEUSRUN_HOME to a directory that is."
    )


def highest_recurrence(home: Path, job: str) -> int:
    """Return the highest recurrence that has a run directory; 0 when there is none.

    A history that was set aside starts again, but its run directories still hold their numbers.
    """
    pattern = re.compile(re.escape(job) + r"-(\d+)-\d+")
    try:
        names = [path.name for path in runs_directory(home, job).iterdir()]
    except OSError:
        return 0
    return max((int(match[1]) for name in names if (match := pattern.fullmatch(name))), default=0)


class RunLock:
    """The operating system's lock on a trial, held by its launcher until it dies."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._lock = filelock.FileLock(paths.lock)

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Take the lock; return whether it was free, or became so in time.

        Raises:
            OSError: If the lock file cannot be opened.
        """
        try:
            self._lock.acquire(timeout=timeout_s)
        except filelock.Timeout:
            return False
        return True

    def acquire_or_gone(self) -> bool:
        """Take the lock of a launcher that is dead; return whether it is.

        That of a run directory that is gone, or that may not be written any more, cannot be held.
        """
        try:
            return not self._paths.run_dir.is_dir() or self.acquire()
        except OSError:
            return True

    def release(self) -> None:
        """Let go."""
        self._lock.release()


def launcher_lives(paths: RunPaths) -> bool:
    """Whether the launcher of a dispatched trial is alive, by its lock and without a clock."""
    lock = RunLock(paths)
    dead = lock.acquire_or_gone()
    lock.release()
    return not dead

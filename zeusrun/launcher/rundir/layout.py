"""Where a run's files are, and how its folders are made."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.files.atomic import replace_file, temporary_path
from zeusrun.files.home import runs_directory, unwritable_home
from zeusrun.files.private import make_folder, open_for_writing, write_file
from zeusrun.history.rules import job_of
from zeusrun.sidecar.events import SIDECAR_NAME
from zeusrun.sidecar.orders import ENDING

if TYPE_CHECKING:
    from typing import BinaryIO

    from zeusrun.trial import Trial


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
        return self.run_dir / SIDECAR_NAME

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
    def stop_ending(self) -> Path:
        """What becomes ``stop`` when the ranks are ended; written while the disk has room."""
        return self.run_dir / "stop.ending"

    @property
    def cancel(self) -> Path:
        """Asks the launcher to stop, ``gently`` or ``now``."""
        return self.run_dir / "cancel"

    @property
    def live(self) -> Path:
        """The trial as it stands while it runs."""
        return self.run_dir / "live.json"

    @property
    def fresh_live(self) -> Path:
        """What ``live.json`` is replaced by; there for a moment only."""
        return temporary_path(self.live)

    @property
    def leftovers(self) -> tuple[Path, ...]:
        """The files that a launcher leaves only if it is killed."""
        return self.reserve, self.fresh_live, self.stop_ending

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


def create_run(home: Path, job: str, trial: str) -> RunPaths:
    """Create the folders of a new trial, for its owner alone.

    Raises:
        HistoryError: If the home cannot be written.
    """
    paths = RunPaths(runs_directory(home, job) / trial)
    try:
        for folder in (paths.logs, paths.clocks, paths.checkpoints):
            make_folder(folder)
    except OSError as error:
        raise unwritable_home(home, error) from error
    return paths


def open_torchrun_log(paths: RunPaths) -> BinaryIO:
    """Open torchrun's log to append to, before torchrun starts.

    Raises:
        OSError: If that is not possible.
    """
    for folder in (paths.logs, paths.clocks):
        folder.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return open(open_for_writing(paths.torchrun_log, flags), "ab")  # noqa: PTH123 - a descriptor


def prepare_to_stop(paths: RunPaths) -> None:
    """Write what ``tell_to_stop`` needs on a disk that has become full; as much as can be."""
    try:
        write_file(paths.stop_ending, ENDING)
    except OSError:
        with contextlib.suppress(OSError):
            paths.stop_ending.unlink()


def tell_to_stop(paths: RunPaths, *, ending: bool) -> None:
    """Make the file that tells the script to stop.

    Args:
        paths: Of the run.
        ending: Whether the ranks are ended after a grace, too. A rank whose script fails then
            ends with 0 (see the worker): torchrun would end the others, which may still save.

    Raises:
        OSError: If it cannot be made.
    """
    if ending:
        with contextlib.suppress(OSError):
            paths.stop_ending.replace(paths.stop)
            return
    replace_file(paths.stop, ENDING if ending else b"", durable=False)


def find_run(home: Path, trial: Trial) -> RunPaths | None:
    """Return the files of a trial if its record names its own directory under ``home``.

    Whoever writes, deletes or ends processes by a record asks here first: a history may be
    tampered with.
    """
    own = runs_directory(home, trial.job) / trial.trial
    named = Path(trial.run_dir)
    try:
        if job_of(trial.trial) != trial.job or named.name != own.name or named.is_symlink():
            return None
        same = os.path.realpath(named.parent) == os.path.realpath(own.parent)
    except ValueError:  # a NUL, a lone surrogate: no path at all
        return None
    return RunPaths(named) if same else None


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a script has saved anything in the checkpoint folder of its trial."""
    try:
        return any(RunPaths(run_dir).checkpoints.iterdir())
    except OSError:
        return False


_PART = re.compile(r"part\d{1,9}")
_KEPT = {"job.yaml", "trial.json", "checkpoints", "lock"}


def reopen_run(home: Path, paths: RunPaths) -> None:
    """Prepare the folder of a preempted trial for its next part.

    What the earlier part wrote moves into ``part<number>``, whole, so that nobody takes an event,
    a clock or a failure of then for one of now. The checkpoints stay where the script left them.

    Args:
        home: Zeusrun's.
        paths: Of the trial.

    Raises:
        HistoryError: If the home cannot be written.
    """
    try:
        present = list(paths.run_dir.iterdir())
        names = {path.name for path in present}
        # Not the number of preemptions: a submit may have died when it had come as far as here.
        unused = next(name for n in itertools.count(1) if (name := f"part{n}") not in names)
        earlier = paths.run_dir / unused
        earlier.mkdir(mode=0o700)
        for path in present:
            if path.name not in _KEPT and not _PART.fullmatch(path.name):
                path.rename(earlier / path.name)
        for folder in (paths.logs, paths.clocks, paths.checkpoints):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable_home(home, error) from error


def earlier_parts(paths: RunPaths) -> list[RunPaths]:
    """Return the files of the parts of a trial before it was preempted last, oldest first."""
    try:
        names = [path.name for path in paths.run_dir.iterdir() if _PART.fullmatch(path.name)]
    except OSError:
        return []
    return [
        RunPaths(paths.run_dir / name) for name in sorted(names, key=lambda name: int(name[4:]))
    ]


def numbered_runs(home: Path, job: str) -> list[tuple[int, str]]:
    """Return the run directories of a job: recurrence and name. There may be thousands."""
    pattern = re.compile(re.escape(job) + r"-(\d{1,18})-\d+")
    try:
        with os.scandir(runs_directory(home, job)) as entries:
            found = [pattern.fullmatch(entry.name) for entry in entries]
    except OSError:
        return []
    return [(int(match[1]), match[0]) for match in found if match]

"""Ends what runs have left whose launcher is gone, also runs that are long finished."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.launcher.processes.control_group import end_group
from zeusrun.launcher.processes.descendants import end_run, names_of, scan_processes
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.lock import RunLock

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_NAMED = 5


@dataclass(frozen=True)
class Orphans:
    """The processes that one run has left, each as ``name (pid)``."""

    run: str
    names: tuple[str, ...]
    left: tuple[str, ...] = ()  # those that could not be ended

    @property
    def text(self) -> str:
        """What was ended."""
        return f"ended {self.count} that {self.run} had left: {_some(self.names)}"

    @property
    def found(self) -> str:
        """What a dry run has found."""
        return f"{self.run} has left {self.count}: {_some(self.names)}"

    @property
    def problem(self) -> str | None:
        """What could not be ended, and what to do."""
        if not self.left:
            return None
        return f"{self.run} has left processes that do not end: {_some(self.left)}; end them"

    @property
    def count(self) -> str:
        """How many, with their noun."""
        return f"{len(self.names)} process{'' if len(self.names) == 1 else 'es'}"


def end_orphans(home: Path, job: str | None = None, *, dry_run: bool = False) -> Iterator[Orphans]:
    """End the processes of all runs of a home, or of one job, whose launcher is gone.

    With ``dry_run`` only name them. One scan finds the processes of all runs, however many runs
    there are. The lease is held meanwhile, so that nobody continues the run.
    """
    for run_dir, processes in sorted(scan_processes().of_runs.items()):
        paths = RunPaths(Path(run_dir))
        if not _is_of(paths.run_dir, home) or job not in {None, paths.run_dir.parent.name}:
            continue
        name, lock = paths.run_dir.name, RunLock(paths)
        if dry_run:
            if not lock.is_held() and (names := names_of(processes)):
                yield Orphans(name, names)
        elif lock.acquire_or_gone():
            try:
                done = end_run(run_dir)
                end_group(paths)
            finally:
                lock.release()
            if done.names:
                yield Orphans(name, done.names, done.left)


def _is_of(run_dir: Path, home: Path) -> bool:
    """Whether a run directory is one of a home, which may have several paths."""
    runs = run_dir.parent.parent
    try:
        return runs.name == "runs" and runs.parent.samefile(home)
    except OSError:
        return False


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")

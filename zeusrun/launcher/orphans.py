"""Ends the orphan processes of runs whose launcher is gone, also of runs that ended long ago."""

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
    """The orphan processes of one run, each as ``name (pid)``."""

    run: str
    names: tuple[str, ...]
    left: tuple[str, ...] = ()  # those that could not be killed

    @property
    def text(self) -> str:
        """Which processes, and of which run."""
        ending = "" if len(self.names) == 1 else "es"
        return f"{len(self.names)} orphan process{ending} of {self.run}: {_some(self.names)}"

    @property
    def problem(self) -> str | None:
        """Which processes could not be killed, and what to do."""
        if not self.left:
            return None
        return f"orphan processes of {self.run} could not be killed: {_some(self.left)}; kill them"


def end_orphans(home: Path, job: str | None = None, *, dry_run: bool = False) -> Iterator[Orphans]:
    """End the orphan processes of all runs of a home, or of one job; ``dry_run`` only names them.

    One scan finds the processes of all runs, however many runs there are. The lease of a run is
    held while its processes are killed, so that nobody continues the run.
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

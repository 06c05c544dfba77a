"""Finds and ends the processes that a run has left."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.files.private import read_file, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.launcher.rundir.layout import RunPaths

_WATCHDOG = "/zeusrun/launcher/processes/watchdog.py"
_VARIABLE = "ZEUSRUN_RUN_DIR"
_SWEEP_GRACE_S = 3.0
_NATURAL_EXIT_S = 0.5
_PERIOD_S = 0.01
_SWEEP_S = 10.0  # a script may start processes faster than they can be killed
_UNCLEAR_S = 1.0  # an exec takes milliseconds; a stopped watchdog would take for ever


@dataclass(frozen=True)
class Scan:
    """The processes of all runs at one moment."""

    of_runs: Mapping[str, set[psutil.Process]]  # by run directory, without the watchdogs
    ending: frozenset[str]  # run directories whose watchdog is alive
    unclear: bool  # whether a process is in the middle of an exec and has no environment


@dataclass(frozen=True)
class Sweep:
    """What a sweep has done, each process as ``name (pid)``."""

    names: tuple[str, ...]  # did not end by themselves
    left: tuple[str, ...]  # could not be ended


def scan_processes() -> Scan:
    """Find the live processes whose environment names a run directory, with one pass over /proc.

    This process and its ancestors are left out: a user's shell may contain such a variable. So are
    processes that see another directory under the path of the home, in a container.
    """
    found: dict[str, set[psutil.Process]] = defaultdict(set)
    ending, unclear, spared = set(), False, None
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - pathlib is slower
        with contextlib.suppress(OSError, psutil.Error):
            environment = _read_environment(name)
            if not environment:
                unclear = unclear or _is_in_exec(name)
            if (run_dir := _run_dir_in(environment)) is None:
                continue
            process = psutil.Process(int(name))
            if spared is None:
                this = psutil.Process()
                spared = {this.pid, *(each.pid for each in this.parents())}
            again = _read_environment(name)
            if not again and _is_in_exec(name):
                unclear = True
            if _run_dir_in(again) != run_dir:  # its program is another, or the pid is used again
                continue
            if process.pid in spared or not _sees_same_home(name, run_dir):
                continue
            if any(word.endswith(_WATCHDOG) for word in process.cmdline()[:4]):
                ending.add(run_dir)
            else:
                found[run_dir].add(process)
    return Scan(found, frozenset(ending), unclear)


def processes_of_run(run_dir: str) -> set[psutil.Process]:
    """Return the live processes whose environment names the run directory, without its watchdog."""
    return scan_processes().of_runs.get(run_dir, set())


def find_started_ranks(launched: Iterable[psutil.Process]) -> dict[int, int]:
    """Find the ranks that ranks have started: one pid for each, and its ``WORLD_SIZE``.

    They are descendants with torch and a ``RANK`` or ``LOCAL_RANK`` of their own. Workers inherit
    that of their rank. A lone rank 0 may be one of those, and children of multiprocessing have the
    environment of their parent, and record themselves that they train.
    """
    found: dict[tuple[str | None, ...], tuple[int, int]] = {}
    ours = set[tuple[str | None, ...]]()
    for rank in launched:
        with contextlib.suppress(OSError, psutil.Error):
            ours.add(_place_of(rank)[:2])
            for child in rank.children(recursive=True):
                with contextlib.suppress(OSError, psutil.Error, ValueError):
                    *place, size = _place_of(child)
                    if any(place) and int(size or 1) > 1 and _has_torch(child):
                        found.setdefault(tuple(place), (child.pid, int(size or 1)))
    others = found.keys() - ours
    if all(value in {None, "0"} for place in others for value in place):
        return {}
    return dict(found[place] for place in others)


def _place_of(process: psutil.Process) -> tuple[str | None, ...]:
    environment = process.environ()
    return tuple(environment.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))


def _has_torch(process: psutil.Process) -> bool:
    if "--multiprocessing-fork" in process.cmdline():
        return False
    return b"libtorch" in Path(f"/proc/{process.pid}/maps").read_bytes()


def end_run(run_dir: str, *, at_once: bool = True) -> Sweep:
    """End all processes whose environment names the run directory, whatever their parent is.

    A process can fork between the scan and its death, or be in an exec. So this scans until two
    scans in a row find nothing. ``at_once=False``: those of the first scan may end by themselves,
    or get SIGTERM first. If the watchdog is alive, because the launcher has just died, it ends the
    run; it also knows the processes with another environment.
    """
    names: list[str] = []
    begun_t, quiet = time.monotonic(), 0
    while quiet < 2 and (spent_s := time.monotonic() - begun_t) < _SWEEP_S:
        scan = scan_processes()
        found = scan.of_runs.get(run_dir, set())
        ending = run_dir in scan.ending and spent_s < _UNCLEAR_S
        unclear = scan.unclear and spent_s < _UNCLEAR_S
        quiet = 0 if found or ending or unclear else quiet + 1
        if found and not ending:
            names += end_processes(found, at_once=at_once)
            at_once = True
        time.sleep(_PERIOD_S)
    left = () if quiet else names_of(processes_of_run(run_dir))
    return Sweep(tuple(dict.fromkeys(names)), left)


def end_children(
    parent: psutil.Process, *, at_once: bool, keep: bool
) -> tuple[tuple[str, ...], bool]:
    """End the descendants of a process; return their names, and whether one was kept.

    ``keep``: a descendant lives on if ``ZEUSRUN_RUN_DIR`` is empty in its environment, with all
    that it has started. Nothing but this variable tells a daemon from a forgotten worker: some
    libraries start their workers in sessions of their own, too.
    """
    names: list[str] = []
    begun_t, quiet = time.monotonic(), 0
    while quiet < 2 and time.monotonic() - begun_t < _SWEEP_S:
        left = {each for each in parent.children(recursive=True) if state_of(each)}
        kept = _detached(left) if keep else set()
        names += end_processes(left - kept, at_once=at_once)
        if not kept:  # the watchdog ends those that are started meanwhile
            break
        quiet = 0 if left - kept else quiet + 1
        time.sleep(_PERIOD_S)
    return tuple(names), bool(kept)


def end_processes(processes: Iterable[psutil.Process], *, at_once: bool = False) -> tuple[str, ...]:
    """End processes: wait for their own end, then SIGTERM, then SIGKILL; or SIGKILL at once.

    Return ``name (pid)`` of each that did not end by itself.
    """
    remaining = _wait(processes, 0.0 if at_once else _NATURAL_EXIT_S)
    names = names_of(remaining)
    if not at_once:
        for process in remaining:
            send(process, signal.SIGTERM)
        remaining = _wait(remaining, _SWEEP_GRACE_S)
    for process in remaining:
        send(process, signal.SIGKILL)
    _wait(remaining, _SWEEP_GRACE_S)
    return names


def _wait(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended; return those that have not in time."""
    until_t = time.monotonic() + seconds
    remaining = [process for process in processes if state_of(process)]
    while remaining and time.monotonic() < until_t:
        time.sleep(_PERIOD_S)
        remaining = [process for process in remaining if state_of(process)]
    return remaining


def names_of(processes: Iterable[psutil.Process]) -> tuple[str, ...]:
    """Return ``name (pid)`` of each process that is alive, sorted."""
    return tuple(sorted(_name(process) for process in processes if state_of(process)))


def state_of(process: psutil.Process) -> str | None:
    """Return the state of a process as psutil names it; ``None`` if it has ended.

    A zombie has ended: in a container, nobody may ever reap it.
    """
    try:
        state = str(process.status()) if process.is_running() else psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return None if state in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} else state


def send(process: psutil.Process, number: int) -> bool:
    """Send a signal, but not to a process that reuses the pid: psutil compares start times."""
    try:
        process.send_signal(number)
    except (psutil.Error, OSError):
        return False
    return True


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.Error:
        return f"process {process.pid}"


def _read_environment(pid: str) -> bytes:
    with open(f"/proc/{pid}/environ", "rb", 0) as file:  # noqa: PTH123 - pathlib takes 50 µs more
        return file.read()


def _run_dir_in(environment: bytes) -> str | None:
    """Return the run directory in an environment; ``None`` if there is none, or it is empty."""
    if _VARIABLE.encode() not in environment:
        return None
    prefix = f"{_VARIABLE}=".encode()
    values = [word for word in environment.split(b"\0") if word.startswith(prefix)]
    return os.fsdecode(values[0][len(prefix) :]) or None if values else None


def _detached(processes: Iterable[psutil.Process]) -> set[psutil.Process]:
    """Return the processes that say that they belong to no run, with their descendants."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError, psutil.Error):
            if f"{_VARIABLE}=".encode() in _read_environment(str(process.pid)).split(b"\0"):
                found |= {process, *process.children(recursive=True)}
    return found


def _is_in_exec(pid: str) -> bool:
    """Whether a process has an empty environment only because its exec is not complete.

    Kernel threads and zombies have no memory at all. An environment that really is empty has a
    place: in proc_pid_stat(5), ``env_start`` and ``env_end`` are equal and not zero. An exec has
    this state for microseconds, too, so only a second scan makes it certain.
    """
    with open(f"/proc/{pid}/stat", "rb", 0) as file:  # noqa: PTH123
        values = file.read().rpartition(b")")[2].split()
    vsize, env_start, env_end = (int(values[field - 3]) for field in (23, 50, 51))
    return bool(vsize) and not 0 < env_start == env_end


def _sees_same_home(pid: str, run_dir: str) -> bool:
    """Whether the home of a run is the same directory for a process and for us.

    A process that has changed its root and sees no such directory counts as ours.
    """
    home = Path(run_dir, *[".."] * 3)
    try:
        theirs = os.stat(f"/proc/{pid}/root{home}")  # noqa: PTH116 - joining would drop the root
    except FileNotFoundError:
        return True
    return os.path.samestat(theirs, home.stat())


_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_PREFIX = "zeusrun-"
_LONGEST_S = 3.0
_GROUP_PERIOD_S = 0.005
_LONGEST_PATH = 4096


def make_group(paths: RunPaths) -> Path | None:
    """Create the control group of a run, and write its path into the run directory first.

    Returns:
        The group, which is empty; ``None`` if this process may not create one.
    """
    parent = _own_group()
    if parent is None:
        return None
    group = parent / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        write_file(paths.control_group, bytes(group))
        group.mkdir()
        if (group / "cgroup.kill").exists():
            return group
    except OSError:
        pass
    end_group(paths)
    return None


def end_group(paths: RunPaths, *, keep: bool = False) -> None:
    """Kill all processes in the control group of a run, if it has one, and remove the group.

    ``keep`` moves the processes to the group above instead.
    """
    try:
        group = Path(os.fsdecode(read_file(paths.control_group, _LONGEST_PATH)))
    except OSError:
        return
    if group.name.startswith(_PREFIX) and (group / "cgroup.procs").exists():
        give_up_t = time.monotonic() + _LONGEST_S
        with contextlib.suppress(OSError):
            if not keep:
                (group / "cgroup.kill").write_text("1")
            while "populated 1" in (group / "cgroup.events").read_text():
                if time.monotonic() > give_up_t:
                    return  # the file stays: a later repair tries again
                if keep:
                    _move_up(group)
                time.sleep(_GROUP_PERIOD_S)
        for folder, _, _ in os.walk(group, topdown=False):  # the script may have created groups
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    if not group.exists():
        with contextlib.suppress(OSError):
            paths.control_group.unlink()


def _own_group() -> Path | None:
    """Return the directory of this process's group in cgroup v2, if groups can be made there."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    group_name = next((line[4:] for line in lines if line.startswith("0::/")), "..")
    for mount in _MOUNTS if ".." not in group_name.split("/") else ():
        group = mount / group_name
        # Only cgroup v2 has this file. If it names a controller, a group has its own share of the
        # processor: the training would be slower than without zeusrun.
        with contextlib.suppress(OSError):
            divided = (group / "cgroup.subtree_control").read_text().strip()
            if not divided and os.access(group, os.W_OK):
                return group
    return None


def _move_up(group: Path) -> None:
    for folder, _, _ in os.walk(group):
        for pid in (Path(folder) / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)

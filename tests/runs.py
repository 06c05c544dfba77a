"""Submits that run beside a test: waiting for what they do, and finding their processes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import subprocess
import sys
import time

import psutil
import pytest

from zeusrun.launcher.processes.torchrun import TorchrunProcess


def only_trial(result):
    """Return the one trial of a submit's JSON."""
    (trial,) = result["trials"]
    return trial


def check_that_it_imports(library):
    """Skip the test if a library is missing, or does not fit the others here."""
    if (why := _cannot_import(library)) is not None:
        pytest.skip(why)


@functools.cache  # some take seconds
def _cannot_import(library):
    if importlib.util.find_spec(library) is None:
        return f"{library} is not installed"
    done = subprocess.run(
        [sys.executable, "-c", f"import {library}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"{library} cannot be imported: {done.stderr.strip().splitlines()[-1]}"
    return None


def wait_for(condition, seconds=300.0, what="it"):
    """Return what ``condition`` returns, once that is true.

    For files and states of other processes, which have no event to wait for.
    """
    now_t = time.monotonic()
    deadline_t = now_t + seconds
    while now_t < deadline_t:
        asked_t = now_t
        value = condition()
        if value:
            return value
        now_t = time.monotonic()
        time.sleep(max(0.02, min(now_t - asked_t, 0.1)))  # some answers take CPU
    pytest.fail(f"{what} did not happen within {seconds:g} s")
    return None


def start_and_wait(zeusrun, job, trial="job-1-1"):
    """Start a submit; return it when its first epoch has been reported."""
    child = zeusrun.start("submit", job)
    wait_for_report(zeusrun, trial)
    return child


def wait_for_report(zeusrun, trial="job-1-1"):
    """Wait until a trial has reported an epoch."""
    sidecar = zeusrun.run_dir(trial) / "metrics.jsonl"
    wait_for(lambda: sidecar.exists() and b'"reported"' in sidecar.read_bytes(), what="a report")


def has_ended(pid):
    """Whether a process is gone; a zombie that init has yet to reap is gone, too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def watchdog_of(launcher):
    """Return the watchdog of a submit: of its children, the one with the environment of a run."""
    return next(
        process
        for process in psutil.Process(launcher.pid).children()
        if "ZEUSRUN_RUN_DIR" in _environment_of(process)
    )


def agent_of(launcher):
    """Return the torchrun of a submit."""
    return next(
        process
        for process in watchdog_of(launcher).children()
        if (found := _environment_of(process)) and "RANK" not in found
    )


def _environment_of(process):
    """Return the environment of a process; that of one which has ended is empty."""
    with contextlib.suppress(psutil.Error):
        return process.environ()
    return {}


def survivors(trial):
    """Return the living processes of a trial."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ZEUSRUN_RUN_DIR") == trial["run_dir"]:
                found.append(process)
    return found


def run_torchrun(
    command, paths, *, grace_period_s, on_tick, end_ranks=lambda: False, on_end=lambda: None
):
    """Run a command as a submit runs torchrun; return how it ended."""
    process = TorchrunProcess(command, paths, grace_period_s)
    with process, contextlib.ExitStack() as ending:
        ending.callback(on_end)
        while process.is_running():
            process.stop(on_tick(), end_ranks)
            process.wait()
    return process.exit

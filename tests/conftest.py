"""The fixtures of all tests; what they are made of is in ``factories.py``."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile

import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st

import tests.calm  # noqa: F401 - for its effect
from tests import forks
from tests.factories import DONE, Zeusrun, begin, build_trial
from tests.fake_slurm import FakeSlurm
from tests.lazily import IMPORTED, LARGE
from tests.leftovers import State
from zeusrun.cli import main
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import create_run

pytest_plugins = [
    "tests.databases",
    "tests.fake_kubernetes",
    "tests.gpu.fixtures",
    "tests.kubernetes",
    "tests.slurm",
]

MEMORY = "/dev/shm"

# The short tier tries the same examples every time, so that it fails for a change and not by
# chance; the long tier draws new ones (--hypothesis-profile). A busy machine is no failure.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("new", deadline=None)
settings.load_profile("same")


def pytest_addoption(parser):
    parser.addoption(
        "--real-torchrun", action="store_true", help="let the zeusrun fixture launch torchrun"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell each worker where the servers of forks are: to import torch takes each 2 s of CPU."""
    node.workerinput["forks"] = {name: forks.find_server(name) for name in ("zeusrun", "torch")}


def pytest_configure(config):
    """Undo what ``nohup`` and a shell's ``&`` ignore: nothing could interrupt a test."""
    has_workers = bool(getattr(config.option, "numprocesses", None))
    keep_files_in_memory()
    heed_signals(has_workers=has_workers)
    forks.addresses.update(getattr(config, "workerinput", {}).get("forks", {}))
    if not has_workers:
        gc.disable()  # a third of the time a worker takes to collect; see the end of collection


def keep_files_in_memory():
    """Let temporary files lie in memory where there is plenty: a run takes a tenth less CPU.

    Where ``TMPDIR`` is set it stays. A container's ``/dev/shm`` is small, and runs no program.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    room = os.statvfs(MEMORY)
    free = min(room.f_bavail * room.f_frsize, psutil.virtual_memory().available)
    if free < 4 * 2**30 or room.f_flag & os.ST_NOEXEC:
        return
    os.environ["TMPDIR"] = MEMORY
    tempfile.tempdir = None  # pytest has asked already


def heed_signals(*, has_workers):
    """Give signals that are ignored their usual handlers; ``nohup`` still outlives its terminal."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}
    if not has_workers:  # it has the children, which would inherit that it is ignored
        usual[signal.SIGHUP] = outlive
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def outlive(_number, _frame):
    """Do nothing about the end of the terminal."""


def pytest_collection_finish(session):
    """Let the garbage collector leave out what every test needs: 180,000 objects."""
    session.config.stash[IMPORTED] = LARGE & sys.modules.keys()
    if session.config.option.collectonly:  # `make test` does, before it starts the workers
        st.text().validate()  # hypothesis stores which characters there are: 2 s of CPU a worker
    gc.freeze()
    gc.enable()


def pytest_unconfigure():
    forks.close()
    gc.freeze()  # pytest then collects five times: with all objects, a second of CPU a worker


@pytest.fixture(autouse=True)
def leave_the_process_as_it_was():
    """Fail a test that leaves something in this process."""
    before = State()
    yield
    left = before.find_left()
    assert not left, "the test has left in the process: " + "; ".join(left)


@pytest.fixture
def zeusrun(tmp_path, request):
    """A ``zeusrun`` command with an empty home; with the marker, over the real torchrun."""
    marked = request.node.get_closest_marker("torchrun") is not None
    real_torchrun = marked or request.config.getoption("--real-torchrun")
    command = Zeusrun(tmp_path / "home", tmp_path, real_torchrun)
    yield command
    for child in command.started:
        child.kill()  # its watchdog ends the ranks
        child.wait()
        child.stdout.close()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A stand-in for Slurm, whose commands are found first."""
    fake = FakeSlurm(tmp_path / "slurm-commands")
    monkeypatch.setenv("PATH", fake.path)
    monkeypatch.setattr("zeusrun.run_on.registry._states", {})
    return fake


@pytest.fixture
def cli(zeusrun, monkeypatch, capsys):
    """Run the command in this process; return ``(exit code, stdout, stderr)``."""
    for name, value in {**zeusrun.environment, "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(zeusrun.folder)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["zeusrun", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        return int(end.value.code or 0), seen.out, seen.err

    return run


@pytest.fixture
def record(zeusrun):
    """Put a trial into the history, and its run directory on disk; return it."""
    store = TinyDBHistory(zeusrun.home / "history")

    def add(recurrence, outcome=DONE, job="job", **changes):
        name = f"{job}-{recurrence}-1"
        paths = create_run(zeusrun.home, job, name)
        values = {
            "trial": name,
            "job": job,
            "recurrence": recurrence,
            "run_dir": str(paths.run_dir),
            "started_at": f"2025-06-01T12:00:{recurrence:02d}.000+00:00",
        }
        dispatched = build_trial(**{**values, **changes})
        begin(store, dispatched)
        return dispatched if outcome is None else store.finish(name, outcome)

    return add

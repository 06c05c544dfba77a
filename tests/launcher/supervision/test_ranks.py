"""Signals to real ranks: only to those of the run, and only where they are caught."""

from __future__ import annotations

import errno
import gzip
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.runs import wait_for
from tests.worker.rank import Rank
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.supervision.ranks import RunningRanks, _size_of
from zeusrun.sidecar.events import Ended, Regrouped, Spawned, Started
from zeusrun.sidecar.orders import STACK_SIGNAL
from zeusrun.sidecar.step_clock import StepClock

FOR_EVER = "import time\nwhile True: time.sleep(600)\n"


@pytest.fixture
def start(tmp_path):
    """Start a rank that runs the script; return its event, once it has told of itself."""
    rank, processes = Rank(tmp_path / "run"), []
    (tmp_path / "script.py").touch()

    def start_script(text, *options):
        (tmp_path / "script.py").write_text(text)
        process = rank.start(*options, tmp_path / "script.py")
        processes.append(process)
        log = tmp_path / "run" / "logs" / "rank0.log"
        while not log.exists() or "ready" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.01)
        return Started(time.monotonic(), 0, process.pid), process

    yield start_script
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def paths(tmp_path):
    return RunPaths(tmp_path / "run")


def ask(paths, event):
    ranks = RunningRanks(paths)
    ranks.take(event)
    return ranks.ask_for_stack(0)


def test_a_rank_tells_its_stacks_and_goes_on(start, paths):
    event, process = start("print('ready')\n" + FOR_EVER)
    ranks = RunningRanks(paths, range(2))
    ranks.take(event)
    lines = []
    for _ in range(2):
        ranks.ask_for_stacks()
        while not ranks.have_answered():
            time.sleep(0.01)
        lines.append(ranks.stacks()[0].count("script.py"))
    assert lines[0] == lines[1] > 0  # of now, without what it wrote before
    assert (ranks.stacks()[1], _size_of(paths.rank_stack(1))) == ("", 0)
    assert process.poll() is None
    assert paths.rank_stack(0).stat().st_mode & 0o777 == 0o600


def test_a_script_that_runs_bare_is_not_signalled(start, paths):
    event, process = start("print('ready')\n" + FOR_EVER, "--plain")
    assert not ask(paths, event)
    assert process.poll() is None


@pytest.mark.parametrize(
    "text",
    [
        f"import signal; signal.signal({STACK_SIGNAL}, signal.SIG_DFL)\n",
        "import os; os.closerange(3, 100)\n",
        "import os, sys\nif sys.flags.utf8_mode != 1: os.execv(sys.executable, ['py', '-uX', 'utf8', __file__])\n",
    ],
    ids=["takes the handler away", "closes every file", "becomes another program"],
)
def test_a_rank_that_can_no_longer_answer_is_not_signalled(start, paths, text):
    event, process = start(text + "print('ready')\n" + FOR_EVER)
    assert not ask(paths, event)
    assert process.poll() is None


def test_a_process_of_no_run_or_of_another_is_no_rank(paths, tmp_path):
    for environment in ({}, {"ZEUSRUN_RUN_DIR": str(tmp_path / "other")}):
        with subprocess.Popen([sys.executable, "-c", FOR_EVER], env=environment) as stranger:
            try:
                ranks = RunningRanks(paths)
                ranks.take(Started(0.0, 0, stranger.pid))
                assert ranks.state(0) is None
                assert not ranks.kill()
                assert stranger.poll() is None
            finally:
                stranger.kill()


@pytest.mark.parametrize(
    "pid", [0, 1, os.getpid(), 2**31, 2**53 - 1], ids=["0", "1", "own", "2**31", "2**53"]
)
def test_a_pid_that_is_none_of_ours_is_no_rank(paths, pid):
    ranks = RunningRanks(paths)
    ranks.take(Started(0.0, 0, pid))
    assert ranks.state(0) is None


def test_a_rank_is_killed_with_what_it_has_started(start, paths):
    spawn = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {FOR_EVER!r}])\n"
    event, process = start(spawn + "print('ready')\n" + FOR_EVER)
    (child,) = psutil.Process(process.pid).children()
    ranks = RunningRanks(paths)
    ranks.take(event)
    assert ranks.all_live()
    assert ranks.kill()
    assert process.wait() == -signal.SIGKILL
    gone, _ = psutil.wait_procs([child], timeout=300)
    assert gone == [child]
    assert not ranks.all_live()
    assert not ranks.ask_for_stack(0)


def test_a_rank_that_is_stopped_says_so(start, paths):
    event, process = start("print('ready')\n" + FOR_EVER)
    ranks = RunningRanks(paths)
    ranks.take(event)
    process.send_signal(signal.SIGSTOP)
    while ranks.state(0) != "stopped":
        time.sleep(0.01)
    assert ranks.all_live()


HANDLER = """
import signal, sys
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print("ready")
while not got: time.sleep(0.01)
time.sleep(0.3)
sys.exit(len(got))
"""


def test_a_rank_that_handles_sigterm_is_asked_once_and_none_of_its_children(start, paths):
    child = (
        f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {FOR_EVER!r}])\n"
    )
    event, process = start(child + HANDLER)
    (left,) = psutil.Process(process.pid).children()
    ranks = RunningRanks(paths)
    ranks.take(event)
    assert ranks.ask_to_end()
    while process.poll() is None:
        ranks.ask_to_end()
        time.sleep(0.01)
    assert process.returncode == 1  # got it once
    assert left.is_running()
    left.kill()
    ranks.take(Ended(time.monotonic(), 0, 1))
    assert [ranks.ask_to_end() for _ in range(3)] == [True] * 3  # torchrun ends by itself


@pytest.mark.parametrize("name", ["train é".encode()[:-1], b"\xff"], ids=["cut", "no text"])
def test_a_rank_whose_name_is_no_text_is_asked_all_the_same(start, paths, name):
    rename = f"open('/proc/self/comm', 'wb', 0).write({name!r})\n"
    event, process = start("import time\n" + rename + HANDLER)
    ranks = RunningRanks(paths)
    ranks.take(event)
    assert ranks.ask_to_end()
    assert process.wait() == 1
    assert not ranks.ask_for_stack(0)


class StartedAnew(psutil.Process):
    """A process that is never the same as another one of its pid."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other

    def is_running(self):
        return psutil.pid_exists(self.pid)


def test_a_restarted_rank_is_asked_although_one_with_its_pid_was(start, paths, monkeypatch):
    monkeypatch.setattr(psutil, "Process", StartedAnew)
    twice = HANDLER.replace("while not got", "while len(got) < 2").replace(
        "got.append(1)", "(got.append(1), print('got', len(got)))"
    )
    event, process = start("import time\n" + twice)
    ranks, log = RunningRanks(paths), paths.rank_log(0)
    ranks.take(event)
    assert ranks.ask_to_end()
    wait_for(lambda: "got 1" in log.read_text())
    ranks.take(event)
    assert ranks.ask_to_end()
    wait_for(lambda: "got 2" in log.read_text())
    assert process.wait() == 2


HOLDS_A_FILE = """
import gzip
file = gzip.open("open.gz", "wt")
file.write("text")
print("ready")
"""


def test_a_rank_without_a_handler_leaves_its_files_whole(start, paths, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    event, process = start(HOLDS_A_FILE + FOR_EVER)
    ranks = RunningRanks(paths)
    ranks.take(event)
    environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(paths.run_dir)}
    with subprocess.Popen(["sleep", "600"], env=environment) as bare:
        own = Path(f"/proc/{bare.pid}/environ")
        wait_for(lambda: b"ZEUSRUN_RUN_DIR" in own.read_bytes())  # exec sets it last
        ranks.take(Started(event.t, 1, bare.pid))
        asked = ranks.ask_to_end()
        bare.kill()
    assert not asked  # that one handles no signal
    assert ranks.ask_to_end()
    assert process.wait() == 0
    assert gzip.decompress((tmp_path / "open.gz").read_bytes()) == b"text"


STARTS_TWO = """
import multiprocessing, os, time

def train(name):
    try:
        begun.wait()
        time.sleep(600)
    finally:
        time.sleep(0.3)
        os.write(1, f"{name} ends\\n".encode())

context = multiprocessing.get_context("fork")
begun = context.Barrier(3)
children = [context.Process(target=train, args=(name,)) for name in ("first", "second")]
for child in children:
    child.start()
begun.wait()  # a fork forgets the signals that it gets before it begins
print("ready")
try:
    for child in children:
        child.join()
    time.sleep(600)
finally:
    print("the rank ends")
"""


def test_processes_that_train_for_a_rank_leave_before_it(start, paths):
    event, process = start(STARTS_TWO)
    ranks = RunningRanks(paths)
    ranks.take(event)
    for child in psutil.Process(process.pid).children():
        ranks.take(Spawned(event.t, child.pid, 2, followed=True))
    while process.poll() is None:
        ranks.ask_to_end()
        time.sleep(0.01)
    assert process.returncode == 0
    *ends, last = paths.rank_log(0).read_text().splitlines()
    assert sorted(ends) == ["first ends", "ready", "second ends"]
    assert last == "the rank ends"


def test_torchrun_is_to_end_ranks_that_do_not_leave_in_time(start, paths, monkeypatch):
    monkeypatch.setattr("zeusrun.launcher.supervision.ranks._LEAVE_S", 0.0)
    event, process = start("print('ready')\n" + FOR_EVER)
    ranks = RunningRanks(paths)
    ranks.take(event)
    assert not ranks.ask_to_end()
    assert process.wait(300) == 0  # it was asked to leave, and needs more than no time


def test_torchrun_is_to_end_ranks_that_have_died_or_are_unknown(start, paths):
    ranks = RunningRanks(paths)
    assert not ranks.ask_to_end()
    event, process = start("print('ready')\n" + FOR_EVER)
    ranks.take(event)
    process.kill()
    process.wait()
    assert ranks.ask_to_end()  # it may have said that it ended; that is read before the next time
    assert not ranks.ask_to_end()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EMFILE])
def test_without_descriptors_of_processes_a_rank_is_asked_all_the_same(
    start, paths, monkeypatch, number
):
    def refuse(_pid):
        raise OSError(number, os.strerror(number))

    event, process = start("import time\n" + HANDLER)
    ranks = RunningRanks(paths)
    ranks.take(event)
    monkeypatch.setattr("os.pidfd_open", refuse)
    assert ranks.ask_to_end()
    assert process.wait() == 1  # got it once


def test_ranks_that_are_not_all_known_are_left_to_torchrun(start, paths):
    event, process = start("import time\n" + HANDLER)
    ranks = RunningRanks(paths, range(2))
    ranks.take(event)
    assert not ranks.ask_to_end()
    assert process.poll() is None


def test_ranks_of_the_script_are_looked_for_more_and_more_rarely(paths, monkeypatch):
    looks, found = [], {}
    ranks = RunningRanks(paths)
    monkeypatch.setattr(
        "zeusrun.launcher.supervision.ranks.find_started_ranks", lambda _: looks.append(1) or found
    )

    def look(since, until):
        times = [100.0 + n / 10 for n in range(10 * since, 10 * until)]
        return [each for t in times for each in ranks.find_others(t, 100.0)]

    assert look(0, 60) == []
    assert len(looks) == 9  # after 2 s, 3 s, 4.5 s, ...
    found[7] = 2
    (event,) = look(60, 80)
    assert (event.pid, event.world_size, event.followed) == (7, 2, False)


def regrouped(*members, number=2):
    return Regrouped(time.monotonic(), number, members, "a user wants it")


@pytest.fixture
def spawn(tmp_path):
    """Start processes of the run that handle SIGTERM, or do not; return the event of each."""
    children = {}

    def spawn_child(slot, text=HANDLER):
        child = subprocess.Popen(
            [sys.executable, "-uc", "import time\n" + text],
            env={**os.environ, "ZEUSRUN_RUN_DIR": str(tmp_path / "run")},
            stdout=subprocess.PIPE,
        )
        children[slot] = child
        assert child.stdout.readline() == b"ready\n"
        return Started(time.monotonic(), slot, child.pid)

    spawn_child.children = children
    yield spawn_child
    for child in children.values():
        child.kill()
        child.wait()
        child.stdout.close()


def test_the_world_is_that_of_the_present_generation(paths, spawn):
    ranks = RunningRanks(paths, range(2))
    assert ranks.world == (0, 1)
    for slot in (0, 1):
        ranks.take(spawn(slot))
    ranks.take(regrouped(1, 5))
    assert ranks.world == (1, 5)
    assert ranks.states.keys() == {1}  # 5 has not begun


def test_a_lost_rank_does_not_keep_the_others_from_being_asked(paths, spawn):
    ranks = RunningRanks(paths, range(2))
    for slot in (0, 1):
        ranks.take(spawn(slot))
    spawn.children[1].kill()
    spawn.children[1].wait()
    assert not ranks.all_live()
    assert ranks.ask_to_end()  # its last events may not have been read
    assert not ranks.ask_to_end()  # as far as is known, the agent starts all again
    ranks.take(regrouped(0))
    assert ranks.all_live()
    assert ranks.ask_to_end()
    assert spawn.children[0].wait() == 1  # got it once


def test_a_rank_that_has_left_does_not_either(paths, spawn):
    ranks = RunningRanks(paths, range(2))
    for slot in (0, 1):
        ranks.take(spawn(slot))
    ranks.take(regrouped(0))
    spawn.children[1].kill()
    ranks.take(Ended(time.monotonic(), 1, 0))
    assert [ranks.ask_to_end() for _ in range(3)] == [True] * 3


def test_a_rank_that_has_left_is_not_killed_with_the_others(paths, spawn):
    ranks = RunningRanks(paths, range(2))
    for slot in (0, 1):
        ranks.take(spawn(slot))
    ranks.take(regrouped(0))
    assert ranks.kill()
    assert spawn.children[0].wait() == -signal.SIGKILL
    spawn.children[1].terminate()
    assert spawn.children[1].wait() == 1  # by its own handler


def test_newcomers_are_asked_too(paths, spawn):
    ranks = RunningRanks(paths)
    for slot in (0, 1, 2):
        ranks.take(spawn(slot))
    ranks.take(regrouped(0, 1))  # and 2 starts
    assert ranks.ask_to_end()
    assert [spawn.children[slot].wait() for slot in (0, 1, 2)] == [1, 1, 1]


def test_a_newcomer_that_dies_before_it_joins_makes_no_difference(paths, spawn):
    ranks = RunningRanks(paths)
    for slot in (0, 1):
        ranks.take(spawn(slot))
    spawn.children[1].kill()
    spawn.children[1].wait()
    assert [ranks.ask_to_end() for _ in range(3)] == [True] * 3
    assert spawn.children[0].wait() == 1


def test_members_that_have_not_begun_are_waited_for(paths, spawn):
    ranks = RunningRanks(paths)
    ranks.take(spawn(0))
    ranks.take(regrouped(0, 1))
    assert not ranks.ask_to_end()
    ranks.take(spawn(1))
    assert ranks.ask_to_end()


def test_the_steps_are_those_of_the_first_rank_that_trains(paths):
    for folder in ("clock", "logs"):
        (paths.run_dir / folder).mkdir(parents=True)
    for slot, steps in ((0, 3), (4, 5)):
        clock = StepClock(str(paths.run_dir / "clock" / f"rank{slot}"))
        for _ in range(steps):
            clock.tick()
    ranks = RunningRanks(paths)
    assert ranks.count().steps == 3
    ranks.take(regrouped(4, 7))
    assert ranks.count().steps == 5
    assert ranks.slowest() is None  # 7 has made none


def test_without_any_host_that_has_ranks_there_are_no_steps(paths):
    node = SimpleNamespace(ranks=range(1, 2), lost="host b is lost", set_members=lambda _: None)
    ranks = RunningRanks(paths, range(1), [node], flexible=True)
    ranks.take(regrouped(1))
    assert ranks.world == ()
    assert ranks.count() is None
    assert ranks.slowest() is None

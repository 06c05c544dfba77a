"""Stalls: when a training has stalled, what zeusrun does then, and how it reads the stacks."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sysconfig
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import zeusrun
from tests.launcher.values import LAUNCHED
from tests.runs import wait_for
from zeusrun.launcher.events import Messages, Noted
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.supervision.ranks import RunningRanks, _size_of, read_stack
from zeusrun.launcher.supervision.stalls import (
    NO_PAUSES,
    Pauses,
    StackFrame,
    StallControl,
    Standstill,
    begin_again,
    build_stall,
    describe_place,
    find_stall,
    find_unusual_pause,
    keep_stacks,
    read_frames,
    watch_pauses,
)
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import Started
from zeusrun.sidecar.step_clock import StepClock

AFTER_S = 60.0
LOOK_S = 0.1


@dataclass
class Training:
    """A training looked at ten times a second, that notes when it first counts as stalled."""

    after_s: float = AFTER_S
    now_t: float = 1000.0
    steps: dict[int, int] = field(default_factory=dict)
    epochs: int = 0
    pauses: Pauses = NO_PAUSES
    told: Standstill | None = None

    def look(self):
        self.pauses = watch_pauses(self.pauses, self.now_t, self.steps, self.epochs)
        self.told = self.told or find_stall(self.pauses, self.after_s)

    def stand(self, seconds):
        """Let time pass in which no rank takes a step."""
        until_t = self.now_t + seconds
        while self.now_t < until_t - LOOK_S / 2:
            self.now_t += LOOK_S
            self.look()

    def train(self, steps, step_s=0.2, ranks=(0, 1)):
        for _ in range(steps):
            self.stand(step_s)
            for rank in ranks:
                self.steps[rank] = self.steps.get(rank, 0) + 1
            self.look()
        return self

    def epoch(self, steps=50, step_s=0.2, evaluation_s=0.0, save_s=0.0):
        self.train(steps, step_s)
        self.stand(evaluation_s)
        self.epochs += 1
        self.stand(save_s)
        return self


@pytest.fixture
def training():
    """One that has looked once before anything was counted, and knows its epochs."""
    training = Training()
    training.look()
    return training


def test_a_training_that_stands_for_longer_than_after_s_has_stalled(training):
    training.epoch().train(10)
    training.stand(AFTER_S - 1)
    assert training.told is None
    training.stand(2)
    assert training.told.ranks == (0, 1)
    assert training.told.standing_s == pytest.approx(AFTER_S, abs=0.3)
    assert training.told.longest_s == pytest.approx(0.2, abs=0.15)


def test_nothing_is_a_stall_before_the_first_step(training):
    training.stand(7200.0)
    assert training.told is None


@pytest.mark.parametrize("step_s", [8.0, 45.0])
def test_steps_that_take_long_have_ten_times_as_long(training, step_s):
    training.epoch(20, step_s).train(5, step_s)
    training.stand(9.9 * step_s)
    assert training.told is None
    training.stand(max(AFTER_S, 10.2 * step_s) - 9.9 * step_s + 1)
    assert training.told is not None


def test_a_loader_that_comes_in_bursts_is_usual(training):
    for _ in range(4):
        for _ in range(5):
            training.train(30, 0.1)
            training.stand(20.0)
        training.epochs += 1
    training.train(1)
    training.stand(150.0)
    assert training.told is None
    training.stand(60.0)
    assert training.told is not None


def test_an_evaluation_may_take_ten_times_after_s_while_its_length_is_unknown(training):
    training.train(50)
    training.stand(9.9 * AFTER_S)
    assert training.told is None
    training.stand(0.2 * AFTER_S)
    assert training.told is not None


def test_what_follows_the_first_report_may_take_as_long_as_what_goes_before_it(training):
    """A checkpoint, say: as a pause, evaluation and checkpoint are one."""
    training.epoch(evaluation_s=300.0, save_s=90.0)
    training.train(50)
    assert training.told is None
    assert training.pauses.ranks[0].longest_s == pytest.approx(390.0, abs=0.5)
    training.stand(3800.0)
    assert training.told is None
    training.stand(200.0)
    assert training.told is not None


def test_a_step_seen_together_with_the_first_report_may_have_been_before_it(training):
    training.train(50)
    training.steps = {0: 51, 1: 51}
    training.epochs = 1
    training.look()
    training.stand(300.0)
    assert training.told is None


def test_an_evaluation_as_long_as_usual_is_no_stall(training):
    for _ in range(5):
        training.epoch(evaluation_s=120.0)
    assert training.told is None


def test_a_rank_that_stands_alone_is_told_alone(training):
    training.epoch().train(10)
    training.train(400, ranks=[0])
    assert training.told.ranks == (1,)


def test_a_rank_that_is_ahead_stands_with_the_one_it_waits_for(training):
    training.epoch().train(10)
    training.train(1, ranks=[0])
    training.stand(AFTER_S + 1)
    assert training.told.ranks == (0, 1)


def test_a_rank_that_never_takes_a_step_is_not_waited_for(training):
    training.epoch().train(1000, ranks=[0, 1])
    assert set(training.pauses.ranks) == {0, 1}
    assert training.told is None


def test_a_restart_takes_as_long_as_it_takes_though_the_clock_goes_on(training):
    training.epoch().train(10)
    training.pauses = begin_again(training.pauses)
    training.stand(3600.0)
    assert training.told is None
    training.train(10)
    training.stand(AFTER_S - 1)
    assert training.told is None
    training.stand(2)
    assert training.told.longest_s < 1.0  # the restart is no pause between two steps


def test_a_clock_that_had_counted_before_the_launch_is_watched_from_its_next_step():
    training = Training(steps={0: 500, 1: 500}, epochs=3)
    training.stand(3600.0)
    assert training.told is None
    training.train(5)
    assert training.pauses.ranks[0].longest_s < 1.0


@pytest.mark.parametrize("gap_s", [30.0, 3600.0, 1e6])
def test_a_time_in_which_nobody_looked_is_no_stall_and_no_usual_pause(training, gap_s):
    training.epoch().train(10)
    training.now_t += gap_s
    training.look()
    training.stand(AFTER_S - 1.5)  # it counts as a second
    assert training.told is None
    training.train(1)
    training.stand(AFTER_S - 1)
    training.train(1)
    training.now_t += gap_s
    training.train(10)
    assert training.pauses.ranks[0].longest_s <= AFTER_S


def test_a_pause_that_was_told_of_is_usual_from_then_on(training):
    training.epoch().train(10)
    training.stand(AFTER_S + 1)
    assert training.told is not None
    training.train(10)
    training.told = None
    training.stand(9 * AFTER_S)
    assert training.told is None


def test_places_are_told_by_rank_and_alike_ones_together():
    wait, read = "in all_reduce, train.py:33", "in read, data.py:7"
    stall = Standstill((0, 1, 2, 3), 62.3, 0.44)
    assert build_stall(stall, {0: wait, 1: wait, 2: read, 3: wait}).describe() == (
        "no optimizer step for 62 s, after pauses of at most 0.4 s; "
        "ranks 0-1, 3 are in all_reduce, train.py:33; rank 2 is in read, data.py:7"
    )
    assert (
        "no optimizer step on rank 1 for 62 s"
        in build_stall(Standstill((1,), 62.3, 0.44), {0: wait, 1: read}).describe()
    )


def test_a_pause_that_is_longer_than_usual_is_known_before_it_is_a_stall(training):
    assert find_unusual_pause(training.pauses) is None
    training.epoch()
    assert find_unusual_pause(training.pauses) is None
    training.stand(1.5)  # its steps take 0.2 s
    assert find_unusual_pause(training.pauses) is None
    training.stand(38.5)
    assert training.told is None
    assert find_unusual_pause(training.pauses) == pytest.approx(40.0, abs=0.3)


class ControlledTraining:
    """A trial with two ranks that take steps of 0.1 s, and what was said of it."""

    def __init__(self, home, *, instrument=True, **stall):
        self.paths = create_run(home, "job", "job-1-1")
        spec = SimpleNamespace(
            instrument=instrument,
            stall=SimpleNamespace(**{"after_s": 60.0, "action": "report", **stall}),
            launch=SimpleNamespace(max_restarts=1),
        )
        messages = Messages(self._take)
        self.warned, self.noted = messages.warnings, []
        ranks = RunningRanks(self.paths, range(2))
        self.control = StallControl(spec, self.paths, messages, ranks)
        self.progress = LAUNCHED
        self.ending = False
        self.stand(0.1)
        self.clocks = [StepClock(self.paths.rank_clock(rank)) for rank in range(2)]
        self.train(10)
        self.progress = replace(self.progress, epochs=1)
        self.train(10)

    def _take(self, event):
        if isinstance(event, Noted):
            self.noted.append(event.text)

    def stand(self, seconds):
        for _ in range(round(seconds / 0.1)):
            self.progress = replace(self.progress, now_t=self.progress.now_t + 0.1)
            self.control.advance(replace(self.progress, ending=self.ending))

    def train(self, steps):
        for _ in range(steps):
            for clock in self.clocks:
                clock.tick()
            self.stand(0.1)


@pytest.fixture
def start(tmp_path):
    return lambda **changes: ControlledTraining(tmp_path, **changes)


def test_a_stall_is_told_once_and_its_end_is_noted(start):
    training = start()
    training.stand(300.0)
    (told,) = training.warned
    assert "no optimizer step for 60 s" in told
    assert "ranks 0-1 are at an unknown place" in told
    assert training.noted == []
    training.train(5)
    assert training.noted == ["the training goes on by itself after 300 s"]
    training.train(100)
    assert len(training.warned) == len(training.noted) == 1


def test_another_stall_is_told_again_behind_the_first(start):
    training = start()
    training.stand(70.0)
    training.train(5)
    training.stand(800.0)
    assert len(training.warned) == 2
    assert training.paths.stacks.read_text().count("the training has stalled") == 2


@pytest.mark.parametrize("changes", [{"action": "off"}, {"instrument": False}])
def test_nothing_is_looked_for_where_that_is_not_wanted_or_no_step_is_seen(start, changes):
    training = start(**changes)
    training.stand(700.0)
    assert training.warned == []


@pytest.mark.parametrize(
    "ending",
    [{"ranks": Ranks(2, exit_codes={1: 0})}, {"ending": True}],
    ids=lambda e: next(iter(e)),
)
def test_a_training_that_is_ending_has_not_stalled(start, ending):
    training = start()
    training.ending = ending.pop("ending", False)
    training.progress = replace(training.progress, **ending)
    training.stand(100.0)
    assert (training.warned, training.noted) == ([], [])


def test_a_stall_that_is_told_to_stop_does_not_go_on_by_itself(start):
    training = start()
    training.stand(70.0)
    training.ending = True
    training.stand(10.0)
    assert training.noted == []


def test_ranks_that_are_unknown_cannot_be_restarted_and_that_is_said(start):
    training = start(action="restart")
    training.stand(300.0)
    (told,) = training.warned
    assert told.endswith("their processes are unknown")
    assert training.control.failure is None


def test_ranks_that_were_killed_for_a_stall_do_not_pause(start):
    training = start(action="restart")
    environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(training.paths.run_dir)}
    with subprocess.Popen(["sleep", "600"], env=environment) as rank:
        own = Path(f"/proc/{rank.pid}/environ")
        wait_for(lambda: b"ZEUSRUN_RUN_DIR" in own.read_bytes())  # exec sets it last
        training.control._ranks.take(Started(0.0, 0, rank.pid))
        training.stand(70.0)
        assert rank.wait() == -signal.SIGKILL
    (told,) = training.warned
    assert "The ranks were killed; torchrun restarts them" in told
    assert training.control.describe_pause() is None


def test_where_a_rank_has_ended_torchrun_acts_and_no_stall_is_told(start, monkeypatch):
    training = start()
    monkeypatch.setattr(training.control._ranks, "all_live", lambda: False)
    training.stand(300.0)
    assert training.warned == []


def test_ranks_of_which_one_ends_while_their_stacks_are_read_are_not_killed(start, monkeypatch):
    training = start(action="restart")
    live = iter([True, False])
    monkeypatch.setattr(training.control._ranks, "all_live", lambda: next(live))
    training.stand(70.0)
    (told,) = training.warned
    assert told.endswith(f"The stacks are in {training.paths.stacks}")


def test_stacks_that_cannot_be_kept_are_told_of(start):
    training = start()
    training.paths.stacks.mkdir()
    training.stand(70.0)
    (told,) = training.warned
    assert "The stacks could not be written: " in told


PACKAGE = os.path.dirname(zeusrun.__file__)
LIBRARY = sysconfig.get_paths()["stdlib"]
TORCH = sysconfig.get_paths()["purelib"] + "/torch/distributed/distributed_c10d.py"
TEXT = f"""\
Thread 0x00007f848b1546c0 (most recent call first):
  File "{LIBRARY}/threading.py", line 982 in run
  File "/home/me/loader.py", line 3 in fill

Thread 0x00007f84b3430b80 (most recent call first):
  File "{TORCH}", line 2500 in all_reduce
  File "/home/me/train (new).py", line 33 in train_epoch
  File "/home/me/train (new).py", line 60 in <module>
  File "{PACKAGE}/worker/process/__main__.py", line 126 in _run_file
  File "{PACKAGE}/worker/process/__main__.py", line 181 in <module>

Current thread 0x00007f84b3430b81 [loader] (most recent call first):
  File "{LIBRARY}/queue.py", line 171 in get
"""


def test_the_main_thread_is_the_one_that_runs_our_worker():
    frames = read_frames(TEXT)
    assert frames[0] == StackFrame(TORCH, 2500, "all_reduce")
    assert frames[1] == StackFrame("/home/me/train (new).py", 33, "train_epoch")
    assert len(frames) == 5


def test_where_no_thread_runs_our_worker_the_one_that_took_the_signal_counts():
    assert (
        read_frames(TEXT.replace("worker/process/__main__.py", "elsewhere.py"))[0].function == "get"
    )


def test_the_place_is_the_innermost_call_and_the_users_line():
    assert describe_place(read_frames(TEXT)) == "in all_reduce, train (new).py:33"


def test_a_line_of_the_scripts_own_is_told_without_a_call():
    text = (
        'Current thread 0x1 (most recent call first):\n  File "/me/train.py", line 9 in <module>\n'
    )
    assert describe_place(read_frames(text)) == "at train.py:9"


def test_where_no_file_is_the_users_the_innermost_line_is_told():
    text = f'Current thread 0x1 (most recent call first):\n  File "{TORCH}", line 9 in wait\n'
    assert describe_place(read_frames(text)) == "in wait, distributed_c10d.py:9"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\n" * 9,
        "Current thread 0x1 (most recent call first):\n  <no Python frame>\n",
        '  File "a", line 1 in b\n',
        'Current thread 0x1 (most recent call first):\n  File "a", line ??? in b\n',
    ],
)
def test_where_nothing_is_told_no_place_is_known(text):
    assert describe_place(read_frames(text)) is None


def test_what_the_interpreter_of_the_ranks_writes_is_understood(tmp_path):
    """Of this process, whose main thread does not run our worker."""
    path = tmp_path / "stack"
    with path.open("w") as file:
        faulthandler.dump_traceback(file)
    assert "test_stalls.py:" in describe_place(read_frames(path.read_text()))


def test_only_what_was_told_since_is_read(tmp_path):
    path = tmp_path / "rank0.stack"
    assert (_size_of(path), read_stack(path, 0)) == (0, "")
    path.write_text("before")
    size = _size_of(path)
    path.write_text("before, after")
    assert read_stack(path, size) == ", after"


def test_a_link_or_a_pipe_in_the_place_of_a_file_is_neither_followed_nor_waited_for(tmp_path):
    victim, link, pipe = tmp_path / "victim", tmp_path / "link", tmp_path / "pipe"
    victim.write_text("mine")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    for path in (link, pipe):
        assert read_stack(path, 0) == ""
        with pytest.raises(OSError, match=path.name):
            keep_stacks(path, "heading", {0: "stack"})
    assert victim.read_text() == "mine"

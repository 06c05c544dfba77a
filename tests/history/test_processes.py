"""Many processes on one history."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.contracts.history import REACHED, begin, build_trial
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.files.lock import FileLock
from zeusrun.history.base import Conflict
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.trial import TrialStatus

ROOT = Path(__file__).parents[2]


@contextmanager
def writers(directory, processes, count):
    """Start writers and let them loose together; none outlives the block."""
    command = [sys.executable, "-m", "tests.history.writer", str(directory), str(count)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        for _ in range(processes)
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        yield started
    finally:
        for process in started:
            with process:  # closes its streams, and waits
                process.kill()


def acknowledged(lines, word):
    return [line.split()[1] for line in lines if line.startswith(word)]


# More processes only repeat what two do, and each takes half a second of CPU to start.
@pytest.mark.parametrize(
    ("processes", "count"), [(2, 25), pytest.param(8, 4, marks=pytest.mark.long)]
)
def test_processes_at_once_lose_and_repeat_nothing(tmp_path, processes, count):
    history = TinyDBHistory(tmp_path)
    fresh = partial(TinyDBHistory, tmp_path)  # reads the volumes again
    path = tmp_path / "digits.json"
    lines = []
    known = []
    with writers(tmp_path, processes, count) as started:
        while any(process.poll() is None for process in started):
            if path.exists():
                json.loads(path.read_bytes())
            trials = fresh().trials("digits")
            assert [trial.trial for trial in trials[: len(known)]] == known
            newest = history.trials("digits", 5)
            assert len(newest) == min(5, newest[-1].recurrence if newest else 0)
            known = [trial.trial for trial in trials]
        for process in started:
            lines += process.stdout.read().splitlines()
            assert process.wait() == 0
    total = processes * count
    trials = fresh().trials("digits")
    assert [trial.recurrence for trial in trials] == list(range(1, total + 1))
    assert len(list((tmp_path / "digits.volumes").iterdir())) >= total // 3 - 2 - processes
    assert {trial.status for trial in trials} == {TrialStatus.REACHED}
    assert sorted(acknowledged(lines, "begun")) == sorted(trial.trial for trial in trials)
    assert sorted(acknowledged(lines, "finished")) == sorted(trial.trial for trial in trials)


@pytest.mark.long
def test_a_writer_killed_at_any_moment_leaves_all_it_acknowledged(tmp_path):
    moments = random.Random(7)
    begun, finished = [], []
    for kill in range(1, 11):
        with writers(tmp_path, 1, 10**6) as (process,):
            lines = [process.stdout.readline() for _ in range(moments.randint(1, 5))]
            # Not waiting for anything: the moment of death is what is drawn by lot.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(moments.uniform(0, 0.02))
            process.kill()
            # Not communicate(): it passes over what readline() has read ahead.
            lines += process.stdout.read().splitlines()
        begun += acknowledged(lines, "begun")
        finished += acknowledged(lines, "finished")
        # The writer's size: the next write repeats what a death interrupted.
        history = TinyDBHistory(tmp_path, volume_trials=3)
        trials = history.trials("digits")
        stored = [trial.trial for trial in trials]
        ended = [trial.trial for trial in trials if trial.status.finished]
        assert [trial.recurrence for trial in trials] == list(range(1, len(trials) + 1))
        # A death may fall between a write and its acknowledgement, once each.
        assert set(begun) <= set(stored)
        assert len(stored) <= len(begun) + kill
        assert set(finished) <= set(ended)
        assert len(ended) <= len(finished) + kill
    begin(history)
    history.finish(f"digits-{len(trials) + 1}-1", REACHED)
    names = {path.name for path in tmp_path.iterdir()} - {"digits.volumes"}
    assert names == {"digits.json", "digits.json.bak", "digits.json.lock"}
    assert not list((tmp_path / "digits.volumes").glob("*.tmp"))


@pytest.mark.parametrize(("method", "steps"), [("replace", 3), ("unlink", 6)])
def test_a_writer_stopped_within_a_write_blocks_no_reader_and_its_death_frees_the_lock(
    tmp_path, method, steps
):
    """It seals a volume, and is stopped before every step in turn."""
    for step in range(1, steps + 1):
        directory = tmp_path / str(step)
        history = TinyDBHistory(directory, volume_trials=1, lock_timeout_s=0.05)
        for number in (1, 2):
            begin(history)
            history.finish(f"digits-{number}-1", REACHED)
        begin(history)
        before = history.trials("digits")
        writer = os.fork()
        if writer == 0:
            try:
                stop_before(Path, method, step)
                history.finish("digits-3-1", REACHED)
            finally:  # else a failure would go on as a second pytest
                os._exit(1)
        try:
            assert os.WIFSTOPPED(os.waitpid(writer, os.WUNTRACED)[1])
            reader = TinyDBHistory(directory)
            assert reader.trials("digits") in (before, [*before[:2], before[2].finish(REACHED)])
            with pytest.raises(HistoryError, match="held the lock"):
                begin(history)
        finally:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        begin(history)
        if not history.find("digits-3-1").status.finished:
            history.finish("digits-3-1", REACHED)
        assert [t.recurrence for t in TinyDBHistory(directory).trials("digits")] == [1, 2, 3, 4]
        assert not list(directory.rglob("*.tmp"))


def stop_before(owner, name, step):
    """Stop this process before its n-th call of a method. Never undone: the process is a child."""
    real, calls = getattr(owner, name), itertools.count(1)

    def call(*arguments, **options):
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(*arguments, **options)

    setattr(owner, name, call)


def test_a_stopped_lock_holder_is_named_and_its_death_frees_the_lock(tmp_path):
    history = TinyDBHistory(tmp_path, lock_timeout_s=0.05)
    first = begin(history)
    lock = tmp_path / "digits.json.lock"

    holder = os.fork()
    if holder == 0:
        try:
            held = FileLock(lock)
            held.acquire()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    try:
        assert os.WIFSTOPPED(os.waitpid(holder, os.WUNTRACED)[1])
        with pytest.raises(HistoryError, match=r"held the lock .* for 0\.05 s") as info:
            begin(history)
        assert info.value.exit_code is ExitCode.HISTORY
        assert str(lock) in str(info.value)
        assert history.trials("digits") == [first]  # readers never wait
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    assert begin(history).recurrence == 2


def test_of_two_processes_that_have_chosen_from_the_same_snapshot_one_begins(tmp_path):
    history = TinyDBHistory(tmp_path)
    begin(history)
    version = history.snapshot("digits").version
    readable, writable = os.pipe()
    children = []
    for attempt in (1, 2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.close(writable)
                os.read(readable, 1)  # until all are let loose together
                TinyDBHistory(tmp_path).begin(build_trial(2, attempt), after=version)
                code = 0
            except Conflict:
                code = 3
            finally:
                os._exit(code)
        children.append(child)
    os.close(writable)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(readable)
    assert sorted(codes) == [0, 3]
    won = build_trial(2, 1 + codes.index(0))
    assert history.trials("digits") == [build_trial(1), won]


def test_a_lock_file_without_a_holder_is_not_in_the_way(tmp_path):
    (tmp_path / "digits.json.lock").write_text("left by the dead")
    history = TinyDBHistory(tmp_path, lock_timeout_s=0)
    assert begin(history).recurrence == 1

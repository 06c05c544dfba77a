"""Runs that train on the same CPU at the same time, and other programs there."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.bandit.scripts import problem
from tests.factories import DONE, build_trial
from tests.runs import only_trial, wait_for
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.errors import DeviceError
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.supervision import neighbours as module
from zeusrun.launcher.supervision.neighbours import Load, Neighbours, disturbs
from zeusrun.trial import join_parts

WAITS = """
import os, sys, zeusrun
run = zeusrun.current()
for epoch in run.epochs(default=2):
    while epoch == 2 and not os.path.exists(sys.argv[1]):
        pass
    run.report(epoch=epoch, accuracy=0.3 * epoch)
"""


@pytest.fixture
def other(tmp_path):
    """Write the ticket of another submit, which lives; return its path."""
    with subprocess.Popen(["sleep", "600"]) as process, contextlib.ExitStack() as stack:

        def write(**changes):
            with Tickets(tmp_path) as tickets:
                held = tickets.take("other", "running")
            stack.callback(held.release)
            record = {
                "version": 1,
                **held.ticket.to_json(),
                "on_cpu": True,
                "pid": process.pid,
                **changes,
            }
            path = tickets.path(held.ticket.number)
            path.write_text(json.dumps(record))
            return path

        yield write
        process.kill()


def test_only_what_is_beside_the_training_itself_counts(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    other()
    for n in range(3):
        assert neighbours.check(100.0 + n, trains=False) is None
    assert neighbours.shared is None


def test_a_run_beside_it_is_found_once_two_looks_have_seen_it(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    path = other()
    assert neighbours.check(100.0, trains=True) is None
    for suffix in (".json", ".lock"):  # that one has gone, and another one come
        path.with_suffix(suffix).rename(path.with_name(f"9{suffix}"))
    assert neighbours.check(102.0, trains=True) is None
    assert neighbours.check(102.5, trains=True) is None  # it is not time to look
    assert neighbours.shared is None
    assert "other runs train on this CPU: other; so" in neighbours.check(104.0, trains=True)
    assert neighbours.shared is True
    assert neighbours.check(106.0, trains=True) is None


def test_a_killed_submit_does_not_count_although_its_pid_is_in_use(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    path = other()
    dead = path.with_suffix(".lock")
    dead.rename(dead.with_suffix(".held"))
    for _ in range(2):  # without the file of its lock, and with it
        assert [neighbours.check(100.0 + 2 * n, trains=True) for n in range(3)] == [None] * 3
        dead.touch()
    assert neighbours.shared is None


@pytest.mark.parametrize("changes", [{"pid": 2**70}, {"job": 7}, {"job": None}, {"pid": "x"}])
def test_whatever_a_ticket_holds_looking_never_fails(tmp_path, other, changes):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    other(**changes)
    other(job="whole")
    told = [neighbours.check(100.0 + 2 * n, trains=True) for n in range(2)]
    assert told[0] is None
    assert "whole" in told[1]


def test_where_tickets_cannot_be_listed_nobody_is_found(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    (tmp_path / "submits").touch()
    assert [neighbours.check(100.0 + 2 * n, trains=True) for n in range(3)] == [None] * 3


@pytest.mark.parametrize("changes", [{"pid": os.getpid()}, {"on_cpu": False}, {"host": "another"}])
def test_its_own_ticket_and_those_of_gpu_and_other_machines_submits_do_not_count(
    tmp_path, other, changes
):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    other(**changes)
    assert [neighbours.check(100.0 + 2 * n, trains=True) for n in range(3)] == [None] * 3
    assert neighbours.shared is None


def test_a_run_on_gpus_asks_the_gpus(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=False)
    other()
    assert [neighbours.check(100.0 + 2 * n, trains=True) for n in range(3)] == [None] * 3
    assert neighbours.shared is None


def test_two_submits_at_once_are_both_marked_and_one_alone_is_not(zeusrun):
    def start(name):
        args = ["--epoch-s", "0.5", "--gain", "0.001"]
        job = zeusrun.job(name=name, args=args, objective={"max_epochs": 400}, attempts=1)
        child = zeusrun.start("submit", job)
        live = zeusrun.run_dir(f"{name}-1-1") / "live.json"
        wait_for(live.exists)
        return child, live

    (first, live), (second, live2) = start("a"), start("b")
    wait_for(lambda: json.loads(live.read_text())["shared"], what="a's neighbour")
    wait_for(lambda: json.loads(live2.read_text())["shared"], what="b's neighbour")
    for child in (first, second):
        child.terminate()
        assert "other runs train on this CPU: " in " ".join(child.communicate()[0].split())
    assert [trial["shared"] for trial in zeusrun.history()] == [True, True]
    zeusrun.submit(zeusrun.job(name="c"))
    assert zeusrun.history("c")[0]["shared"] is None  # too short to judge the load


# Other programs. ``tests.calm`` makes every training too short to be judged.


@pytest.fixture
def judged(monkeypatch):
    monkeypatch.setattr(module, "MIN_MEASURED_S", 3.0)


class Machine:
    """Other programs as a test says: one load for each check."""

    def __init__(self, *loads):
        self.loads = list(loads)
        self.begun = 0

    def __call__(self):
        self.begun += 1
        return self

    def measure(self):
        load = self.loads.pop(0)
        if isinstance(load, Exception):
            raise load
        return load


def load(seconds, others, idle=0.0):
    return Load(seconds, others, idle)


def after_checks(tmp_path, *loads, on_cpu=True):
    neighbours = Neighbours(tmp_path, on_cpu=on_cpu, others=Machine(*loads))
    for n in range(len(loads)):
        assert neighbours.check(100.0 + 2 * n, trains=True) is None
    return neighbours


@pytest.mark.parametrize(
    ("others", "idle", "disturbed"),
    [(0.0, 0.0, False), (0.09, 0.0, False), (0.1, 0.09, True), (0.4, 0.1, False), (1.0, 0.0, True)],
)
def test_others_disturb_by_a_large_share_of_cpus_that_are_full(others, idle, disturbed):
    assert disturbs(load(60.0, others, idle)) is disturbed


def test_the_mean_of_the_whole_training_counts(tmp_path, judged):
    backup = after_checks(tmp_path, None, load(30.0, 0.5), load(3600.0, 0.02))
    assert (backup.shared, backup.describe_load()) == (False, None)
    busy = after_checks(tmp_path, None, load(30.0, 0.0), load(3600.0, 0.41))
    assert busy.shared is True
    assert busy.describe_load() == (
        "other programs took 41 % of this machine's CPU time while it trained, so its time and "
        "cost are unreliable: they count only where no better ones are known"
    )


def test_a_training_of_a_moment_or_without_counters_is_not_judged(tmp_path, judged):
    short = after_checks(tmp_path, None, load(2.9, 0.9))
    blind = after_checks(tmp_path, DeviceError("no /proc"), None)
    on_gpus = after_checks(tmp_path, load(60.0, 0.9), on_cpu=False)
    for each in (short, blind, on_gpus):
        assert (each.shared, each.describe_load()) == (None, None)


def test_what_was_measured_stays_if_the_counters_can_no_longer_be_read(tmp_path, judged):
    for error in (DeviceError("gone"), OSError(24, "Too many open files"), ValueError("empty")):
        assert after_checks(tmp_path, load(9.0, 0.5), error).shared is True


def test_the_load_is_measured_from_the_first_step_to_the_end(tmp_path, judged):
    machine = Machine(None, load(60.0, 0.0))
    neighbours = Neighbours(tmp_path, on_cpu=True, others=machine)
    neighbours.check(100.0, trains=False)
    assert machine.begun == 0
    neighbours.check(102.0, trains=True)
    neighbours.check(104.0, trains=True)
    neighbours.check(106.0, trains=False)
    assert (machine.begun, machine.loads, neighbours.shared) == (1, [], False)


def test_beside_another_run_the_load_is_not_said_again(tmp_path, judged, other):
    neighbours = Neighbours(tmp_path, on_cpu=True, others=Machine(*[load(9.0, 0.5)] * 2))
    other()
    assert [neighbours.check(100.0 + 2 * n, trains=True) is None for n in range(2)] == [True, False]
    assert (neighbours.shared, neighbours.describe_load()) == (True, None)


@pytest.mark.parametrize(
    ("before", "after", "joined"),
    [(True, False, True), (False, True, True), (None, False, None), (False, False, False)],
)
def test_a_preempted_run_is_disturbed_if_one_of_its_parts_was(before, after, joined):
    begun = build_trial(preemptions=1, time_s=9.0, shared=before, warnings=("busy",))
    outcome = join_parts(begun, replace(DONE, shared=after, warnings=("calm",)))
    assert (outcome.shared, outcome.warnings) == (joined, ("busy", "calm"))


def like(trial):
    """The problem of a trial without GPUs."""
    same = ("metric", "mode", "target", "max_epochs", "eta_knob", "world_size")
    device = {"gpu_model": None, "gpu_count": 0, "energy_measured": False}
    arms = (trial.global_batch_size,)
    return problem(
        candidates=arms,
        default=arms[0],
        learning_rates={},
        **device,
        **{name: getattr(trial, name) for name in same},
    )


@pytest.mark.parametrize(("others", "shared"), [(0.4, True), (0.05, False)])
def test_beside_other_programs_the_epochs_of_a_run_count_and_its_speed_does_not(
    zeusrun, cli, monkeypatch, others, shared
):
    monkeypatch.setattr(module, "MIN_MEASURED_S", 3.0)
    monkeypatch.setattr(module.OtherPrograms, "measure", lambda _: load(60.0, others))
    job = zeusrun.job(args=["--epoch-s", "0.5"])  # else no check may fall within the training
    code, out, err = cli("submit", job, "--json")
    trial = only_trial(json.loads(out.splitlines()[-1]))
    told = ["other programs took 40 % of this machine's CPU time while it trained"] * shared
    assert (code, trial["shared"], len(trial["warnings"])) == (0, shared, len(told))
    shown = " ".join(cli("show", "job-1-1")[1].split())
    for text in told:
        assert text in trial["warnings"][0]
        assert text in " ".join(err.split())
        assert text in shown
    assert ("shared with other programs" in shown) is shared
    (trial,) = TinyDBHistory(zeusrun.home / "history").trials("job")
    read = read_trial(like(trial), trial)
    assert (read.epochs, read.local) == (2, not shared)
    explained = " ".join(cli("explain", job)[1].split())
    told = "1 run shared its CPU (policy.learn_from_shared is false): kept for its epochs, "
    told += "and for its speed while no better one is known"
    assert (told in explained) is shared


@pytest.mark.long
def test_a_training_beside_a_busy_machine_is_marked(zeusrun, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    job = zeusrun.job(str(script), args=[str(tmp_path / "go")])
    loops = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            stack.callback(stack.enter_context(subprocess.Popen(loops)).kill)
        child = subprocess.Popen(  # by itself: without ``tests.calm``
            zeusrun.argv("submit", job), cwd=tmp_path, env=zeusrun.environment
        )
        stack.enter_context(child)
        live = zeusrun.run_dir() / "live.json"
        wait_for(live.exists)
        wait_for(lambda: json.loads(live.read_text())["shared"], what="the load")
        (tmp_path / "go").touch()
        assert child.wait() == 0
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"], trial["shared"]) == ("REACHED", 2, True)
    assert "of this machine's CPU time while it trained" in trial["warnings"][0]

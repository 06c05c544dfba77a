"""Runs that train on the same CPU at the same time."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from tests.launcher.values import LAUNCHED
from tests.runs import wait_for
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.supervision.neighbours import Neighbours
from zeusrun.metrics.ranks import Ranks


@pytest.fixture
def other(tmp_path):
    """Write the ticket of another submit, which lives; return its path."""
    with subprocess.Popen(["sleep", "600"]) as process:

        def write(**changes):
            with Tickets(tmp_path) as tickets:
                held = tickets.take("other", "running")
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


def at(now_t, **changes):
    return replace(LAUNCHED, **{"now_t": now_t, "training_t": 101.0, **changes})


def test_only_what_is_beside_the_training_itself_counts(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    other()
    for n in range(3):
        assert neighbours.check(at(100.0 + n, training_t=None)) is None
        assert neighbours.check(at(200.0 + n, ranks=Ranks(1, exit_codes={0: 0}))) is None
    assert neighbours.shared is False


def test_a_run_beside_it_is_found_once_two_looks_have_seen_it(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    path = other()
    assert neighbours.check(at(100.0)) is None
    for suffix in (".json", ".lock"):  # that one has gone, and another one come
        path.with_suffix(suffix).rename(path.with_name(f"9{suffix}"))
    assert neighbours.check(at(102.0)) is None
    assert neighbours.shared is False
    assert "other trains on this CPU at the same time" in neighbours.check(at(104.0))
    assert neighbours.shared is True
    assert neighbours.check(at(106.0)) is None


def test_a_killed_submit_does_not_count_although_its_pid_is_in_use(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    path = other()
    dead = path.with_suffix(".lock")
    dead.rename(dead.with_suffix(".held"))
    for _ in range(2):  # without the file of its lock, and with it
        assert [neighbours.check(at(100.0 + 2 * n)) for n in range(3)] == [None] * 3
        dead.touch()
    assert neighbours.shared is False


@pytest.mark.parametrize("changes", [{"pid": 2**70}, {"job": 7}, {"job": None}, {"pid": "x"}])
def test_whatever_a_ticket_holds_looking_never_fails(tmp_path, other, changes):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    other(**changes)
    other(job="whole")
    told = [neighbours.check(at(100.0 + 2 * n)) for n in range(2)]
    assert told[0] is None
    assert "whole" in told[1]


def test_where_tickets_cannot_be_listed_nobody_is_found(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    (tmp_path / "submits").touch()
    assert [neighbours.check(at(100.0 + 2 * n)) for n in range(3)] == [None] * 3


@pytest.mark.parametrize("changes", [{"pid": os.getpid()}, {"on_cpu": False}, {"host": "another"}])
def test_its_own_ticket_and_those_of_gpu_and_other_machines_submits_do_not_count(
    tmp_path, other, changes
):
    neighbours = Neighbours(tmp_path, on_cpu=True)
    other(**changes)
    assert [neighbours.check(at(100.0 + 2 * n)) for n in range(3)] == [None] * 3
    assert neighbours.shared is False


def test_a_run_on_gpus_asks_the_gpus(tmp_path, other):
    neighbours = Neighbours(tmp_path, on_cpu=False)
    other()
    assert [neighbours.check(at(100.0 + 2 * n)) for n in range(3)] == [None] * 3
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
    wait_for(lambda: json.loads(live.read_text())["trial"]["shared"], what="a's neighbour")
    wait_for(lambda: json.loads(live2.read_text())["trial"]["shared"], what="b's neighbour")
    for child in (first, second):
        child.terminate()
        assert "trains on this CPU at the same time" in " ".join(child.communicate()[0].split())
    assert [trial["shared"] for trial in zeusrun.history()] == [True, True]
    zeusrun.submit(zeusrun.job(name="c"))
    assert zeusrun.history("c")[0]["shared"] is False

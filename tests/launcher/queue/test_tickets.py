"""Submits in the order they came, by tickets that die with their holders."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import build_trial
from zeusrun.errors import HistoryError
from zeusrun.launcher.queue.tickets import Tickets, find_waiting, read_waiting
from zeusrun.reasons import ReasonCode
from zeusrun.run_on import registry
from zeusrun.trial import TrialStatus


def test_tickets_are_numbered_in_order_and_gone_when_they_are_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", pytest.fail)  # of what is worthless after a power failure
    tickets = Tickets(tmp_path)
    with tickets:
        first, second = tickets.take("a"), tickets.take("b", "running")
        assert [(t.number, t.job, t.state) for t in tickets.present()] == [
            (1, "a", "waiting"),
            (2, "b", "running"),
        ]
    assert [ticket.job for ticket in read_waiting(tmp_path)] == ["a"]
    assert read_waiting(tmp_path, "b") == []
    first.release()
    first.release()
    with tickets:
        assert [t.number for t in tickets.present()] == [2]
        third = tickets.take("c")
    assert third.ticket.number == 3
    for held in (second, third):
        held.release()
    assert sorted(path.name for path in (tmp_path / "submits").iterdir()) == ["lock"]


def test_the_ticket_of_a_killed_submit_counts_no_more(tmp_path):
    program = (
        "import os, sys; from pathlib import Path\n"
        "from zeusrun.launcher.queue.tickets import Tickets\n"
        "with Tickets(Path(sys.argv[1])) as tickets: tickets.take('a')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, tmp_path], check=False).returncode == -9
    assert (tmp_path / "submits" / "1.json").exists()
    with Tickets(tmp_path) as tickets:
        assert tickets.present() == []
        held = tickets.take("b")
        assert [ticket.job for ticket in tickets.present()] == ["b"]
    held.release()


def test_a_number_whose_ticket_is_seen_is_not_given_again(tmp_path, monkeypatch):
    tickets = Tickets(tmp_path)
    with tickets:
        first = tickets.take("a")
    taken = []
    real = Path.unlink

    def unlink(path, **options):
        real(path, **options)
        if not taken and str(path).endswith("1.lock"):
            taken.append(None)
            # Somebody who does not wait for the lock comes in between.
            taken[0] = Tickets(tmp_path).take("b")

    monkeypatch.setattr(Path, "unlink", unlink)
    first.release()
    monkeypatch.undo()
    second = taken[0]
    assert second.ticket.number == 2
    with tickets:
        assert [ticket.job for ticket in tickets.present()] == ["b"]
    second.release()


def test_a_home_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "submits").write_text("in the way")
    with pytest.raises(HistoryError, match=r"cannot be written: .*ZEUSRUN_HOME"), Tickets(tmp_path):
        pass
    assert read_waiting(tmp_path) == []


@pytest.mark.parametrize(
    "damage",
    [None, {"job": 7}, {"gpus": ["a", ["b"]]}, {"version": None}, {"host": "h" * (64 << 10)}],
    ids=lambda damage: str(damage)[:20],
)
def test_a_damaged_ticket_keeps_nobody_from_coming(tmp_path, damage):
    tickets = Tickets(tmp_path)
    with tickets:
        held = tickets.take("a", "running")
        path = tmp_path / "submits" / "1.json"
        whole = json.loads(path.read_text())
        assert (whole["version"], whole["host"]) == (1, platform.node())
        path.write_text(json.dumps({**whole, "number": 7}))  # its name counts
        assert [ticket.number for ticket in tickets.present()] == [1]
        path.write_text("{" if damage is None else json.dumps({**whole, **damage}))
        assert tickets.present() == []
        other = tickets.take("b")
        assert [ticket.job for ticket in tickets.present()] == ["b"]
    held.release()
    other.release()


def queue(home, allocation, job="job", state="queued", **changes):
    """Take the ticket of a submit, and leave it to its job of Slurm; return its number."""
    with Tickets(home) as tickets:
        held = tickets.take(job, state, allocation=allocation)
    held.write(**changes)
    held.leave()
    return held.ticket.number


def present(home):
    return [(each.number, each.state, each.allocation) for each in Tickets(home).present()]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED"])
def test_a_ticket_of_slurm_lives_as_long_as_its_job(tmp_path, slurm, state):
    name = slurm.put("12", state)
    assert queue(tmp_path, name) == 1
    assert present(tmp_path) == [(1, "queued", name)]
    with Tickets(tmp_path) as tickets:
        other = tickets.take("job")
    assert other.ticket.number == 2
    other.release()
    assert present(tmp_path) == [(1, "queued", name)]


@pytest.mark.parametrize(
    "values", [{"state": "COMPLETED"}, {"state": "CANCELLED"}, {"forgotten": True}]
)
def test_it_is_gone_once_its_job_has_ended_and_removed_by_the_next_submit(tmp_path, slurm, values):
    queue(tmp_path, slurm.put("12", **values))
    assert present(tmp_path) == []
    assert (tmp_path / "submits" / "1.json").exists()
    with Tickets(tmp_path) as tickets:
        other = tickets.take("job")
    assert other.ticket.number == 2  # others may have seen number 1
    assert not (tmp_path / "submits" / "1.json").exists()
    other.release()


def test_it_lives_while_slurm_does_not_respond_or_is_not_here(tmp_path, slurm, monkeypatch):
    name = slurm.put("12", "COMPLETED")
    queue(tmp_path, name)
    slurm.fail("squeue")
    assert present(tmp_path) == [(1, "queued", name)]
    monkeypatch.setenv("PATH", "/nowhere")
    assert present(tmp_path) == [(1, "queued", name)]


def test_an_allocation_of_another_scheduler_counts_as_alive_and_asks_nobody(tmp_path, slurm):
    queue(tmp_path, "k8s:1")
    assert present(tmp_path) == [(1, "queued", "k8s:1")]
    assert slurm.calls() == []


def test_all_tickets_are_checked_with_one_command_and_local_ones_with_none(tmp_path, slurm):
    with Tickets(tmp_path) as tickets:
        held = tickets.take("job", "running")
    assert present(tmp_path) == [(1, "running", "")]
    assert slurm.calls() == []
    held.release()
    for number in range(8):
        queue(tmp_path, slurm.put(str(number), "PENDING"))
    slurm.put("5", "COMPLETED")
    registry._states.clear()
    asked = len(slurm.calls())
    found = [allocation for *_, allocation in present(tmp_path)]
    assert found == [f"slurm:{number}" for number in range(8) if number != 5]
    assert len(slurm.calls()) == asked + 1


def test_what_a_dead_batch_step_wrote_holds_no_gpus(tmp_path, slurm):
    """Its node is gone: nobody wrote that the run has ended."""
    name = slurm.put("12", "PENDING", restarts=1)
    number = queue(tmp_path, name)
    held = Tickets(tmp_path).adopt(number, "job", name)
    held.write(state="running", gpus=("GPU-1",), holds=True, on_cpu=True)
    held._lock.release()  # as the kernel does
    (ticket,) = Tickets(tmp_path).present()
    assert (ticket.state, ticket.gpus, ticket.holds, ticket.on_cpu) == ("queued", (), False, False)


def test_one_that_waits_for_others_still_waits_without_its_launcher(tmp_path, slurm):
    name = slurm.put("12", "PENDING")
    queue(tmp_path, name, state="waiting")
    assert present(tmp_path) == [(1, "waiting", name)]


def test_the_batch_step_adopts_the_ticket_of_its_submit(tmp_path, slurm):
    name = slurm.put("12")
    number = queue(tmp_path, name, pid=1, host="login")
    held = Tickets(tmp_path).adopt(number, "job", name)
    assert (held.ticket.number, held.ticket.pid, held.ticket.host) == (
        *(number, os.getpid(), platform.node()),
    )
    slurm.put("12", "COMPLETED")  # its kernel lock says that it is alive
    assert present(tmp_path) == [(number, "queued", name)]
    held.release()
    assert present(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "submits").iterdir()) == ["lock"]


def test_it_adopts_the_ticket_before_the_submit_has_written_the_name_of_its_job(tmp_path, slurm):
    name = slurm.put("12")
    with Tickets(tmp_path) as tickets:
        submit = tickets.take("job", "queued")
    with ThreadPoolExecutor() as threads:
        adopted = threads.submit(Tickets(tmp_path).adopt, 1, "job", name)
        submit.write(allocation=name)
        submit.leave()
        held = adopted.result()
    assert (held.ticket.number, held.ticket.allocation) == (1, name)
    held.release()


@pytest.mark.parametrize(
    ("number", "job", "allocation"),
    [(1, "other", "slurm:12"), (1, "job", "slurm:11"), (7, "job", "slurm:12")],
)
def test_a_batch_step_without_a_ticket_of_its_own_takes_one(
    tmp_path, slurm, number, job, allocation
):
    """Somebody has emptied the folder, or its number was given again."""
    for each in ("11", "12"):
        slurm.put(each)
    queue(tmp_path, allocation, job)
    held = Tickets(tmp_path).adopt(number, "job", "slurm:12")
    assert (held.ticket.number, held.ticket.state) == (2, "running")
    assert [each[0] for each in present(tmp_path)] == [1, 2]
    held.release()
    names = sorted(path.name for path in (tmp_path / "submits").iterdir())
    assert [each for each in names if each.endswith(".json")] == ["1.json"]
    assert "7.lock" not in names


def test_a_ticket_that_another_process_keeps_is_not_waited_for_without_end(
    tmp_path, slurm, monkeypatch
):
    monkeypatch.setattr("zeusrun.launcher.queue.tickets._ADOPT_S", 0.05)
    with Tickets(tmp_path) as tickets:
        local = tickets.take("job", "running")
    held = Tickets(tmp_path).adopt(1, "job", slurm.put("12"))
    assert held.ticket.number == 2
    held.release()
    assert present(tmp_path) == [(1, "running", "")]
    local.release()


def test_a_ticket_that_is_left_before_its_job_starts_again_is_that_of_the_next_start(
    tmp_path, slurm
):
    name = slurm.put("12", restarts=1)
    number = queue(tmp_path, name)
    for _ in range(2):
        held = Tickets(tmp_path).adopt(number, "job", name)
        held.write(state="running", gpus=("GPU-1",), holds=True)
        held.leave()
        assert present(tmp_path) == [(number, "queued", name)]
    held = Tickets(tmp_path).adopt(number, "job", name)
    held.leave()
    held.release()  # it could not be queued again
    assert present(tmp_path) == []


@pytest.mark.parametrize("content", ["{", '{"version": 1}', "[]", ""])
def test_a_damaged_ticket_of_slurm_is_gone_and_its_batch_step_takes_another(
    tmp_path, slurm, content
):
    name = slurm.put("12")
    number = queue(tmp_path, name)
    (tmp_path / "submits" / "1.json").write_text(content)
    assert present(tmp_path) == []
    held = Tickets(tmp_path).adopt(number, "job", name)
    assert present(tmp_path) == [(2, "running", name)]
    held.release()


@pytest.mark.parametrize("damage", [{"allocation": 7}, {"allocation": None}])
def test_a_ticket_with_another_type_keeps_nobody_from_coming(tmp_path, slurm, damage):
    queue(tmp_path, slurm.put("12"))
    path = tmp_path / "submits" / "1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    assert present(tmp_path) == []
    with Tickets(tmp_path) as tickets:
        tickets.take("job").release()


def test_a_trial_waits_while_its_job_may_run_again(slurm):
    def trial(number, status=TrialStatus.DISPATCHED):
        return replace(build_trial(number), allocation=f"slurm:{number}", status=status)

    slurm.put("1", "PENDING")
    slurm.put("2")
    slurm.put("3", "COMPLETED")
    slurm.put("4", "PENDING")
    preempted = trial(2, TrialStatus.PREEMPTED)
    final = trial(4, TrialStatus.REACHED)
    slurm.put("6", "PENDING")
    expired = replace(trial(6, TrialStatus.LOST), reason_code=ReasonCode.LEASE_EXPIRED)
    trials = [trial(1), preempted, trial(3), final, build_trial(5)]
    assert find_waiting([*trials, expired]) == {"slurm:1", "slurm:2", "slurm:6"}
    assert find_waiting(trials, "slurm:2") == {"slurm:1"}
    assert find_waiting([]) == find_waiting([build_trial()]) == set()


def test_what_waits_are_the_submits_that_have_begun_no_run(tmp_path, slurm):
    for number in ("11", "12", "13"):
        slurm.put(number)
        queue(tmp_path, f"slurm:{number}", "job" if number != "13" else "other")
    held = Tickets(tmp_path).adopt(2, "job", "slurm:12")
    held.write(state="running")
    with Tickets(tmp_path) as tickets:
        local = tickets.take("job", "running")
    running = [replace(build_trial(), allocation="slurm:12"), build_trial(2)]
    found = [each.allocation for each in read_waiting(tmp_path, "job", running)]
    assert found == ["slurm:11"]
    assert [t.number for t in read_waiting(tmp_path, None, running)] == [1, 3]
    assert [t.number for t in read_waiting(tmp_path)] == [1, 2, 3]  # its batch step starts
    for each in (held, local):
        each.release()

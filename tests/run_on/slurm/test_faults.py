"""What goes wrong around a job of Slurm: slow answers, lost files, signals at bad moments."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from zeusrun.files.lock import is_locked
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.run_on import registry
from zeusrun.run_on.registry import find_ended
from zeusrun.run_on.slurm.allocation import SlurmAllocation
from zeusrun.run_on.slurm.client import SlurmJob, submit_script


def test_an_answer_that_comes_late_is_kept_as_long_as_another(slurm, monkeypatch):
    name, asked = slurm.put("1"), []

    def read_jobs(ids):
        asked.extend(ids)
        time.sleep(0.2)
        return {}

    monkeypatch.setattr(registry, "read_jobs", read_jobs)
    monkeypatch.setattr(registry, "_KEPT_S", 0.1)
    assert find_ended([name]) == find_ended([name]) == set()
    assert asked == ["slurm:1"]


def test_slurm_is_asked_before_other_submits_have_to_wait(slurm, tmp_path, monkeypatch):
    with Tickets(tmp_path) as tickets:
        held = tickets.take("a", "queued", allocation=slurm.put("1"))
        held.leave()
    locked = []

    def read_jobs(ids, *_):
        if ids:
            locked.append(is_locked(tmp_path / "submits" / "lock"))
        return dict.fromkeys(ids, SlurmJob("PENDING"))

    monkeypatch.setattr(registry, "_states", {})
    monkeypatch.setattr(registry, "read_jobs", read_jobs)
    with Tickets(tmp_path) as tickets:
        assert [ticket.job for ticket in tickets.present()] == ["a"]
    assert locked == [False]


def test_ctrl_c_in_a_terminal_is_for_zeusrun_and_not_for_its_commands(slurm, tmp_path, monkeypatch):
    sbatch = slurm.folder / "sbatch"
    sbatch.write_text("#!/bin/sh\nps -o pgid= -p $$ >pgid\necho Welcome\necho 12\n")
    (tmp_path / "script").write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    assert submit_script(tmp_path / "script", [], tmp_path) == "slurm:12"
    assert int((tmp_path / "pgid").read_text()) != os.getpgrp()


def test_a_job_that_a_federation_runs_elsewhere_has_not_ended(slurm):
    assert find_ended([slurm.put("1", "REVOKED")]) == set()


def test_a_signal_that_a_busy_slurm_does_not_explain_stops_the_run(slurm):
    slurm.fail("squeue")
    allocation = SlurmAllocation("slurm:7", ("n1",), 0, None, 40.0)
    allocation._sentinel = SimpleNamespace(was_signalled=True)
    assert allocation.check_sentinel() == "slurm:7 was signalled"


@pytest.mark.parametrize(
    ("job", "again"),
    [
        ({"state": "COMPLETING"}, False),  # scancel, while the run was saving
        ({"state": "CANCELLED"}, False),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, True),
        ({"state": "COMPLETING", "preempt": 0}, True),
        ({}, True),
    ],
)
def test_a_job_that_was_cancelled_is_not_queued_again(slurm, job, again):
    slurm.put("7", **job)
    assert SlurmAllocation("slurm:7", ("n1",), 0, None, 40.0).requeue() is again
    assert bool(slurm.calls("scontrol")) is again

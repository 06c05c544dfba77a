"""What goes wrong around a job of Slurm: slow answers, lost files, signals at bad moments."""

from __future__ import annotations

import time

from zeusrun.files.lock import is_locked
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.slurm import client
from zeusrun.launcher.slurm.client import SlurmJob, find_ended


def test_an_answer_that_comes_late_is_kept_as_long_as_another(slurm, monkeypatch):
    name, asked = slurm.put("1"), []

    def read_jobs(ids):
        asked.extend(ids)
        time.sleep(0.2)
        return {}

    monkeypatch.setattr(client, "read_jobs", read_jobs)
    monkeypatch.setattr(client, "_KEPT_S", 0.1)
    assert find_ended([name]) == find_ended([name]) == set()
    assert asked == ["1"]


def test_slurm_is_asked_before_other_submits_have_to_wait(slurm, tmp_path, monkeypatch):
    with Tickets(tmp_path) as tickets:
        held = tickets.take("a", "queued", allocation=slurm.put("1"))
        held.leave()
    locked = []

    def read_jobs(ids, *_):
        if ids:
            locked.append(is_locked(tmp_path / "submits" / "lock"))
        return dict.fromkeys(ids, SlurmJob("PENDING"))

    monkeypatch.setattr(client, "_states", {})
    monkeypatch.setattr(client, "read_jobs", read_jobs)
    with Tickets(tmp_path) as tickets:
        assert [ticket.job for ticket in tickets.present()] == ["a"]
    assert locked == [False]

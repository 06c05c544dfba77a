"""Submits to Slurm at bad moments: signals, a batch step that somebody starts."""

from __future__ import annotations

import contextlib
import functools
import io
import signal
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.factories import PREEMPTED
from zeusrun.commands import current
from zeusrun.commands.follow import Follower
from zeusrun.errors import ZeusrunError
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.run_on.slurm import submit as batch
from zeusrun.run_on.slurm.submit import SlurmSubmitter, new_files


@pytest.fixture
def job(zeusrun):
    """A job for Slurm."""
    (zeusrun.folder / "train.py").touch()
    return zeusrun.job("train.py", run_on="slurm")


@pytest.mark.parametrize(
    ("second", "calls"),
    [
        (signal.SIGHUP, [["--signal=INT", "--batch", "1"]]),
        (signal.SIGTERM, [["--signal=INT", "--batch", "1"]]),
        (signal.SIGINT, [["--signal=INT", "--batch", "1"], ["1"]]),
    ],
)
def test_a_terminal_that_is_closed_after_ctrl_c_does_not_kill_a_job_that_saves(
    slurm, tmp_path, second, calls
):
    slurm.put("1")
    console, received = Console(file=io.StringIO()), [signal.SIGINT]
    submitter = SlurmSubmitter()
    source = batch._QueuedSource("slurm:1", new_files(tmp_path), submitter.read_job)
    stop = functools.partial(submitter.stop_job, "slurm:1")
    follower = Follower("slurm:1", source, stop, console, received)
    follower._take_signals()
    received.append(second)
    with contextlib.suppress(ZeusrunError):
        follower._take_signals()
    assert [each[1:] for each in slurm.calls("scancel")] == calls


def test_a_batch_step_that_somebody_starts_by_hand_changes_nothing(slurm, zeusrun, cli, job):
    assert cli("submit", job, "--detach")[0] == 0
    (folder,) = zeusrun.home.glob("slurm/*")
    (folder / "result.json").write_text('{"exit_code": 0}')
    code, _, told = cli("inside", "slurm", folder.name)
    assert code == 2
    assert told == "zeusrun: this command is for the batch step that runs slurm:1\n"
    assert (folder / "result.json").read_text() == '{"exit_code": 0}'
    assert slurm.calls("scancel") == []


def test_replace_also_ends_a_submit_that_is_between_two_trials(slurm, zeusrun, cli, job):
    with Tickets(zeusrun.home) as tickets:
        running = tickets.take("job", "running", allocation=slurm.put("9"))
        queued = tickets.take("job", "queued", allocation=slurm.put("8", "PENDING"))
    queued.leave()
    assert cli("submit", job, "--detach", "--overlap", "replace")[0] == 0
    running.release()
    assert slurm.calls("sbatch")[0][-2] == "--dependency=afterany:9:8"
    assert [each[1:] for each in slurm.calls("scancel")] == [
        *(["--signal=INT", "--batch", "9"], ["8"])
    ]


def test_cancel_does_not_guess_between_a_run_and_a_queued_one(slurm, zeusrun, cli, record):
    record(1, None, allocation=slurm.put("7"))
    with Tickets(zeusrun.home) as tickets:
        tickets.take("job", "queued", allocation=slurm.put("8", "PENDING")).leave()
    code, _, told = cli("cancel", "job")
    assert code == 2
    assert "several runs of job are going on: slurm:7, slurm:8; name the one" in told
    assert slurm.calls("scancel") == []


def test_cancel_ends_the_job_of_a_run_that_was_preempted_meanwhile(
    slurm, zeusrun, cli, record, monkeypatch
):
    trial = record(1, None, allocation=slurm.put("7"))
    lock = RunLock(RunPaths(zeusrun.home / "runs" / "job" / trial.trial))
    assert lock.acquire()

    def stop(*_, **__):
        TinyDBHistory(zeusrun.home / "history").finish(trial.trial, PREEMPTED)
        lock.release()

    monkeypatch.setattr(current, "_stop", stop)
    code, told, _ = cli("cancel", "job")
    assert (code, "is CANCELLED" in told) == (0, True), told
    assert [each[1:] for each in slurm.calls("scancel")] == [["7"]]


def test_cancel_ends_although_the_lock_of_a_dead_node_lasts(slurm, monkeypatch):
    for name in ("ask_to_cancel", "_grace_s"):
        monkeypatch.setattr(current, name, lambda *_, **__: 0.0)
    monkeypatch.setattr(current, "lease_of", lambda *_: SimpleNamespace(is_held=lambda: True))
    monkeypatch.setattr(current, "_STUCK_S", 0.01)
    trial = SimpleNamespace(trial="job-1-1", allocation=slurm.put("7"))
    current._stop(trial, None, now=True, as_json=True)
    assert slurm.calls("scancel")[-1] == ["scancel", "7"]


def test_a_local_submit_replaces_one_that_is_queued_in_slurm(slurm, zeusrun, cli):
    with Tickets(zeusrun.home) as tickets:
        tickets.take("job", "queued", allocation=slurm.put("8", "PENDING")).leave()
    assert cli("submit", zeusrun.job(), "--overlap", "replace")[0] == 0
    assert slurm.calls("scancel") == [["scancel", "8"]]


def test_a_submit_in_a_scheduler_that_is_not_known_is_shown_and_left_alone(zeusrun, cli):
    with Tickets(zeusrun.home) as tickets:
        tickets.take("job", "queued", allocation="nomad:1").leave()
    code, out, _ = cli("status")
    shown = " ".join(out.split())
    assert (code, "nomad:1: this version of zeusrun does not know" in shown) == (0, True)
    code, _, told = cli("logs", "job")
    assert (code, "nomad:1: this version of zeusrun does not know" in told) == (2, True)
    code, _, told = cli("cancel", "job")
    assert (code, "nomad:1 names no job of a scheduler that this version" in told) == (5, True)
    assert [each.allocation for each in Tickets(zeusrun.home).present()] == ["nomad:1"]


def test_slurm_which_may_be_slow_is_not_asked_once_the_result_is_there(
    slurm, tmp_path, monkeypatch
):
    monkeypatch.setattr(batch, "_ASK_S", 0.0)
    files = new_files(tmp_path)
    source = batch._QueuedSource(slurm.put("1"), files, SlurmSubmitter().read_job)
    assert not source.has_ended()
    assert not source.has_ended()
    assert len(slurm.calls()) == 2
    files.write("result.json", b'{"exit_code": 0}')
    assert source.has_ended()
    assert source.result == {"exit_code": 0}
    assert len(slurm.calls()) == 2


@pytest.mark.parametrize(("nodes", "ends"), [("n1", False), ("", True)])
def test_a_node_may_write_the_last_lines_after_the_end_of_its_job(slurm, tmp_path, nodes, ends):
    source = batch._QueuedSource(
        slurm.put("1", "FAILED", nodes=nodes), new_files(tmp_path), SlurmSubmitter().read_job
    )
    assert not source.has_ended()
    assert source.has_ended() is ends

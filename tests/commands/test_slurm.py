"""Submits to Slurm at bad moments: lost results, signals, a batch step that somebody starts."""

from __future__ import annotations

import contextlib
import io
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.factories import DONE, PREEMPTED
from zeusrun.clock import timestamp
from zeusrun.commands.slurm import _Follower
from zeusrun.errors import ZeusrunError
from zeusrun.launcher.slurm.queued import new_files
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

MISSED = replace(DONE, status=TrialStatus.MISSED)
TIMED_OUT = replace(DONE, status=TrialStatus.STOPPED, reason_code=ReasonCode.TIMEOUT)
CANCELLED = replace(DONE, status=TrialStatus.CANCELLED)


@pytest.fixture
def ended(slurm, monkeypatch):
    """Let new jobs end at once, in a state, without any result."""
    monkeypatch.setattr("zeusrun.commands.slurm._WRITTEN_S", 0.0)

    def end(state):
        world = slurm._read()
        world["new"]["state"] = state
        slurm._write(world)

    return end


@pytest.mark.parametrize(
    ("state", "outcome", "code", "words"),
    [
        ("COMPLETED", DONE, 0, ""),
        ("FAILED", MISSED, 4, "is recorded as MISSED"),
        ("TIMEOUT", PREEMPTED, 75, "is recorded as PREEMPTED: SIGTERM; the next submit"),
        ("TIMEOUT", TIMED_OUT, 124, "is recorded as STOPPED"),
        ("FAILED", CANCELLED, 143, "is recorded as CANCELLED"),
        ("FAILED", None, 5, "slurm:1 ended as FAILED before it began to train"),
        ("CANCELLED", None, 143, "slurm:1 ended as CANCELLED before it began to train"),
    ],
)
def test_a_result_that_never_came_is_that_of_the_history(
    zeusrun, cli, record, ended, state, outcome, code, words
):
    ended(state)
    if outcome is None:
        record(1, DONE, allocation="slurm:1")  # of a Slurm before this one
    else:
        record(2, replace(outcome, finished_at=timestamp()), allocation="slurm:1")
    (zeusrun.folder / "train.py").touch()
    found, _, told = cli("submit", zeusrun.job("train.py", run_on="slurm"))
    assert (found, words in " ".join(told.split())) == (code, True), told


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
    spec, signals = SimpleNamespace(name="job"), SimpleNamespace(received=[signal.SIGINT])
    console = Console(file=io.StringIO())
    follower = _Follower(spec, new_files(tmp_path), "1", console, signals, quiet=False)
    follower._take_signals()
    signals.received.append(second)
    with contextlib.suppress(ZeusrunError):
        follower._take_signals()
    assert [each[1:] for each in slurm.calls("scancel")] == calls

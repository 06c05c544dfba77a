"""A trial that is stored although its begin has failed: the last step of a write, and the disk."""

from __future__ import annotations

import errno
import json
import os
import signal

import pytest

from tests.runs import wait_for
from tests.test_speed_check import Scripted, run  # noqa: F401 - a fixture
from zeusrun.errors import HistoryError
from zeusrun.files import private
from zeusrun.trial import Decision, Stage


def fail_once(monkeypatch):
    """Let the first sync of the history's directory fail: the new file has its name already."""
    real, failed = private.sync_directory, []

    def sync(directory):
        if directory.name == "history" and not failed:
            failed.append(directory)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(directory))
        real(directory)

    monkeypatch.setattr(private, "sync_directory", sync)


CHOICE = Scripted(Decision(32, Stage.EXPLOIT, "32 is the only one"))


def test_a_new_trial_that_is_stored_all_the_same_is_ended(zeusrun, run, monkeypatch):  # noqa: F811
    fail_once(monkeypatch)
    with pytest.raises(HistoryError, match="Input/output error"):
        run(zeusrun.job(), CHOICE)
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"]) == ("CANCELLED", None)
    assert trial["reason"].startswith("it could not be begun")


def test_a_preempted_trial_that_was_to_go_on_is_preempted_still(zeusrun, run, monkeypatch):  # noqa: F811
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000})
    child = zeusrun.start("submit", job)
    live = zeusrun.run_dir() / "live.json"
    wait_for(lambda: live.exists() and json.loads(live.read_text())["epochs"])
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    (cut,) = zeusrun.history()
    fail_once(monkeypatch)
    with pytest.raises(HistoryError, match="Input/output error"):
        run(job, CHOICE)
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"], trial["curve"]) == (
        "PREEMPTED",
        cut["epochs"],
        cut["curve"],
    )

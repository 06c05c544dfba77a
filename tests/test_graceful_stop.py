"""Trainings with data loader workers that zeusrun ends: every rank comes to its end, and saves."""

from __future__ import annotations

import json
import signal

import pytest

from tests.runs import start_and_wait, survivors

STEPS_AN_EPOCH = 10


@pytest.fixture
def job(zeusrun):
    def write(*args, **changes):
        # A restart would show: it would save as life 1.
        launch = {"nproc_per_node": 2, "grace_period_s": 60, "max_restarts": 1}
        changes = {
            "objective": {"max_epochs": 1000},
            "launch": launch,
            "stall": {"action": "off"},
            **changes,
        }
        return zeusrun.job("saves_with_loaders.py", args=list(args), **changes)

    return write


def end(zeusrun, child):
    """Wait for a submit; return its exit code, its trial, and what each rank saved."""
    seen, _ = child.communicate(timeout=300)
    (trial,) = zeusrun.history()
    folder = zeusrun.run_dir() / "checkpoints"
    logs = "".join(path.read_text() for path in (zeusrun.run_dir() / "logs").glob("rank?.log"))
    assert "DataLoader" not in logs, seen
    assert survivors(trial) == []
    saved = [json.loads(path.read_text()) for path in sorted(folder.glob("rank?.json"))]
    return child.returncode, trial, saved


def preempt(zeusrun, child):
    child.send_signal(signal.SIGTERM)


def cancel(zeusrun, child):
    assert zeusrun("cancel", "job-1-1").returncode == 0


@pytest.mark.parametrize(
    ("stop", "expected", "changes"),
    [
        (preempt, (75, "PREEMPTED"), {}),
        pytest.param(cancel, (130, "CANCELLED"), {}, marks=pytest.mark.long),
        pytest.param(None, (124, "STOPPED"), {"timeout_s": 45}, marks=pytest.mark.long),
    ],
)
def test_a_training_ends_after_its_epoch_and_all_ranks_save(zeusrun, job, stop, expected, changes):
    child = start_and_wait(zeusrun, job(**changes))
    if stop is not None:
        stop(zeusrun, child)
    ended, trial, saved = end(zeusrun, child)
    assert (ended, trial["status"]) == expected
    steps = trial["epochs"] * STEPS_AN_EPOCH
    assert saved == [{"epochs": trial["epochs"], "life": 0, "steps": steps}] * 2


@pytest.mark.long  # two ranks import torch and train
def test_a_rank_that_ends_first_does_not_keep_another_from_saving(zeusrun, job):
    child = start_and_wait(zeusrun, job("--handler", "0", "1"))
    child.send_signal(signal.SIGTERM)
    ended, trial, saved = end(zeusrun, child)
    assert (ended, trial["status"]) == (75, "PREEMPTED")
    assert [each["life"] for each in saved] == [0, 0]
    events = (zeusrun.run_dir() / "metrics.jsonl").read_text().splitlines()
    codes = [event["code"] for event in map(json.loads, events) if event["event"] == "ended"]
    assert codes == [143, 143]


@pytest.mark.long
def test_a_rank_that_would_die_of_the_signal_is_left_until_the_others_have_saved(zeusrun, job):
    child = start_and_wait(zeusrun, job("--handler", "0"))
    child.send_signal(signal.SIGTERM)
    ended, trial, saved = end(zeusrun, child)
    assert (ended, trial["status"]) == (75, "PREEMPTED")
    assert [each["life"] for each in saved] == [0]  # rank 1 has nothing that saves


def test_a_script_without_any_handler_ends_at_once_and_is_not_restarted(zeusrun):
    launch = {"nproc_per_node": 2, "grace_period_s": 60, "max_restarts": 1}
    child = start_and_wait(zeusrun, zeusrun.job("dies_of_sigterm.py", launch=launch))
    child.send_signal(signal.SIGTERM)
    ended, trial, _ = end(zeusrun, child)
    assert (ended, trial["status"]) == (75, "PREEMPTED")
    assert "restarted" not in " ".join(trial["warnings"])

"""A training that stands still, end to end: told with every rank's stack, restarted, or ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs import only_trial

TARGET = {"target": 1.0, "max_epochs": 5}


def stalls(trial):
    return [text for text in trial["warnings"] if "the training has stalled" in text]


def test_a_stall_is_told_with_the_place_of_every_rank_and_that_it_goes_on(zeusrun):
    job = zeusrun.job(
        "hangs_on_rank_1.py", launch={"nproc_per_node": 2}, objective=TARGET, stall={"after_s": 2.0}
    )
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED")
    (told,) = stalls(trial)
    stacks = Path(trial["run_dir"]) / "logs" / "stacks.txt"
    assert "no optimizer step for " in told
    assert "hangs_on_rank_1.py:31; rank 1 is in wait_for_the_stacks, hangs_on_rank_1.py:1" in told
    assert told.endswith(f"The stacks are in {stacks}")
    text = stacks.read_text()
    assert text.index("\nrank 0:\n") < text.index("in backward\n") < text.index("\nrank 1:\n")
    assert text.index("\nrank 1:\n") < text.index("in wait_for_the_stacks\n")
    assert stacks.stat().st_mode & 0o777 == 0o600
    assert "the training goes on by itself after " in seen


@pytest.mark.parametrize(
    ("script", "ranks", "place"),
    [
        pytest.param("hangs_in_c.py", 1, "rank 0 is in hang, hangs_in_c.py:", id="without torch"),
        pytest.param(
            *("hangs_on_rank_1.py", 2, "rank 1 is in wait_for_the_stacks, hangs_on_rank_1.py:"),
            marks=pytest.mark.long,
            id="DDP",
        ),
    ],
)
def test_a_stall_is_restarted_where_that_is_asked_for_and_the_trial_stays_one(
    zeusrun, script, ranks, place
):
    """In the second life nothing hangs."""
    job = zeusrun.job(
        script,
        args=["--once"],
        launch={"nproc_per_node": ranks, "max_restarts": 1},
        objective=TARGET,
        stall={"after_s": 2.0, "action": "restart"},
    )
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED")
    (told,) = stalls(trial)
    assert place in told
    assert told.endswith("The ranks were killed; torchrun restarts them")
    assert "the ranks were restarted once" in trial["warnings"]
    assert "the training goes on by itself" not in seen


@pytest.mark.long
def test_a_stall_without_a_restart_left_is_the_cause_of_the_failure(zeusrun):
    job = zeusrun.job(
        "hangs_in_c.py",
        attempts=1,
        launch={"max_restarts": 1},
        objective=TARGET,
        stall={"after_s": 2.0, "action": "restart"},
    )
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "stalled")
    assert len(trial["stalls"]) == 2
    assert trial["reason"].startswith("stalled: no optimizer step for ")
    assert trial["reason"].endswith("rank 0 is in hang, hangs_in_c.py:17; no restart was left")
    first, last = stalls(trial)
    assert first.endswith("The ranks were killed; torchrun restarts them")
    assert last.endswith("The ranks were killed; no restart is left (launch.max_restarts)")


@pytest.mark.long  # 4 s of evaluations; launcher/supervision/test_stalls.py has the rule
def test_an_evaluation_as_long_as_the_others_is_no_stall(zeusrun):
    job = zeusrun.job("evaluates_long.py", objective=TARGET, stall={"after_s": 0.4})
    code, result, seen = zeusrun.submit(job)
    assert code == 0
    assert stalls(only_trial(result)) == []
    assert "the training goes on by itself" not in seen


@pytest.mark.long
def test_a_run_that_times_out_while_it_stands_still_says_so(zeusrun):
    job = zeusrun.job("hangs_in_c.py", timeout_s=8, objective=TARGET)
    code, result, _ = zeusrun.submit(job)
    assert code == 124
    reason = only_trial(result)["reason"]
    assert reason.startswith("timed out after 8 s; no optimizer step for ")

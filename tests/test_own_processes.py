"""``zeusrun submit`` of a script that starts its ranks itself: what is said, and how they end."""

from __future__ import annotations

import importlib.util

import pytest

LONG = pytest.mark.long  # each import of torch takes 2 s of CPU


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)
@pytest.mark.parametrize("how", [pytest.param("spawn", marks=LONG), "fork"])
def test_ranks_of_the_script_end_at_the_target_as_ranks_do(zeusrun, how):
    job = zeusrun.job(
        "starts_its_ranks.py",
        args=[how],
        objective={"metric": "val/accuracy", "mode": "max", "target": 0.5, "max_epochs": 90},
        batch_size={"default": 32, "candidates": [32]},
        launch={"distributed": False, "grace_period_s": 600},  # in which they could train on
    )
    done = zeusrun("submit", job)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "the script started training processes of its own; zeusrun has hooks there" in said
    assert "rank 0 saves" in said
    assert "rank 1 saves" in said
    assert "outlived" not in said
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"], trial["observed_batch_size"]) == ("REACHED", 2, 32)

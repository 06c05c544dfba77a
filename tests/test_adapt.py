"""A batch size that adapts, from the job file to what ``show`` prints. Real torchrun."""

from __future__ import annotations

import pytest

ADAPTS = {
    "batch_size": {"default": 16, "candidates": [16, 128]},
    "launch": {"nproc_per_node": 2, "max_restarts": 1},
    "objective": {"max_epochs": 6},
    "attempts": 1,
    "policy": {"name": "fixed"},
}


@pytest.mark.long
@pytest.mark.torchrun
def test_a_run_goes_on_with_its_batch_size_after_a_crash_and_shows_its_path(zeusrun):
    adapt = {
        "batch_size": {"policy": "schedule", "schedule": "3:64,5:128"},
        "learning_rate": "sqrt",
    }
    job = zeusrun.job("adapts.py", args=["--crash"], adapt=adapt, **ADAPTS)
    zeusrun.submit(job)
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["global_batch_size"]) == ("MISSED", 16)
    assert trial["variant"] == "schedule 3:64,5:128"
    assert trial["batch_sizes"] == [[1, 16], [3, 64], [5, 128]]
    assert trial["observed_batch_size"] in {None, 16}
    assert not any("batch size" in text for text in trial["warnings"])
    shown = " ".join(zeusrun("show", trial["trial"]).stdout.split())
    assert "schedule 3:64,5:128: 16 → 64 at epoch 3 → 128 at epoch 5" in shown


@pytest.mark.long
@pytest.mark.torchrun
def test_the_noise_scale_decides_and_is_recorded(zeusrun):
    adapt = {"batch_size": {"policy": "norm-test", "every": "8 steps"}}
    job = zeusrun.job("adapts.py", adapt=adapt, **ADAPTS)
    zeusrun.submit(job)
    (trial,) = zeusrun.history()
    assert trial["status"] == "MISSED"
    assert trial["noise_scale"] is not None
    assert trial["batch_sizes"][0] == [1, 16]
    assert all(size in range(16, 129, 2) for _, size in trial["batch_sizes"])

"""A batch size that adapts, from the job file to what ``show`` prints. Real torchrun."""

from __future__ import annotations

import signal

import pytest

from tests.runs import wait_for

ADAPTS = {
    "batch_size": {"default": 16, "candidates": [16, 128]},
    "launch": {"nproc_per_node": 2, "max_restarts": 1},
    "objective": {"max_epochs": 6},
    "attempts": 1,
    "policy": {"name": "fixed"},
}


def reports(zeusrun):
    path = zeusrun.run_dir() / "metrics.jsonl"
    return path.read_bytes().count(b'"reported"') if path.exists() else 0


@pytest.mark.long
@pytest.mark.torchrun
@pytest.mark.parametrize("how", ["--crash", "--slow"])
def test_a_run_goes_on_with_its_batch_size_after_a_crash_or_a_preemption(zeusrun, how):
    adapt = {
        "batch_size": {"policy": "grows_once:GrowsOnce", "growth": 4},
        "learning_rate": "sqrt",
    }
    job = zeusrun.job("adapts.py", args=[how], adapt=adapt, **ADAPTS)
    if how == "--slow":
        child = zeusrun.start("submit", job)
        wait_for(lambda: reports(zeusrun) >= 4)
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=300)
        assert child.returncode == 75
    zeusrun.submit(job)
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["global_batch_size"]) == ("MISSED", 16)
    assert trial["variant"] == "grows_once:GrowsOnce"
    assert trial["batch_sizes"] == [[1, 16], [4, 64]]
    assert trial["observed_batch_size"] in {None, 16}
    assert not any("batch size" in text for text in trial["warnings"])
    shown = " ".join(zeusrun("show", trial["trial"]).stdout.split())
    assert "grows_once:GrowsOnce: 16 → 64 at epoch 4" in shown


@pytest.mark.long
@pytest.mark.torchrun
def test_the_noise_scale_decides_and_is_recorded(zeusrun):
    adapt = {"batch_size": {"policy": "noise-scale", "every": "8 steps"}}
    job = zeusrun.job("adapts.py", adapt=adapt, **ADAPTS)
    zeusrun.submit(job)
    (trial,) = zeusrun.history()
    assert trial["status"] == "MISSED"
    assert trial["noise_curve"]
    assert trial["batch_sizes"][0] == [1, 16]
    assert all(size in range(16, 129, 2) for _, size in trial["batch_sizes"])

"""Whole submits whose ranks agree in other ways than by an all-reduce."""

from __future__ import annotations

import re

import pytest

from tests.runs import check_that_it_imports

PRINTED = {"source": "stdout", "pattern": r"epoch: (?P<epoch>\d+) accuracy: (?P<accuracy>[\d.]+)"}


def sync_job(zeusrun, script="elastic_epochs.py", *, device="cpu", **sync):
    given = {
        "launch": {"nproc_per_node": 2, **({} if device == "cpu" else {"gpus": "shared"})},
        "sync": sync,
        "args": ["--batch-size", "${batch_size}", "--epochs", "2", "--device", device],
        "objective": {"max_epochs": 2, "target": 10},
        "batch_size": {"candidates": [48], "default": 48},
        "attempts": 1,
        "metrics": PRINTED,
        "power_limit": {"mode": "observe"},
    }
    return zeusrun.job(script, **given)


def ends(run_dir):
    """Return what each rank prints of its parameters at the end."""
    logs = [path.read_text() for path in sorted((run_dir / "logs").glob("rank*.log"))]
    return [re.search(r"^end (\w+)", log, re.MULTILINE)[1] for log in logs]


def test_a_run_says_how_its_ranks_agree_and_only_such_runs_are_compared(zeusrun):
    job = sync_job(zeusrun, every=3, warmup=2)
    code, result, seen = zeusrun.submit(job)
    (trial,) = result["trials"]
    assert code == 4, seen
    assert (trial["variant"], trial["warnings"]) == ("sync average every 3 after 2", [])
    assert "batch size 48 · sync average every 3 after 2 · 2 ranks" in seen
    assert trial["syncs"] == [[0, "after 2 backward passes", "average every 3"]]
    shown = zeusrun("show", "job").stdout
    assert "average every 3 from epoch 1 on: after 2 backward passes" in shown
    first, second = ends(zeusrun.run_dir())
    assert first == second
    assert zeusrun("explain", "job").returncode == 0  # by the job.yaml of the run
    plain = zeusrun("submit", sync_job(zeusrun), "--dry-run").stdout
    assert "1 run had another sync" in plain


@pytest.mark.torchrun
@pytest.mark.long
@pytest.mark.parametrize(
    "sync",
    [
        *({"compress": "powersgd", "warmup": 10}, {"compress": "bf16"}),
        *({"topology": "auto"}, {"topology": "ring"}),
        *({"method": "sma"}, {"method": "pair"}, {"on_slow": "compress"}),
    ],
)
def test_each_way_trains_to_its_end(zeusrun, sync):
    code, result, seen = zeusrun.submit(sync_job(zeusrun, **sync))
    assert code == 4, seen
    assert result["trials"][0]["warnings"] == []
    first, second = ends(zeusrun.run_dir())
    assert (first == second) == ("method" not in sync)


@pytest.mark.torchrun
@pytest.mark.long
def test_a_script_without_data_parallel_training_is_warned_about(zeusrun):
    job = sync_job(zeusrun, "elastic_alone.py", topology="ring")
    _, result, _ = zeusrun.submit(job)
    warnings = " ".join(result["trials"][0]["warnings"])
    assert "sync has no effect, because the script does not use DistributedDataParallel" in warnings


@pytest.mark.torchrun
@pytest.mark.long
def test_lightning_evaluates_with_equal_parameters(zeusrun):
    check_that_it_imports("lightning")
    job = zeusrun.job(
        "sync_lightning.py",
        launch={"nproc_per_node": 2},
        sync={"every": 100, "warmup": 2},
        objective={"max_epochs": 2, "target": 10},
        attempts=1,
    )
    code, result, seen = zeusrun.submit(job)
    assert code == 4, seen
    assert result["trials"][0]["syncs"], seen
    log = zeusrun.run_dir().joinpath("logs/rank0.log").read_text()
    assert re.findall(r"apart (\S+)", log) == ["0.0", "0.0"], log

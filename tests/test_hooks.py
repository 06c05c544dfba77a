"""``zeusrun`` over a script that was not edited: what it sees, compares, hands out and ends."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)

METRIC = {"metric": "val/accuracy", "mode": "max", "target": 0.5, "max_epochs": 90}


@pytest.fixture
def submit(zeusrun):
    def run(**sections):
        job = zeusrun.job(
            "logs_only.py", objective=METRIC, launch={"nproc_per_node": 2}, attempts=1, **sections
        )
        return zeusrun("submit", job, "--batch-size", "32")

    return run


def test_a_batch_size_that_does_not_arrive_is_said_and_the_target_ends_the_script(zeusrun, submit):
    done = submit(batch_size={"default": 16, "candidates": [16, 32]})
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    contradiction = "trains with batch size 16 (2 ranks x 8), not with the 32 that zeusrun chose"
    assert said.count(contradiction) == 1
    assert said.index(contradiction) < said.index("epoch 2/90")
    assert "the target is reached; a signal ends the script" in said
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["observed_batch_size"]) == ("REACHED", 16)
    assert trial["epochs"] == 2
    # The signal comes after a step, so not while the script saves.
    assert zeusrun.folder.joinpath("checkpoint").read_text().startswith("half of 2, whole")

    shown = zeusrun("show", "job-1-1").stdout
    assert "batch size 16 (2 ranks x 8), learning rate 0.125" in shown
    assert "from tensorboard 2." in shown
    table = zeusrun("show", "job", "--metrics").stdout
    assert [line.split() for line in table.splitlines() if "val/" in line][1:3] == [
        ["val/accuracy", "tensorboard", "2", "0.25", "0.5", "0.25", "to", "0.5"],
        ["val/loss", "tensorboard", "2", "1", "0.5", "0.5", "to", "1"],
    ]
    assert "val/accuracy is taken from tensorboard" in table
    seen = json.loads(zeusrun("show", "job-1-1", "--metrics", "--json").stdout)
    assert seen["batch_size"] == 16
    assert seen["metrics"][0] == {
        "name": "val/accuracy",
        "source": "tensorboard",
        "first": 0.25,
        "last": 0.5,
        "times": 2,
        "low": 0.25,
        "high": 0.5,
        "parts": 1,
        "each_step": False,
    }


@pytest.mark.long
def test_the_choices_are_handed_to_a_script_that_has_no_argument_for_them(zeusrun, submit):
    done = submit(
        batch_size={"default": 16, "candidates": [16, 32], "apply": "dataloader"},
        learning_rate={"base": 0.125, "apply": "optimizer"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "logs_only.py:12: batch size of each rank changed from 8 to 16" in said
    assert "logs_only.py:14: learning rate changed from 0.125 to 0.25" in said
    assert "seems never to reach" not in said
    (trial,) = zeusrun.history()
    assert trial["observed_batch_size"] == 32
    assert trial["warnings"] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("metrics", [["accuracy", "report"]]),
        ("metrics", [["accuracy", "report", "high", 1, 1]]),
        ("metrics", None),
        ("libraries", [["torch"]]),
        ("learning_rates", ["x"]),
        ("source", ["x"]),
    ],
)
def test_a_damaged_record_is_no_bug(cli, record, key, value):
    trial = record(1)
    sight = dict.fromkeys(["source", "batch_size", "steps"])
    sight |= {"metrics": [], "libraries": [], "learning_rates": [], "applied": [], key: value}
    live = {**trial.to_json(), "version": 1, "pid": 1, "updated_at": "", "sight": sight}
    Path(trial.run_dir, "live.json").write_text(json.dumps(live))
    for verb in (
        ["show", "job", "--metrics"],
        ["show", "job", "--metrics", "--json"],
        ["show", "job-1-1"],
    ):
        code, _, err = cli(*verb)
        assert code in {0, 2}, err
        assert "bug" not in err


def test_a_trial_without_such_a_record_is_one_sentence(zeusrun):
    assert zeusrun("submit", zeusrun.job("well.py")).returncode == 0
    (trial,) = zeusrun.history()
    assert zeusrun("show", "job", "--metrics").returncode == 0
    zeusrun.home.joinpath("runs", "job", trial["trial"], "live.json").unlink()
    done = zeusrun("show", "job", "--metrics")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "left no such record" in done.stderr


LINES = {"source": "stdout", "pattern": r"^accuracy: (?P<accuracy>\S+)"}


@pytest.mark.long
@pytest.mark.parametrize("printed", [False, True])
def test_a_training_that_evaluates_by_steps_is_compared_by_samples(zeusrun, printed):
    job = zeusrun.job(
        "evaluates_by_steps.py",
        args=["--batch-size", "${batch_size}", *["--print"] * printed],
        objective={**METRIC, "metric": "accuracy"},
        metrics=LINES if printed else {},
        launch={"nproc_per_node": 1},
        batch_size={"default": 16, "candidates": [16, 32]},
    )
    for size in (16, 32):
        done = zeusrun("submit", job, "--batch-size", str(size))
        assert done.returncode == 0, done.stderr
        assert "the first report already meets the target" not in done.stdout + done.stderr
    small, large = zeusrun.history()
    assert [point[0] for point in small["by_samples"]][:6] == [160, 320, 480, 640, 800, 960]
    assert [point[0] for point in large["by_samples"]][:3] == [320, 640, 960]
    assert small["reason"] == "accuracy 0.5 after 960 samples"
    assert small["progress"] == small["samples"] / 400  # the size of the data
    beliefs = json.loads(zeusrun("explain", job, "--json").stdout)
    assert {each["unit"] for each in beliefs} == {"samples"}
    assert [each["epochs"] for each in beliefs] == [pytest.approx(960, rel=0.15)] * 2


@pytest.mark.long
@pytest.mark.parametrize("how", ["print", "tensorboard"])
def test_games_of_an_untrained_model_reach_nothing(zeusrun, how):
    job = zeusrun.job(
        "plays_before_training.py",
        args=[how, "4"],
        objective={**METRIC, "metric": "accuracy", "max_epochs": 2},
        launch={"nproc_per_node": 1},
        metrics=LINES if how == "print" else {},
    )
    done = zeusrun("submit", job)
    assert done.returncode == 0, done.stdout + done.stderr
    (trial,) = zeusrun.history()
    assert trial["reason"] == "accuracy 0.6 in report 3"
    assert trial["steps"] >= 3
    assert "is objective.mode" not in (done.stdout + done.stderr).lower()
    assert "\n  report " in done.stdout
    assert "epoch 1/2" not in done.stdout


@pytest.mark.long  # judged in tests/launcher/supervision/test_outcome.py
def test_a_run_without_a_step_does_not_reach_its_target(zeusrun):
    job = zeusrun.job(
        "plays_before_training.py",
        args=["tensorboard", "0"],
        objective={**METRIC, "metric": "accuracy"},
        launch={"nproc_per_node": 1},
        attempts=1,
    )
    done = zeusrun("submit", job)
    assert done.returncode == 3, done.stdout + done.stderr
    (trial,) = zeusrun.history()
    assert trial["status"] == "FAILED"
    assert "before the first step" in trial["reason"]


OWN = {
    "objective": {**METRIC, "metric": "accuracy"},
    "metrics": LINES,
    "launch": {"nproc_per_node": 1},
    "learning_rate": {"base": 0.125, "apply": "optimizer"},
    "attempts": 1,
}


@pytest.mark.long  # judged in tests/worker/hooks/test_loader.py and test_script_warnings.py
def test_where_the_batch_size_cannot_be_applied_nothing_is_and_the_default_follows(zeusrun):
    sizes = {"default": 16, "candidates": [16, 32], "apply": "dataloader"}
    job = zeusrun.job("trains_without_options.py", args=["64"], batch_size=sizes, **OWN)
    done = zeusrun("submit", job, "--batch-size", "32")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    told = "batch size 32 does not reach the training. Nothing is applied, not the learning rate"
    assert said.count(told) == 1
    assert "rate: 0.125" in said
    assert "rate: 0.25" not in said
    (trial,) = zeusrun.history()
    assert (trial["observed_batch_size"], trial["unapplied"]) == (None, True)
    shown = zeusrun("show", "job-1-1").stdout
    assert "not observed: nothing has taken batch size 32" in shown
    assert "32≠its own" in zeusrun("history", "job").stdout
    explained = " ".join(zeusrun("explain", job).stdout.split())
    assert "trained with its own batch size, not with 32: only 16 runs" in explained


@pytest.mark.long  # likewise
def test_a_loader_that_does_not_shuffle_is_changed_and_data_for_less_than_a_batch_are_told(zeusrun):
    sizes = {"default": 16, "candidates": [16, 32, 256, 512], "apply": "dataloader"}
    job = zeusrun.job("trains_without_options.py", args=["100", "loader"], batch_size=sizes, **OWN)
    assert zeusrun("submit", job, "--batch-size", "32").returncode == 0
    done = zeusrun("submit", job, "--batch-size", "512")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    small, large = zeusrun.history()
    assert (small["observed_batch_size"], small["unapplied"], small["steps"]) == (32, False, 12)
    assert (large["observed_batch_size"], large["unapplied"], large["steps"]) == (100, False, 3)
    assert said.count("fewer samples than the 512 that zeusrun chose: a step has 100") == 1
    beliefs = json.loads(zeusrun("explain", job, "--json").stdout)
    assert {each["global_batch_size"] for each in beliefs} == {16, 32}
    explained = " ".join(zeusrun("explain", job).stdout.split())
    assert "trained with batch size 100, not with 512: an epoch has too few samples" in explained


@pytest.mark.long  # judged in tests/worker/hooks/test_backward.py and tests/metrics
@pytest.mark.parametrize("how", ["torch", "plain"])
def test_time_counts_from_the_first_backward_pass_or_the_run_says_from_where(zeusrun, how):
    sizes = {"default": 16, "candidates": [16]}
    own = {**OWN, "learning_rate": None}
    job = zeusrun.job("trains_by_hand.py", args=[how], batch_size=sizes, **own)
    done = zeusrun("submit", job)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    (trial,) = zeusrun.history()
    took_s = float(said.partition("took ")[2].split()[0])
    assert said.count("count from the start of the script, imports included") == (how == "plain")
    assert trial["steps"] is None
    if how == "torch":
        assert trial["time_s"] < took_s  # importing it takes its time
        assert 0 < trial["curve"][0][1] < trial["curve"][1][1] < trial["curve"][2][1]

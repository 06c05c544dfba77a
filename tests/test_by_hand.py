"""One run followed by hand: each figure, wherever it is shown, is what the arithmetic gives."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
from pathlib import Path

import pytest

from tests.runs import only_trial, wait_for

SAMPLES, EPOCHS, TARGET_EPOCH = 960, 4, 2


def shown_everywhere(zeusrun, trial):
    """Return the figures of a run by where they are shown."""
    (row,) = csv.DictReader(io.StringIO(zeusrun("history", "--csv").stdout))
    text = zeusrun("export", "--format", "prometheus").stdout
    found = re.findall(r"^zeusrun_last_run_(\w+)\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return {
        "trial.json": json.loads(Path(trial["run_dir"], "trial.json").read_text()),
        "show": json.loads(zeusrun("show", trial["trial"], "--json").stdout),
        "history": zeusrun.history()[0],
        "csv": row,
        "prometheus": {_plain(name): float(value) for name, value in found},
    }


def _plain(name):
    return name.replace("_seconds", "_s").replace("_joules", "_j")


def check_by_hand(zeusrun, trial, own, *, batch_size, epochs=EPOCHS):
    """Compare a run with its script's own clock and with arithmetic, in every place."""
    counts = {
        "global_batch_size": batch_size,
        "observed_batch_size": batch_size,
        "epochs": TARGET_EPOCH,
        "samples": TARGET_EPOCH * SAMPLES,
        "steps": TARGET_EPOCH * SAMPLES // batch_size,
        "progress": float(TARGET_EPOCH),
        "whole_epochs": epochs,
        "whole_samples": epochs * SAMPLES,
        "whole_steps": epochs * SAMPLES // batch_size,
        "whole_progress": float(epochs),
        "best_metric": pytest.approx(0.1 * epochs),
    }
    assert {name: trial[name] for name in counts} == counts
    if own:
        # The first step is taken to be as long as the median one.
        for name, epoch in (("time_s", TARGET_EPOCH), ("whole_time_s", epochs)):
            clock = own[epoch]
            slack = clock["longest_s"] + 0.1
            assert trial[name] == pytest.approx(clock["time_s"], abs=slack), name
    assert trial["whole_time_s"] > trial["time_s"]
    assert trial["startup_s"] >= 0.4
    spent_j = trial["max_power_w"] * trial["time_s"]
    cost_j = 0.5 * (trial["energy_j"] or spent_j) + 0.5 * spent_j
    assert trial["cost_j"] == pytest.approx(cost_j)
    figures = [*counts, "time_s", "whole_time_s", "energy_j", "whole_energy_j", "cost_j"]
    expected = {name: trial[name] for name in figures}
    for place, found in shown_everywhere(zeusrun, trial).items():
        known = {name: found[name] for name in figures if place != "prometheus" or name in found}
        assert len(known) >= 9, place
        for name, value in known.items():
            number = float(value) if value not in {None, ""} else None
            assert number == pytest.approx(expected[name], rel=1e-5), (place, name)


def own_clock(trial, epochs=range(1, EPOCHS + 1)):
    folder = Path(trial["run_dir"])
    return {n: json.loads((folder / f"clock{n}.json").read_text()) for n in epochs}


@pytest.mark.parametrize(
    ("ranks", "accumulate"),
    [
        pytest.param(1, 1, marks=pytest.mark.long),
        pytest.param(2, 1, marks=pytest.mark.long),
        pytest.param(1, 3, marks=pytest.mark.long),
        (2, 3),  # both at once
    ],
)
def test_every_figure_of_a_run_is_that_of_the_arithmetic(zeusrun, ranks, accumulate):
    micro = 48 // ranks // accumulate
    job = zeusrun.job(
        "counts_by_hand.py",
        env=None,
        args=["--batch-size", str(micro), "--accumulate", str(accumulate)],
        objective={"target": 0.1 * TARGET_EPOCH, "on_target": "continue", "max_epochs": EPOCHS},
        launch={"nproc_per_node": ranks},
        batch_size={"default": 48, "candidates": [48]},
    )
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED"), seen
    check_by_hand(zeusrun, trial, own_clock(trial), batch_size=48)


def test_every_figure_of_a_run_that_was_preempted_is_the_sum_of_its_parts(zeusrun):
    job = zeusrun.job(
        "counts_by_hand.py",
        env=None,
        args=["--batch-size", "48", "--waits-in", "1"],
        objective={"target": 0.1 * TARGET_EPOCH, "on_target": "continue", "max_epochs": EPOCHS},
        launch={"nproc_per_node": 1},
        batch_size={"default": 48, "candidates": [48]},
    )
    child = zeusrun.start("submit", job)
    sidecar = zeusrun.run_dir() / "metrics.jsonl"
    wait_for(lambda: sidecar.exists() and b'"reported"' in sidecar.read_bytes())
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    (cut,) = zeusrun.history()
    assert (cut["status"], cut["whole_epochs"], cut["whole_samples"]) == ("PREEMPTED", 1, SAMPLES)
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["preemptions"]) == (0, "REACHED", 1), seen
    check_by_hand(zeusrun, trial, {}, batch_size=48)
    assert trial["time_s"] > cut["time_s"]

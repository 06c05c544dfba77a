"""Ranks that come and go on a real GPU, which they share; gloo copies what they exchange."""

from __future__ import annotations

import json

import pytest

from tests.elastic_scripts import Training, check_epochs, elastic_job

PRINTED = {"source": "stdout", "pattern": r"epoch: (?P<epoch>\d+) accuracy: (?P<accuracy>[\d.]+)"}

pytestmark = [pytest.mark.gpu, pytest.mark.torchrun]


@pytest.mark.parametrize("given", [[], ["--accumulates"]], ids=["sgd", "accumulates"])
def test_ranks_with_a_gpu_come_and_go_and_are_lost_while_the_others_train_on(zeusrun, given):
    args = [*given, "--epochs", "5000", "--device", "cuda"]
    sizes = {"candidates": [48], "default": 48}
    if given:
        sizes["per_device_max"] = 8
    limits = {"launch": {"gpus": "shared"}, "power_limit": {"mode": "observe"}}
    training = Training(
        zeusrun, elastic_job(zeusrun, epochs=5000, args=args, batch_size=sizes, **limits)
    )
    for ranks in (3, 2):
        training.resize(ranks)
        training.wait_for_ranks(ranks)
        training.wait_for_steps()
    training.kill(0)
    training.wait_for_ranks(1)
    training.wait_for_ranks(2)
    training.wait_for_steps()
    training.resize(0)
    code, shown = training.end()
    assert code == 4, shown
    assert training.check(kills=1) > 10
    # A process of its own: a fork has imported every extra, which a machine with a GPU may lack.
    (trial,) = json.loads(zeusrun("history", "--json", PYTHONUTF8="1").stdout)
    assert trial["energy_source"] in {"counter", "integrated"}


def test_an_unedited_script_with_a_gpu_changes_its_ranks_between_two_epochs(zeusrun):
    args = ["--share", "${local_batch_size}", "--checkpoint", "${checkpoint_dir}/last.pt"]
    given = {"args": [*args, "--epochs", "5000", "--device", "cuda"], "metrics": PRINTED}
    given |= {"launch": {"gpus": "shared"}, "power_limit": {"mode": "observe"}}
    training = Training(zeusrun, elastic_job(zeusrun, "elastic_epochs.py", 5000, **given))
    for ranks in (3, 2):
        training.resize(ranks)
        training.wait_for_ranks(ranks)
        training.wait_for_epochs(2)
    training.kill(1)
    training.wait_for_epochs(2)
    training.resize(0)
    code, shown = training.end()
    assert code == 4, shown
    epochs, restarts = check_epochs(training)
    assert (epochs > 5, restarts) == (True, 1)

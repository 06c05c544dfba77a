"""Ranks on a real GPU, which they share, that agree in other ways than by an all-reduce."""

from __future__ import annotations

import json

import pytest

from tests.test_sync import ends, sync_job

pytestmark = [pytest.mark.gpu, pytest.mark.torchrun]


@pytest.mark.parametrize(
    "sync",
    [
        *({"compress": "bf16"}, {"compress": "fp16"}, {"compress": "powersgd", "warmup": 10}),
        *({"every": 3, "warmup": 2}, {"method": "sma", "switch_at": 10}, {"method": "pair"}),
    ],
    ids=str,
)
def test_models_on_a_gpu_agree(zeusrun, sync):
    job = sync_job(zeusrun, device="cuda", **sync)
    # A process of its own: a fork has imported every extra, which a machine with a GPU may lack.
    done = zeusrun("submit", job, "--json", PYTHONUTF8="1")
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["trials"][0]["warnings"] == [], done.stderr
    first, second = ends(zeusrun.run_dir())
    assert (first == second) == (sync != {"method": "pair"})

"""Ranks on a real GPU, which they share, that agree in other ways than by an all-reduce."""

from __future__ import annotations

import pytest

from tests.test_sync import ends, sync_job

pytestmark = [pytest.mark.gpu, pytest.mark.torchrun]


@pytest.mark.parametrize(
    "sync",
    [
        *({"compress": "bf16"}, {"compress": "fp16"}, {"compress": "powersgd", "warmup": 10}),
        *({"every": 3, "warmup": 2}, {"method": "sma", "switch_at": 10}, {"method": "pair"}),
        {"buckets": "tune"},
    ],
    ids=str,
)
def test_models_on_a_gpu_agree(zeusrun, sync):
    job = sync_job(zeusrun, device="cuda", **sync)
    code, result, seen = zeusrun.submit(job)
    assert code == 4, seen
    assert result["trials"][0]["warnings"] == [], seen
    first, second = ends(zeusrun.run_dir())
    assert (first == second) == (sync != {"method": "pair"})

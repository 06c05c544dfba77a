"""Hooks accumulate gradients where a device is to process too much."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Asked, Observed

SCRIPT = Path(__file__).with_name("scripts") / "splits_with_transformers.py"


@pytest.mark.long  # to load transformers takes 6 s of CPU
@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_only_the_whole_share_of_a_rank_is_split(tmp_path):
    rank = Rank(tmp_path / "run")
    told = {"ZEUSRUN_MICRO_BATCH_SIZE": "8", "ZEUSRUN_ACCUMULATION_STEPS": "4"}
    code, log = rank.run(SCRIPT, 32, 16, cwd=tmp_path, **told)
    assert code == 0, log
    assert re.findall(r"^trained (.*)$", log, re.MULTILINE) == ["8 4 8", "16 1 16"]
    observed = [(e.samples, e.batches) for e in rank.events if isinstance(e, Observed)]
    assert observed[0] == (32, 4)
    assert "batch_size" not in {e.choice for e in rank.events if isinstance(e, Asked)}


@pytest.mark.long  # to load Lightning takes 5 s of CPU
@pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)
@pytest.mark.parametrize(("own", "samples", "steps"), [(1, 32, 12), (2, 16, 24)])
def test_micro_batches_of_lightning_are_accumulated_unless_the_script_does(
    tmp_path, own, samples, steps
):
    rank = Rank(tmp_path / "run")
    script = SCRIPT.with_name("trains_with_lightning.py")
    told = {"ZEUSRUN_BATCH_SIZE": "32", "ZEUSRUN_ACCUMULATION_STEPS": "4", "ZEUSRUN_TARGET": "2"}
    code, log = rank.run(script, "lightning.pytorch", own, cwd=tmp_path, **told)
    assert code == 0, log
    assert f"steps {steps}" in log.splitlines()
    observed = [event for event in rank.events if isinstance(event, Observed)]
    assert observed[0].samples == samples

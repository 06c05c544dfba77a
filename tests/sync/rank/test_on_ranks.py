"""How real ranks agree; see ``on_ranks.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Watched

CASES = Path(__file__).with_name("on_ranks.py")
NAMES = re.findall(r"^def case_(\w+)", CASES.read_text(), re.MULTILINE)
PARTS = json.dumps({"watch": {"noise_scale": {"interval": 1}}, "sync": {}})


@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4))])
def test_every_case_holds(tmp_path, ranks):
    """All cases in one training: a rank takes seconds to import torch."""
    run = Rank(tmp_path / "run")
    logs = run.run_all(CASES, *NAMES, world_size=ranks, ZEUSRUN_PARTS=PARTS)
    for log in logs:
        assert [line for line in log.splitlines() if line in NAMES] == NAMES
    problems = [e.problem for e in run.events if isinstance(e, Watched) and e.problem is not None]
    assert any(
        "sync of the job file does not return the mean gradient" in each for each in problems
    )

"""What is measured over real ranks; see ``ddp_cases.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Watched

CASES = Path(__file__).with_name("on_ranks.py")
NAMES = re.findall(r"^def case_(\w+)", CASES.with_name("ddp_cases.py").read_text(), re.MULTILINE)
WATCH = json.dumps({"watch": {"noise_scale": {"interval": 1}}})
OF_THREE = [
    "weights_are_the_same_to_the_last_bit",
    "values_are_the_same_on_every_rank",
]


@pytest.mark.parametrize(
    ("ranks", "names"), [(2, NAMES), pytest.param(3, OF_THREE, marks=pytest.mark.long)]
)
def test_every_case_holds(tmp_path, ranks, names):
    """All cases in one training: a rank takes seconds to import torch."""
    run = Rank(tmp_path / "run")
    logs = run.run_all(CASES, *names, world_size=ranks, ZEUSRUN_PARTS=WATCH)
    for log in logs:
        assert [line for line in log.splitlines() if line in NAMES] == names
    if "an_error_on_one_rank_does_not_disturb_the_others" in names:
        problems = {(e.rank, e.problem) for e in run.events if isinstance(e, Watched)}
        assert (1, "gradients were not measured (RuntimeError: out of memory)") in problems

"""A rank that runs a script with loaders."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.loader.rank.running import PREAMBLE, TUNE, Run
from tests.worker.rank import Rank


@pytest.fixture
def run(tmp_path):
    def start(script, part=TUNE, *, fails=False, folder=None, **changes):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        rank = Rank(tmp_path / (folder or f"run{len([*tmp_path.iterdir()])}"))
        parts = (
            {} if part is None else {"ZEUSRUN_PARTS": json.dumps({"loader": {**part, **changes}})}
        )
        code, log = rank.run_forked(path, **parts)
        assert bool(code) == fails, log
        return Run(rank, log)

    return start

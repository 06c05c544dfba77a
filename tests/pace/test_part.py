"""A part that one line in the table adds, and that can be removed again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Adds the line to the table in the processes that a test starts.
_SITE = """
import zeusrun.parts as parts
parts.PARTS["pace"] = parts.Part("tests.pace", acts=True)
"""


_SCRIPT = """
import torch, zeusrun
data = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = zeusrun.current()
for epoch in run.epochs(1):
    for batch in data:
        model(batch).sum().backward()
        optimizer.step()
    run.report(accuracy=1.0)
"""


@pytest.fixture
def variables(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    return {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}  # no fork


@pytest.mark.torchrun
def test_a_part_is_a_package_and_a_line(zeusrun, variables):
    (zeusrun.folder / "trains.py").write_text(_SCRIPT)
    job = zeusrun.job(zeusrun.folder / "trains.py", pace={"every": 2})
    done = zeusrun("submit", job, "--json", **variables)
    assert done.returncode == 0, done.stderr
    (trial,) = json.loads(done.stdout.splitlines()[-1])["trials"]
    assert trial["variant"] == "sync pace 2"
    folder = zeusrun.run_dir(trial["trial"])
    every, hooked, *seen = (folder / "pace-rank0.txt").read_text().split()
    assert (every, hooked) == ("2", "torch.optim.optimizer")
    assert seen == ["pass", "step", "step", "end"]
    assert (folder / "pace-launcher.txt").read_text() == "2 in all"


def test_without_the_line_there_is_no_such_key(zeusrun):
    done = zeusrun("submit", zeusrun.job(pace={"every": 2}))
    assert done.returncode == 2
    assert "pace" in done.stderr


def test_a_part_excludes_another_one(zeusrun, variables):
    job = zeusrun.job(pace={}, watch={"noise_scale": {}})
    done = zeusrun("validate", job, **variables)
    assert done.returncode == 2
    assert "cannot be used together with 'watch'" in done.stderr

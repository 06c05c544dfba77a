"""Loader workers over torchrun: what is printed, recorded, shown, and remembered."""

from __future__ import annotations

import json

import pytest

from zeusrun.trial import Trial

_SCRIPT = """
import time, torch, zeusrun
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 160
    def __getitem__(self, n):
        time.sleep(0.004)
        return torch.ones(2)

layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
loader = DataLoader(Data(), 4, shuffle=True, num_workers=1)
run = zeusrun.current()
for epoch in run.epochs(default=6):
    for batch in loader:
        optimizer.zero_grad()
        layer(batch).sum().backward()
        optimizer.step()
    run.report(epoch=epoch, accuracy=epoch / 10)
"""


@pytest.mark.torchrun
def test_a_run_tunes_its_loader_and_the_next_one_begins_with_what_it_found(zeusrun):
    (zeusrun.folder / "loads.py").write_text(_SCRIPT)
    job = zeusrun.job(
        zeusrun.folder / "loads.py",
        loader={"workers": "tune", "max_workers": 2},
        objective={"target": 0.6, "max_epochs": 6},
    )
    done = zeusrun("submit", job, "--json")
    assert done.returncode == 0, done.stderr
    assert "· loader workers 1 → 2: " in done.stderr
    trial = Trial.from_json(json.loads(done.stdout.splitlines()[-1])["trials"][0])
    assert trial.speed_variant == "tune"
    assert 0.5 * trial.time_s < trial.data_wait_s <= trial.time_s
    assert trial.evaluation_wait_s == 0.0
    assert [each.workers for each in trial.workers][:2] == [1, 2]
    assert trial.best_workers.workers == 2
    one, two = (each.step_s for each in trial.workers[:2])
    assert two < one
    shown = zeusrun("show", trial.trial).stdout
    assert "wait for data: " in shown
    assert " with 2" in shown
    explained = " ".join(zeusrun("explain", job).stdout.split())
    assert "2 loader workers" in explained or "the best so far is 2" in explained
    report = zeusrun.folder / "report.html"
    assert zeusrun("report", job, "--output", report).returncode == 0
    assert "wait for data: " in report.read_text()
    again = zeusrun("submit", job, "--json")
    trial = Trial.from_json(json.loads(again.stdout.splitlines()[-1])["trials"][0])
    assert trial.workers[0].workers == 2

"""Follows the recipes of docs/architecture.md: a file, a line in a table, and a job that uses both.

Only the processes that a test starts have the line in their tables.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = {
    "policy": 'BUILT_IN["zeusrun.policies"]["largest"] = "tests.recipes.policy:Largest"',
    "source": 'BUILT_IN["zeusrun.metric_sources"]["pairs"] = "tests.recipes.source:Pairs"',
    "history": 'BUILT_IN["zeusrun.histories"]["elsewhere"] = "tests.recipes.history:open_in"',
    "device": 'BUILT_IN["zeusrun.devices"]["card"] = "tests.recipes.device:find"',
    "hook": 'MODULES["scores"] = "scores"',
    "stop rule": 'PARTS["ceiling"] = Part("tests.recipes.ceiling", acts=True)',
}
_PAIRS = """
import os, pathlib
path = pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"], "pairs.txt")
path.write_text("accuracy=0.25\\naccuracy=0.75\\n")
"""
_SCORES = """
import scores
for value in (0.25, 0.75):
    scores.tell(accuracy=value)
"""


@pytest.fixture
def run(zeusrun, tmp_path):
    """Submit a job with the line of a recipe in the tables; return its newest trial."""

    def submit(recipe, script, *arguments, code=0, **job):
        site = tmp_path / "site"
        site.mkdir()
        head = "from zeusrun.plugins import BUILT_IN\nfrom zeusrun.parts import PARTS, Part\n"
        if recipe == "hook":  # only ranks have hooks
            head = (
                "import importlib, sys\n"
                "from zeusrun.worker.hooks.install import MODULES\n"
                'sys.modules["zeusrun.worker.hooks.scores"] = '
                'importlib.import_module("tests.recipes.hook")\n'
            )
        (site / "sitecustomize.py").write_text(head + LINES[recipe])
        (site / "scores.py").write_text("def tell(**metrics): ...\n")
        (zeusrun.folder / "script.py").write_text(script)
        path = f"{site}{os.pathsep}{ROOT}"
        path = f"{path}{os.pathsep}{zeusrun.environment.get('PYTHONPATH', '')}"
        job = zeusrun.job(zeusrun.folder / "script.py", **job)
        variables = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}  # no fork
        done = zeusrun("submit", job, "--json", *arguments, **variables)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout.splitlines()[-1])["trials"][-1]

    return submit


WELL = """
import zeusrun
run = zeusrun.current()
for epoch in run.epochs(1):
    run.report(accuracy=0.75)
"""


def test_a_policy(run):
    trial = run("policy", WELL, policy={"name": "largest"})
    assert (trial["status"], trial["global_batch_size"]) == ("REACHED", 64)


def test_a_metric_source(run):
    trial = run("source", _PAIRS, metrics={"source": "pairs"})
    assert (trial["status"], trial["epochs"]) == ("REACHED", 2)


def test_a_device(run):
    trial = run("device", WELL, launch={"nproc_per_node": "card"})
    assert (trial["status"], trial["world_size"]) == ("REACHED", 2)
    assert (trial["max_power_w"], trial["energy_source"]) == (200, "integrated")
    assert 0 < trial["energy_j"] / trial["time_s"] <= 101


_TOO_HIGH = """
import time, zeusrun
run = zeusrun.current()
for epoch in run.epochs(3):
    run.report(accuracy=7.5)
    time.sleep(60 * (epoch == 2))
"""


def test_a_stop_rule(run):
    job = {"ceiling": {"above": 5}, "objective": {"target": 9}, "attempts": 1}
    trial = run("stop rule", _TOO_HIGH, code=4, **job)
    assert (trial["status"], trial["reason_code"]) == ("STOPPED", "hopeless")
    assert trial["reason"] == "7.5 is above the ceiling of 5"


def test_a_hook(run):
    trial = run("hook", _SCORES)
    assert (trial["status"], trial["epochs"]) == ("REACHED", 2)


def test_a_history(run, zeusrun):
    trial = run("history", WELL, history="elsewhere")
    assert trial["status"] == "REACHED"
    assert (zeusrun.home / "elsewhere" / "job.json").exists()
    assert not (zeusrun.home / "history" / "job.json").exists()


@pytest.mark.parametrize("key", ["policy", "metrics", "history"])
def test_without_the_line_a_job_file_cannot_name_it(zeusrun, key):
    section = {"policy": {"name": "largest"}, "metrics": {"source": "pairs"}}
    job = zeusrun.job(**{key: section.get(key, "elsewhere")})
    done = zeusrun("validate", job)
    assert done.returncode == 2
    assert "no plugin has that name" in " ".join(done.stderr.split())

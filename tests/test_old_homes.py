"""Homes that released versions have written, opened with today's code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

HOMES = Path(__file__).parent / "homes"
ENDS = ["REACHED"] * 3 + ["MISSED", "STOPPED", "FAILED", "REACHED", "PREEMPTED"]


@pytest.fixture(params=["0.1.0"])
def old(request, zeusrun):
    """Move a copy of an old home, with its job files, to where this test works."""
    shutil.copytree(HOMES / request.param, zeusrun.folder, dirs_exist_ok=True)
    for path in filter(Path.is_file, zeusrun.folder.rglob("*")):
        text = path.read_text()
        text = text.replace("/home/someone/zeusrun", str(zeusrun.home))
        path.write_text(text.replace("/home/someone", str(zeusrun.folder)))
    zeusrun.home.chmod(0o700)
    return zeusrun


def files_of(home):
    return {path: path.read_bytes() for path in home.rglob("*.json") if path.is_file()}


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["history", "digits"], "PREEMPTED"),
        (["history", "words"], "words"),
        (["show", "digits-1-1"], "accuracy 0.9 in epoch 3"),
        (["show", "digits-6-1"], "ValueError: the data set is empty"),
        (["show", "digits-7-1"], "digits-7-1  REACHED"),
        (["show", "digits-8-1"], "digits-8-1  PREEMPTED"),
        (["metrics", "digits-7-1"], "accuracy"),
        (["explain", "digits.yaml"], "digits-8-1"),
        (["explain", "words.yaml"], "32"),
        (["submit", "digits.yaml", "--dry-run"], "digits-8-1"),
        (["submit", "words.yaml", "--dry-run"], "words-3-1"),
        (["report", "words", "--format", "md"], "words"),
        (["schedule", "list"], "digits"),
        (["status"], "nothing runs now"),
        (["repair", "--dry-run"], "nothing to repair"),
        (["gc", "--last", "1", "--dry-run"], "words"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_command_reads_it_and_changes_nothing(old, verb, said):
    before = files_of(old.home)
    done = old(*verb)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert files_of(old.home) == before


def test_its_runs_are_those_that_were_made(old):
    trials = old.history("digits")
    assert [trial["status"] for trial in trials] == ENDS
    assert [trial["trial"] for trial in trials] == [f"digits-{n}-1" for n in range(1, 9)]
    assert [trial["price"] is not None for trial in trials].count(True) >= 1
    assert [trial["status"] for trial in old.history("words")] == ["REACHED"] * 2


def test_a_preempted_run_goes_on_and_another_recurrence_follows(old):
    assert old.submit(old.folder / "digits.yaml")[0] == 0
    assert old.submit(old.folder / "digits.yaml")[0] == 0
    assert [trial["status"] for trial in old.history("digits")] == [*ENDS[:-1], *["REACHED"] * 2]


def test_a_lost_history_is_rebuilt_from_its_run_directories(old):
    before = old.history("digits")
    shutil.rmtree(old.home / "history")
    done = json.loads(old("repair", "--restore", "digits", "--json").stdout)
    assert (done["trials"], done["problems"]) == (len(before), [])
    assert old.history("digits") == before


def test_its_schedule_can_be_changed(old):
    assert old("schedule", "pause", "digits").returncode == 0
    (schedule,) = json.loads(old("schedule", "list", "--json").stdout)
    assert (schedule["job"], schedule["paused"]) == ("digits", True)

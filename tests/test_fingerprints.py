"""Trainings that are edited between their runs, and while they are preempted."""

from __future__ import annotations

import json
import signal

import pytest

from tests.factories import CHILDREN
from tests.runs import only_trial, wait_for
from zeusrun.analysis.estimates import SAVED


@pytest.fixture
def script(zeusrun):
    """A script of the user's own, which a test may edit."""
    path = zeusrun.folder / "train.py"
    path.write_text((CHILDREN / "well.py").read_text())
    return path


def edit(script):
    script.write_text(script.read_text() + "print('edited')\n")


def words(text):
    return " ".join(text.split())


def test_a_submit_says_what_has_changed_since_the_last_run(zeusrun, script):
    job = zeusrun.job("train.py", args=["--epoch-s", "0"])
    code, first, seen = zeusrun.submit(job)
    before = only_trial(first)
    assert (code, before["fingerprint"].keys()) == (0, {"script", "args", "env", "learning"})
    assert "changed since" not in seen
    script.write_text(f"# a comment\n{script.read_text()}")
    assert "changed since" not in zeusrun("explain", "job").stdout
    edit(script)
    job = zeusrun.job("train.py", args=["--epoch-s", "0.01"])
    then = "changed since run 1; the next runs will show how far earlier ones count"
    for command in (("submit", job, "--dry-run"), ("explain", job)):
        told = words(zeusrun(*command).stdout)
        assert all(f"{name} {then}" in told for name in ("train.py", "the arguments"))
    code, second, seen = zeusrun.submit(job)
    assert f"history: train.py {then}" in words(seen)
    explained = words(zeusrun("explain", "job").stdout)
    assert "1 run differed in the script and the arguments: 9" in explained  # 9x % likely
    assert "% likely to need as many epochs as today" in explained
    after = only_trial(second)
    changed = {
        part
        for part, print_ in after["fingerprint"].items()
        if print_ != before["fingerprint"][part]
    }
    assert (code, changed) == (0, {"script", "args"})
    saved = dict.fromkeys(SAVED)  # of run 1, it may be known only now
    assert [each | saved for each in zeusrun.history()] == [before | saved, after | saved]
    stored = json.loads(zeusrun("show", "job-2-1", "--json").stdout)
    assert stored["fingerprint"] == after["fingerprint"]
    assert "changed since" not in zeusrun("show", "job-2-1").stdout


def preempt(zeusrun, job):
    path = zeusrun.run_dir() / "metrics.jsonl"
    child = zeusrun.start("submit", job)
    wait_for(lambda: path.exists() and path.read_bytes().count(b'"reported"') >= 1)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    (cut,) = zeusrun.history()
    assert cut["status"] == "PREEMPTED"
    return cut


@pytest.mark.long
def test_a_run_that_is_edited_while_it_is_preempted_goes_on_and_teaches_no_epochs(zeusrun, script):
    script.write_text((CHILDREN / "checkpoints.py").read_text())
    objective = {"max_epochs": 1000}
    cut = preempt(zeusrun, zeusrun.job("train.py", objective=objective))
    edit(script)
    job = zeusrun.job("train.py", args=["--reaches", "1"], objective=objective)
    planned = words(zeusrun("submit", job, "--dry-run").stdout)
    told = "train.py and the arguments changed while job-1-1 was preempted; it is continued, but"
    assert told in planned
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["trial"]) == (0, "REACHED", "job-1-1")
    assert told in words(seen)
    assert [text for text in trial["warnings"] if text.startswith(told)] == [
        text for text in trial["warnings"] if "changed while" in text
    ]
    for part, then in cut["fingerprint"].items():
        first, _, last = trial["fingerprint"][part].partition("+")
        assert (first, bool(last)) == (then, part in {"script", "args"})
    assert told in words(zeusrun("show", "job-1-1").stdout)
    told = "1 run changed while preempted: kept for its speed"
    assert told in words(zeusrun("explain", job).stdout)
    (belief,) = [
        each
        for each in json.loads(zeusrun("explain", job, "--json").stdout)
        if each["global_batch_size"] == trial["global_batch_size"]
    ]
    assert belief["reached"] == 0


def test_a_run_that_was_not_edited_goes_on_without_a_word(zeusrun, script):
    script.write_text((CHILDREN / "checkpoints.py").read_text())
    args = ["--epoch-s", "0.1", "--reaches", "4", "--again"]
    job = zeusrun.job("train.py", args=args, objective={"max_epochs": 1000})
    cut = preempt(zeusrun, job)
    _, result, seen = zeusrun.submit(job)
    assert only_trial(result)["fingerprint"] == cut["fingerprint"]
    assert "changed" not in seen

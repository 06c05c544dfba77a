"""``zeusrun resize``: what it refuses. That it works is shown by ``tests/test_elastic.py``."""

from __future__ import annotations

from tests.runs import start_and_wait, wait_for

ELASTIC = {"elastic": {"min": 1, "max": 4}, "launch": {"nproc_per_node": 1}}
LONG = {"objective": {"max_epochs": 1000}}


def refusal(zeusrun, *arguments):
    done = zeusrun("resize", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    return " ".join(done.stderr.split())


def test_a_run_that_has_ended_is_not_resized(zeusrun):
    zeusrun.submit(zeusrun.job())
    assert "job-1-1 does not run, so its ranks cannot be changed" in refusal(zeusrun, "job", "2")


def test_a_run_that_is_not_elastic_is_told_what_to_add_and_of_several_one_has_to_be_named(zeusrun):
    job = zeusrun.job("checkpoints.py", **LONG)
    start_and_wait(zeusrun, job)
    assert "add elastic: {min: 1, max: 4} to its job file" in refusal(zeusrun, "job", "2")
    zeusrun.start("submit", job, "--overlap", "allow")
    wait_for(lambda: zeusrun.run_dir("job-2-1").exists() and len(zeusrun.history()) == 2)
    assert "job-1-1, job-2-1; name the one to resize" in refusal(zeusrun, "job", "2")


def test_a_number_that_is_not_allowed_is_refused_and_without_a_board_it_is_said_to_try_again(
    zeusrun,
):
    start_and_wait(zeusrun, zeusrun.job("checkpoints.py", **LONG, **ELASTIC))
    for ranks in ("5", "-1", "0"):
        text = refusal(zeusrun, "--", "job", ranks)
        assert f"{ranks} is not between elastic.min (1) and elastic.max (4) of job-1-1" in text
        assert ("; zeusrun cancel job-1-1 ends it" in text) == (ranks == "0")
    (zeusrun.run_dir() / "elastic" / "board").unlink()
    text = refusal(zeusrun, "job", "2")
    assert "cannot be changed now" in text
    assert "try again once it trains" in text

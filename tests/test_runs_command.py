"""``status``, ``cancel``, ``rerun`` and ``logs``, beside real trainings."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from tests.runs import only_trial, survivors, wait_for


@pytest.fixture
def running(zeusrun):
    """Start a submit of a job; it is waited for until it has reported an epoch."""

    def run(script="ignores_sigterm.py", name="job", **changes):
        child = zeusrun.start("submit", zeusrun.job(script, name, **changes))
        live = zeusrun.home / "runs" / name / f"{name}-1-1" / "live.json"
        wait_for(lambda: live.exists() and json.loads(live.read_text())["trial"]["epochs"])
        return child

    return run


def test_status_shows_what_runs_with_live_numbers(zeusrun, running):
    assert "nothing runs now" in zeusrun("status").stdout
    assert json.loads(zeusrun("status", "--json").stdout) == []
    child = running()
    (found,) = json.loads(zeusrun("status", "--json").stdout)
    assert (found["trial"], found["status"], found["alive"]) == ("job-1-1", "DISPATCHED", True)
    assert (found["pid"], found["epochs"], found["last_metric"]) == (child.pid, 1, 0.1)
    assert found["time_s"] > 0
    assert found["energy_j"] != 0  # unknown, or metered
    shown = zeusrun("status").stdout
    for text in ("job-1-1", "1/5", "0.1 → 0.5", " J", " W"):
        assert text in shown


def test_status_tells_a_trial_whose_launcher_is_dead(zeusrun, running):
    child = running()
    child.kill()
    child.communicate()
    (found,) = json.loads(zeusrun("status", "job", "--json").stdout)
    assert found["alive"] is False
    for verb in (["status"], ["show", "job-1-1"]):
        assert "the launcher of job-1-1 is dead: zeusrun repair" in zeusrun(*verb).stdout


def test_cancel_stops_a_trial_gently_and_waits_for_its_end(zeusrun, running):
    child = running("steps_slowly.py", objective={"target": 9.0, "max_epochs": 1000})
    done = zeusrun("cancel", "job-1-1")
    assert done.returncode == 0, done.stderr
    assert "job-1-1 is told to stop, within 2 s" in done.stdout
    assert "job-1-1 is CANCELLED: cancelled by 'zeusrun cancel'" in done.stdout
    child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGINT
    (trial,) = zeusrun.history()
    assert trial["status"] == "CANCELLED"


def test_cancel_now_does_not_wait_for_the_grace(zeusrun, running):
    child = running(launch={"grace_period_s": 600})
    done = zeusrun("cancel", "job", "--now", "--json")
    assert json.loads(done.stdout)["status"] == "CANCELLED"
    child.communicate(timeout=30)
    assert survivors({"run_dir": str(zeusrun.run_dir())}) == []


def test_cancel_of_a_job_with_two_trials_running_asks_which(zeusrun, running):
    running()
    second = zeusrun.start("submit", zeusrun.folder / "job.yaml")
    try:
        wait_for(lambda: len(json.loads(zeusrun("status", "--json").stdout)) == 2)
        done = zeusrun("cancel", "job")
        assert done.returncode == 2
        assert "job-1-1, job-2-1; name the one to stop" in " ".join(done.stderr.split())
    finally:
        second.kill()
        second.communicate()


def test_cancel_of_a_trial_whose_launcher_is_dead_records_it(zeusrun, running):
    child = running()
    child.kill()
    child.communicate()
    done = zeusrun("cancel", "job-1-1", "--json")
    assert json.loads(done.stdout)["status"] == "LOST"


def test_cancel_of_what_has_ended_changes_nothing_and_says_so(zeusrun):
    zeusrun.submit(zeusrun.job())
    before = zeusrun.history()
    done = zeusrun("cancel", "job-1-1")
    assert done.returncode == 0
    assert "job-1-1 had ended before: it is REACHED" in done.stdout
    assert zeusrun.history() == before


def test_rerun_repeats_a_trial_as_it_was_whatever_the_job_file_says_now(zeusrun):
    first = zeusrun.job(learning_rate={"base": 0.1})
    zeusrun.submit(first, "--batch-size", "16")
    first.write_text("name: [")
    done = zeusrun("rerun", "job-1-1", "--json")
    trial = only_trial(json.loads(done.stdout.splitlines()[-1]))
    old, new = zeusrun.history()
    assert (done.returncode, new["trial"]) == (0, trial["trial"])
    for same in ("global_batch_size", "learning_rate", "metric", "target"):
        assert new[same] == old[same]
    assert (new["recurrence"], new["stage"], new["why"]) == (2, "forced", "as in job-1-1, by rerun")


def test_rerun_without_the_run_directory_says_what_to_do_instead(zeusrun):
    result = zeusrun.submit(zeusrun.job())[1]
    Path(only_trial(result)["run_dir"], "job.yaml").unlink()
    done = zeusrun("rerun", "job-1-1")
    assert done.returncode == 2
    assert "submit the job file with --batch-size 32" in " ".join(done.stderr.split())


def test_logs_as_json_are_objects_with_rank_and_line(zeusrun):
    zeusrun.submit(zeusrun.job(args=["--see"], launch={"nproc_per_node": 2}))
    found = [json.loads(line) for line in zeusrun("logs", "job", "--json").stdout.splitlines()]
    assert {each["rank"] for each in found} == {0, 1}
    assert any(each["line"] == "ZEUSRUN_TRIAL=job-1-1" for each in found)


def test_logs_follow_until_the_trial_is_over(zeusrun, running):
    child = running()
    follower = zeusrun.start("logs", "job-1-1", "-f")
    wait_for(lambda: psutil.Process(follower.pid).is_running())
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    seen, _ = follower.communicate(timeout=300)
    assert "[rank0] ready" in seen

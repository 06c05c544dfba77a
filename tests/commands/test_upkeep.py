"""``zeusrun repair``: what dead processes have left, and histories put together again."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import wait_for
from zeusrun.history.registry import remember_choice

LEFT_OVER = ("trial.reserve", "live.json.tmp", "stop.ending")


@pytest.fixture
def findings(cli):
    """Repair; return the exit code, what was found, and what people see."""

    def repair(*arguments):
        code, out, err = cli("repair", *arguments, "--json")
        return code, json.loads(out or "null"), err

    return repair


@pytest.fixture
def run_dir(record):
    """The directory of a run that has ended."""
    trial = record(1)
    path = Path(trial.run_dir)
    (path / "trial.json").write_text(json.dumps({"version": 1, **trial.to_json()}))
    return path


def states(found):
    return {(each["kind"], each["state"]) for each in found}


def test_a_machine_that_is_well_needs_no_repair(zeusrun, cli, findings):
    assert "nothing to repair" in cli("repair")[1]
    zeusrun.submit(zeusrun.job())
    assert findings()[:2] == (0, [])


def test_a_lost_trial_is_recorded_by_a_repair(zeusrun, cli, running, findings):
    child = running()
    assert findings()[1] == []  # a running trial is left alone
    assert zeusrun.history()[0]["status"] == "DISPATCHED"
    child.kill()
    child.wait()
    assert "job-1-1 is recorded as LOST: its launcher died" in cli("repair")[1]
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"]) == ("LOST", 1)
    run_dir = Path(trial["run_dir"])
    kept = json.loads((run_dir / "trial.json").read_text())
    assert {**trial, **kept} == {"version": 1, **trial}
    assert {path.name for path in run_dir.iterdir()}.isdisjoint(LEFT_OVER)
    assert findings()[1] == []


@pytest.fixture
def leave():
    """Start a process as an orphan of a run: a sleep that nobody waits for."""
    left = []

    def start(run_dir, *argv):
        environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(run_dir)}
        command = argv or ("sleep", "600")
        left.append(subprocess.Popen(command, env=environment, start_new_session=True))
        shown = Path(f"/proc/{left[-1].pid}/environ")
        wait_for(lambda: b"ZEUSRUN_RUN_DIR" in shown.read_bytes())  # empty while it begins
        return left[-1]

    yield start
    for process in left:
        process.kill()
        process.wait()


def test_what_a_finished_run_has_left_is_ended_by_a_repair(cli, run_dir, leave, findings):
    orphan = leave(run_dir)
    name = f"sleep ({orphan.pid})"
    _, (found,), _ = findings()
    assert found == {
        "kind": "process",
        "subject": "job-1-1",
        "state": "repaired",
        "text": f"ended 1 orphan process of job-1-1: {name}",
    }
    assert orphan.wait(300) == -signal.SIGKILL
    assert "nothing to repair" in cli("repair")[1]


def test_the_next_submit_of_the_job_ends_what_a_finished_run_has_left(zeusrun, leave):
    zeusrun.submit(zeusrun.job())
    orphan, removed = leave(zeusrun.run_dir()), leave(zeusrun.run_dir("job-9-1"))
    zeusrun.submit(zeusrun.job(name="other"))
    assert [orphan.poll(), removed.poll()] == [None, None]
    _, _, seen = zeusrun.submit(zeusrun.job())
    assert f"ended 1 orphan process of job-1-1: sleep ({orphan.pid})" in seen
    assert [orphan.wait(300), removed.wait(300)] == [-signal.SIGKILL] * 2


def test_a_run_of_another_home_is_left_alone(run_dir, leave, tmp_path, findings):
    (other := tmp_path / "other" / "runs" / "job" / "job-1-1").mkdir(parents=True)
    bystander = leave(other)
    assert findings()[1] == []
    assert bystander.poll() is None


def test_a_shell_with_the_variables_of_a_run_may_repair(zeusrun, run_dir):
    script = '"$0" -m zeusrun repair > repaired; exit 7'
    environment = {**zeusrun.environment, "ZEUSRUN_RUN_DIR": str(run_dir)}
    shell = subprocess.run(
        ["sh", "-c", script, sys.executable], cwd=zeusrun.folder, env=environment, check=False
    )
    assert shell.returncode == 7
    assert "nothing to repair" in (zeusrun.folder / "repaired").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_container_with_a_home_of_the_same_path_is_left_alone(zeusrun, run_dir, findings):
    script = 'mount -t tmpfs none "$0" && mkdir -p "$ZEUSRUN_RUN_DIR" && echo && exec sleep 600'
    argv = ["unshare", "-m", "sh", "-c", script, zeusrun.home]
    environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(run_dir)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as container:
        if container.stdout.readline() != b"\n":
            pytest.skip("this container may not mount")
        assert findings()[1] == []
        assert container.poll() is None
        container.kill()


def test_a_damaged_history_comes_back_whole_from_its_copy_and_the_run_directories(
    zeusrun, cli, findings
):
    for _ in range(3):
        zeusrun.submit(zeusrun.job())
    before = zeusrun.history()
    path = zeusrun.home / "history" / "job.json"
    path.write_text("{" + path.read_text()[:100])
    code, found, seen = findings()
    assert code == 6
    assert ("history", "problem") in states(found)
    assert "nothing to repair" not in cli("repair")[1]
    code, told, _ = cli("doctor")
    assert code == 5
    assert "✗ history " in told
    assert "is damaged" in told
    assert "`zeusrun repair --restore job`" in " ".join(told.split())
    assert "zeusrun repair --restore job" in " ".join(seen.split())
    code, out, err = cli("repair", "--restore", "job")
    assert code == 0, err
    assert "job has 3 trials: 2 from the copy of " in out
    assert ", 1 from run directories" in out
    assert zeusrun.history() == before
    code, result, _ = zeusrun.submit(zeusrun.job())
    assert (code, result["trials"][0]["trial"]) == (0, "job-4-1")


def test_a_restored_history_keeps_what_was_there(run_dir, findings):
    code, done, _ = findings("--restore", "job")
    assert (code, done["copy"], done["trials"], done["lost"]) == (0, "present", 1, [])
    assert Path(done["aside"]).is_file()


def test_a_job_that_has_no_history_is_not_restored(cli, record):
    record(1)
    code, _, err = cli("repair", "--restore", "nothing")
    assert code == 2
    assert "there is no job called 'nothing'" in " ".join(err.split())


def test_gc_says_what_would_go_and_removes_it(zeusrun, cli):
    job = zeusrun.job()
    for _ in range(3):
        zeusrun.submit(job)
    before = zeusrun.history()
    runs = zeusrun.home / "runs" / "job"
    assert "nothing to remove; without --last, the limit is" in cli("gc")[1]
    assert "would go: this was a dry run" in cli("gc", "job", "--last", "1", "--dry-run")[1]
    assert len(list(runs.iterdir())) == 3
    gone = json.loads(cli("gc", "--last", "1", "--json")[1])
    assert gone
    left = {path.name for path in runs.iterdir() if (path / "logs").is_dir()}
    assert "job-3-1" in left
    assert left | {each["trial"] for each in gone} == {"job-1-1", "job-2-1", "job-3-1"}
    assert [path.name for path in (runs / gone[0]["trial"]).iterdir()] == ["trial.json"]
    assert "nothing to remove" in cli("gc", "--last", "1")[1]
    assert zeusrun.history() == before
    assert "(gone)" in cli("show", gone[0]["trial"])[1]
    assert "are gone" in cli("logs", gone[0]["trial"])[2]


@pytest.mark.long
def test_gc_frees_what_it_can_before_a_job_file_that_it_cannot_read(zeusrun):
    for _ in range(3):  # the newest and the cheapest stay
        zeusrun.submit(zeusrun.job(keep={"last": 1}))
    zeusrun.submit(zeusrun.job(name="zz"))
    (copy,) = (zeusrun.home / "runs" / "zz").glob("*/job.yaml")
    copy.write_text("keep: [")
    done = zeusrun("gc")
    assert done.returncode == 2
    left = [len(list(run.iterdir())) for run in (zeusrun.home / "runs" / "job").iterdir()]
    assert min(left) == 1 < max(left)  # trial.json alone, and a whole run


def test_a_damaged_history_does_not_stop_gc_for_other_jobs(cli, zeusrun, record):
    for number in (1, 2, 3):
        record(number)
    (zeusrun.home / "history" / "a.json").write_text("{")
    code, out, err = cli("gc", "--last", "1", "--json")
    assert (code, [each["trial"] for each in json.loads(out)]) == (6, ["job-2-1"])
    assert "a.json is damaged" in err


@pytest.mark.long  # four submits
def test_a_job_keeps_what_its_job_file_says_and_from_that_a_history_is_rebuilt(
    zeusrun, cli, findings
):
    job = zeusrun.job(keep={"last": 1}, objective={"eta_knob": 0})  # of known cost
    for _ in range(3):
        assert zeusrun.submit(job)[0] == 0
    before = zeusrun.history()
    assert len(before) == 3
    best = min(before, key=lambda trial: trial["cost_j"])["trial"]
    runs = (zeusrun.home / "runs" / "job").iterdir()
    assert {path.name for path in runs if (path / "logs").is_dir()} == {"job-3-1", best}
    assert "nothing to remove" in cli("gc")[1]
    for path in (zeusrun.home / "history").iterdir():
        path.unlink()
    _, found, _ = findings()
    lacking = "the history of job lacks 3 ended trials"
    assert [each["text"].partition(";")[0] for each in found] == [lacking]
    code, told, _ = cli("doctor")
    assert (code, lacking in told) == (5, True)
    code, done, _ = findings("--restore", "job")
    assert (code, done["trials"], done["copy"]) == (0, 3, None)
    assert zeusrun.history() == before
    assert zeusrun.submit(job)[1]["recurrence"] == 4


def test_doctor_finds_this_machine_well(cli):
    code, out, err = cli("doctor")
    assert (code, err) == (0, "")
    for name in ("python", "torch", "devices", "permissions", "home"):
        assert name in out
    checks = json.loads(cli("doctor", "--json")[1])
    assert [check["name"] for check in checks][:2] == ["python", "torch"]


def test_doctor_ends_with_5_when_a_submit_would_fail(cli, zeusrun):
    zeusrun.home.write_text("a file")
    code, out, _ = cli("doctor")
    assert code == 5
    assert "✗" in out


def test_one_job_whose_history_cannot_be_opened_does_not_stop_the_others(
    cli, zeusrun, record, monkeypatch
):
    for number in (1, 2, 3):
        record(number)
    record(4, None)
    remember_choice(zeusrun.home, "elsewhere", "https://zeus.example.org")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "urllib3" else find(name)
    )
    for verb, shown in (
        ("history", "job-4-1"),
        ("status", "job-4-1"),
        ("gc --last 1 --dry-run", "job-2-1"),
        ("repair", "job-4-1 is recorded as LOST"),
    ):
        code, out, err = cli(*verb.split())
        assert (code, shown in out) == (6, True)
        assert "needs urllib3; install zeusrun with its extra 'http'" in err

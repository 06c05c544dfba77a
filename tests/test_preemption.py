"""Machines that are taken back, and trainings that go on elsewhere in time. Real torchrun."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.runs import only_trial, survivors, wait_for
from zeusrun.launcher.rundir.layout import RunPaths, reopen_run
from zeusrun.launcher.rundir.ownership import RunLock


def job(zeusrun, *args, **changes):
    objective = {"max_epochs": 1000, **changes.pop("objective", {})}
    return zeusrun.job("checkpoints.py", args=list(args), objective=objective, **changes)


def preempt(zeusrun, job_file, number=signal.SIGTERM, epochs=2):
    """Submit, let it train for so many epochs of its own, and send a signal."""
    before = reports(zeusrun)
    child = zeusrun.start("submit", job_file)
    wait_for(lambda: reports(zeusrun) != before and reports(zeusrun) >= epochs)
    child.send_signal(number)
    seen, _ = child.communicate(timeout=300)
    return child.returncode, seen


def reports(zeusrun):
    path = zeusrun.run_dir() / "metrics.jsonl"
    return path.read_bytes().count(b'"reported"') if path.exists() else 0


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.long)]
)
def test_the_next_submit_goes_on_with_a_preempted_trial(zeusrun, number):
    first = job(zeusrun, "--again", "--reaches", "7", learning_rate={"base": 0.1})
    code, seen = preempt(zeusrun, first, number)
    (cut,) = zeusrun.history()
    assert (code, cut["status"]) == (75, "PREEMPTED")
    assert number.name in cut["reason"]
    assert "the next submit goes on with it" in " ".join(seen.split())
    assert cut["epochs"] >= 2
    assert survivors(cut) == []
    saved = json.loads((Path(cut["run_dir"]) / "checkpoints" / "last.json").read_text())
    code, result, seen = zeusrun.submit(first)
    trial = only_trial(result)
    assert (code, trial["status"], trial["trial"]) == (0, "REACHED", cut["trial"])
    assert zeusrun.history() == [trial]
    for same in ("global_batch_size", "learning_rate", "recurrence", "attempt", "run_dir"):
        assert trial[same] == cut[same]
    assert trial["preemptions"] == 1
    seen_metrics = json.loads(zeusrun("show", "job-1-1", "--metrics", "--json").stdout)["metrics"]
    assert {each["source"] for each in seen_metrics} == {"report"}
    assert f"begins after epoch {saved['epoch']} " in seen
    assert "job-1-1 was preempted and is continued" in seen
    assert trial["epochs"] == 7
    assert [point[0] for point in trial["curve"]] == [1, 2, 3, 4, 5, 6, 7]
    times = [point[1] for point in trial["curve"]]
    assert times == sorted(times)
    assert trial["time_s"] == pytest.approx(times[-1])
    assert trial["time_s"] > cut["time_s"]
    assert trial["energy_j"] > cut["energy_j"] > 0
    assert trial["cost_j"] == pytest.approx(
        0.5 * trial["energy_j"] + 0.5 * trial["max_power_w"] * trial["time_s"]
    )
    assert len(list((Path(trial["run_dir"]) / "part1").iterdir())) > 3
    logged = zeusrun("logs", "job-1-1").stdout.splitlines()
    begun = [line for line in logged if "begins after epoch" in line]
    assert [line.split()[4] for line in begun] == ["0", str(saved["epoch"])]  # of both parts


def test_a_rank_that_cannot_save_while_it_is_preempted_is_warned_of(zeusrun):
    training = zeusrun.job("fails_to_save.py", objective={"max_epochs": 1000})
    code, seen = preempt(zeusrun, training)
    (trial,) = zeusrun.history()
    assert (code, trial["status"]) == (75, "PREEMPTED")
    (warning,) = [text for text in trial["warnings"] if "its last checkpoint may be" in text]
    assert warning.endswith("OSError: [Errno 28] No space left on device")
    assert warning in " ".join(seen.split())


@pytest.mark.long  # four starts
def test_a_trial_may_be_preempted_again_and_again(zeusrun):
    first = job(zeusrun)
    for part in range(3):
        code, _ = preempt(zeusrun, first)
        (trial,) = zeusrun.history()
        assert (code, trial["status"], trial["preemptions"]) == (75, "PREEMPTED", part)


@pytest.mark.long  # two submits; choice/test_attempts.py has the rule
def test_a_preempted_trial_that_cannot_go_on_as_it_was_is_left_and_the_reason_told(zeusrun):
    preempt(zeusrun, job(zeusrun))
    changed = job(zeusrun, "--reaches", "1", objective={"target": 0.4})
    code, result, seen = zeusrun.submit(changed)
    assert (code, only_trial(result)["trial"]) == (0, "job-2-1")
    assert "job-1-1 was preempted and is not continued: the objective has changed" in seen
    assert [trial["status"] for trial in zeusrun.history()] == ["PREEMPTED", "REACHED"]


@pytest.mark.long  # a submit; launcher/supervision/test_stopping.py has the rule
def test_an_end_that_was_due_anyway_is_no_preemption(zeusrun):
    ends = job(zeusrun, "--epoch-s", "1", objective={"max_epochs": 2})
    child = zeusrun.start("submit", ends, "--quiet")
    wait_for(lambda: reports(zeusrun) >= 1)
    child.send_signal(signal.SIGTERM)  # the script is in its last epoch, or told to stop before it
    child.communicate(timeout=300)
    (trial,) = zeusrun.history()
    expected = "MISSED" if trial["epochs"] == 2 else "PREEMPTED"
    assert (trial["status"], child.returncode) == (expected, 75)


@pytest.mark.long
def test_a_launcher_that_dies_in_a_later_part_loses_nothing_of_the_earlier_ones(zeusrun):
    first = job(zeusrun)
    preempt(zeusrun, first)
    (cut,) = zeusrun.history()
    child = zeusrun.start("submit", first)
    moved = Path(cut["run_dir"]) / "part1" / "metrics.jsonl"  # else its reports are still here
    wait_for(lambda: moved.exists() and reports(zeusrun) >= 2)
    child.kill()
    child.communicate(timeout=300)
    code, _, _ = zeusrun.submit(zeusrun.job())
    lost, trial = zeusrun.history()
    assert (code, trial["status"]) == (0, "REACHED")
    assert (lost["status"], lost["trial"]) == ("LOST", cut["trial"])
    assert lost["epochs"] > cut["epochs"]
    assert (lost["energy_j"] or 0) >= (cut["energy_j"] or 0)
    assert lost["time_s"] > cut["time_s"]


def test_a_submit_that_died_at_going_on_does_not_keep_the_next_one_from_it(zeusrun):
    first = job(zeusrun, "--again", "--reaches", "5")
    preempt(zeusrun, first)
    (cut,) = zeusrun.history()
    reopen_run(RunPaths(Path(cut["run_dir"])))
    code, result, _ = zeusrun.submit(first)
    trial = only_trial(result)
    assert (code, trial["trial"], trial["epochs"]) == (0, cut["trial"], 5)


def test_a_launcher_that_is_killed_while_it_is_preempted_has_preempted_its_trial(zeusrun):
    first = job(zeusrun, "--epoch-s", "5", launch={"grace_period_s": 60})
    child = zeusrun.start("submit", first)
    wait_for(lambda: reports(zeusrun) >= 1)
    live = zeusrun.run_dir() / "live.json"
    child.send_signal(signal.SIGTERM)
    wait_for(lambda: json.loads(live.read_text())["preempted"])
    child.kill()
    child.communicate(timeout=300)
    code, result, _ = zeusrun.submit(job(zeusrun, "--reaches", "2"))
    trial = only_trial(result)
    assert (code, trial["trial"], trial["preemptions"]) == (0, "job-1-1", 1), trial["reason"]


def test_attempts_and_their_causes_are_counted_over_a_preemption(zeusrun):
    fails = zeusrun.job(
        "fails_in_attempts.py",
        args=["exit", "train"],
        policy={"name": "fixed"},
        objective={"max_epochs": 1000},
    )
    child = zeusrun.start("submit", fails)
    sidecar = zeusrun.run_dir("job-1-2") / "metrics.jsonl"
    wait_for(lambda: sidecar.exists() and b'"reported"' in sidecar.read_bytes())
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    code, result, seen = zeusrun.submit(fails)
    assert (code, only_trial(result)["trial"]) == (3, "job-1-2")
    assert "the same error again, so there is no other attempt" in " ".join(seen.split())
    first, second = zeusrun.history()
    assert (first["status"], second["status"]) == ("FAILED", "FAILED")
    assert first["cause"] == second["cause"]
    assert second["preemptions"] == 1


def test_a_preempted_trial_that_is_cancelled_does_not_go_on(zeusrun):
    first = job(zeusrun)
    preempt(zeusrun, first)
    (cut,) = zeusrun.history()
    done = zeusrun("cancel", "job-1-1")
    reason = "cancelled by 'zeusrun cancel' after it was preempted"
    assert (done.returncode, done.stdout) == (0, f"job-1-1 is CANCELLED: {reason}\n")
    (ended,) = zeusrun.history()
    changed = {name for name in cut if cut[name] != ended[name]}
    assert changed == {"status", "reason", "reason_code", "finished_at"}
    assert json.loads((Path(cut["run_dir"]) / "trial.json").read_text())["status"] == "CANCELLED"
    again = zeusrun("cancel", "job-1-1").stdout
    assert again == f"job-1-1 had already ended: {reason}\n"
    code, result, _ = zeusrun.submit(job(zeusrun, "--reaches", "1"))
    assert (code, only_trial(result)["trial"]) == (0, "job-2-1")


def test_a_preempted_trial_that_another_process_is_at_is_not_cancelled(zeusrun):
    preempt(zeusrun, job(zeusrun))
    (cut,) = zeusrun.history()
    lock = RunLock(RunPaths(Path(cut["run_dir"])))
    assert lock.acquire()
    done = zeusrun("cancel", "job-1-1")
    lock.release()
    assert (done.returncode, zeusrun.history()) == (75, [cut])
    assert "continued by another process; cancel it again" in " ".join(done.stderr.split())


def test_a_dry_run_shows_the_trial_that_would_go_on(zeusrun):
    first = job(zeusrun)
    preempt(zeusrun, first)
    dry = json.loads(zeusrun("submit", first, "--dry-run", "--json").stdout)
    assert (dry["trial"]["trial"], dry["trial"]["preemptions"]) == ("job-1-1", 1)
    assert zeusrun.history()[0]["status"] == "PREEMPTED"


@pytest.mark.long  # three submits; launcher/test_attempt.py has the rule
def test_a_trial_that_cannot_be_started_again_keeps_what_it_took_and_may_go_on_later(zeusrun):
    workdir = zeusrun.folder / "32"
    workdir.mkdir()
    first = job(zeusrun, "--again", "--reaches", "5", workdir=str(zeusrun.folder / "${batch_size}"))
    preempt(zeusrun, first)
    (cut,) = zeusrun.history()
    workdir.rmdir()
    code, _, seen = zeusrun.submit(first)
    (kept,) = zeusrun.history()
    assert (code, kept["status"]) == (5, "PREEMPTED")
    assert "torchrun could not be started" in seen
    for same in ("time_s", "energy_j", "epochs", "curve", "steps"):
        assert kept[same] == cut[same]
    workdir.mkdir()
    code, result, _ = zeusrun.submit(first)
    trial = only_trial(result)
    assert (code, trial["trial"], trial["preemptions"]) == (0, cut["trial"], 2)


def test_a_preempted_trial_that_saved_nothing_is_run_again_and_both_submits_say_so(zeusrun):
    endless = zeusrun.job(args=["--gain", "0"], objective={"max_epochs": 1000})
    code, seen = preempt(zeusrun, endless)
    told = " ".join(seen.split())
    assert code == 75
    assert "it will start from the beginning: there is no checkpoint in " in told
    assert "the next submit runs it again from its beginning" in told
    again = zeusrun.job(objective={"max_epochs": 1000})
    code, result, seen = zeusrun.submit(again)
    trial = only_trial(result)
    assert (code, trial["trial"]) == (0, "job-1-1")
    assert not any("from the beginning" in warning for warning in trial["warnings"])
    assert "was preempted and starts from the beginning: it saved no checkpoint" in " ".join(
        seen.split()
    )


@pytest.mark.long
@pytest.mark.parametrize("restores", ["both", "weights", "nothing"])
def test_what_a_resumed_training_took_goes_by_what_it_restored_not_by_its_numbers(
    zeusrun, restores
):
    """1,000 samples and 20 steps an epoch, 0.14 of accuracy; its file is in the run directory."""
    training = zeusrun.job(
        "resumes.py",
        args=["--restores", restores],
        objective={"metric": "accuracy", "target": 0.95, "max_epochs": 1000},
        metrics={"source": "stdout", "pattern": r"epoch (?P<epoch>\d+) accuracy (?P<accuracy>.*)"},
        launch={"nproc_per_node": 1},
        batch_size={"default": 50, "candidates": [50]},
    )
    child = zeusrun.start("submit", training)
    log = zeusrun.run_dir() / "logs" / "rank0.log"
    wait_for(lambda: log.exists() and "epoch 3" in log.read_text())
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    (cut,) = zeusrun.history()
    done = len(cut["curve"])
    _, result, _ = zeusrun.submit(training)
    trial = only_trial(result)
    goes_on = restores != "nothing"
    assert (trial["status"], trial["epochs"]) == ("REACHED", 7)
    assert [point[0] for point in trial["curve"]] == [*range(1, 8)]
    trained = 7 if goes_on else 7 + done
    assert trial["samples"] == trial["whole_samples"] == 1000 * trained
    assert 20 * trained <= trial["steps"] < 20 * trained + 20
    told = " ".join(zeusrun("show", "job-1-1").stdout.split())
    assert ("it began anew" in told) is not goes_on
    assert any("numbered from 1 again" in each for each in trial["warnings"]) is (
        restores == "weights"
    )


@pytest.mark.long
def test_a_continued_run_by_samples_counts_those_of_all_its_parts(zeusrun):
    training = zeusrun.job(
        "evaluates_by_steps.py",
        args=["--batch-size", "${batch_size}"],
        objective={"metric": "accuracy", "target": 4},
        launch={"nproc_per_node": 1},
        batch_size={"default": 16, "candidates": [16]},
    )
    code, _ = preempt(zeusrun, training, epochs=4)
    (cut,) = zeusrun.history()
    assert (code, cut["status"]) == (75, "PREEMPTED")
    assert cut["samples"] >= 4 * 160
    code, result, seen = zeusrun.submit(training)
    trial = only_trial(result)
    assert (code, trial["preemptions"]) == (0, 1)
    done = cut["samples"] + 4 * 1920  # the script saved nothing
    assert trial["reason"] == f"accuracy 4 after {done:,} samples"
    shown = [
        int(each.replace(",", "")) for each in re.findall(r"([\d,]+) samples · accuracy", seen)
    ]
    assert shown
    assert min(shown) > cut["samples"]
    points = [(point[0], point[1]) for point in trial["by_samples"]]
    assert points == sorted(points)
    assert (done, 4.0) in [(point[0], point[3]) for point in trial["by_samples"]]
    assert trial["whole_samples"] == points[-1][0]

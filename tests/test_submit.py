"""One submit, end to end, with real ranks; where ranks miss each other, also with the real torchrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import CHILDREN
from tests.runs import (
    agent_of,
    has_ended,
    only_trial,
    start_and_wait,
    survivors,
    wait_for,
    watchdog_of,
)
from zeusrun.analysis.estimates import SAVED
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.trial import Trial, TrialStatus


@pytest.mark.torchrun
def test_a_good_training_reaches_its_target_and_is_recorded(zeusrun):
    job = zeusrun.job(
        args=["--see", "--epoch-s", "0.6"],  # or no energy could be estimated
        learning_rate={"base": 0.1},
        launch={"nproc_per_node": 2},
    )
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, result["reached"], result["exit_code"]) == (0, True, 0)
    assert (trial["status"], trial["epochs"], trial["best_metric"]) == ("REACHED", 2, 0.6)
    assert (trial["global_batch_size"], trial["world_size"]) == (32, 2)
    assert trial["cost_j"] == pytest.approx(
        0.5 * trial["energy_j"] + 0.5 * trial["max_power_w"] * trial["time_s"]
    )
    assert trial["energy_source"] in {"estimated", "counter"}
    assert trial["startup_s"] > 0
    assert [point[0] for point in trial["curve"]] == [1, 2]
    assert zeusrun.history() == [trial]
    run_dir = Path(trial["run_dir"])
    kept = json.loads((run_dir / "trial.json").read_text())
    assert {**kept, **dict.fromkeys(SAVED)} == {"version": 1, **trial}
    assert {path.name for path in run_dir.iterdir()} >= {"job.yaml", "metrics.jsonl", "power.csv"}
    assert run_dir.stat().st_mode & 0o777 == 0o700
    log = (run_dir / "logs" / "rank1.log").read_text()
    for told in (
        "ZEUSRUN_JOB=job",
        "ZEUSRUN_TRIAL=job-1-1",
        "ZEUSRUN_ATTEMPT=1",
        "ZEUSRUN_BATCH_SIZE=32",
        "ZEUSRUN_LEARNING_RATE=0.1",
        "ZEUSRUN_MAX_EPOCHS=5",
        "ZEUSRUN_METRIC=accuracy",
        "ZEUSRUN_TARGET=0.5",
        f"ZEUSRUN_CHECKPOINT_DIR={run_dir}/checkpoints",
    ):
        assert told in log
    assert "[rank0] epoch 1 of rank 0" in seen
    assert "[rank1] the end" in seen


@pytest.mark.torchrun
def test_more_options_of_torchrun_arrive_and_printed_metrics_are_still_read(zeusrun):
    options = {"log_dir": "torchrun-logs", "role": "trainer", "virtual_local_rank": True}
    (zeusrun.folder / "prints.py").write_text(
        "import os\n"
        "print('is', *map(os.environ.get, ('RANK', 'LOCAL_RANK', 'ROLE_NAME')))\n"
        "print('accuracy: 0.75')\n"
    )
    job = zeusrun.job(
        "prints.py",
        launch={"nproc_per_node": 2, "torchrun": options},
        metrics={"source": "stdout", "pattern": r"^accuracy: (?P<accuracy>\S+)"},
    )
    shown = zeusrun("submit", job, "--dry-run").stdout
    assert " --virtual-local-rank " in shown
    assert " --log-dir=torchrun-logs " in shown
    code, result, seen = zeusrun.submit(job)
    assert (code, only_trial(result)["best_metric"]) == (0, 0.75)
    assert "[rank0] is 0 0 trainer" in seen
    assert "[rank1] is 1 0 trainer" in seen
    (folder,) = (zeusrun.folder / "torchrun-logs").iterdir()
    assert folder.name.startswith(f"{only_trial(result)['trial']}_")


@pytest.mark.parametrize("option", ["typo", "tee"])
def test_an_option_that_torchrun_does_not_get_is_refused_before_anything_runs(zeusrun, option):
    job = zeusrun.job(launch={"torchrun": {option: 3}})
    for more in ([], ["--dry-run"]):
        done = zeusrun("submit", job, *more)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"'{option}'" in done.stderr
    assert zeusrun.history() == []


def test_the_next_submit_explores_below_the_default_and_says_why(zeusrun):
    job = zeusrun.job(policy={"name": "zeus"})
    zeusrun.submit(job)
    _, result, seen = zeusrun.submit(job)
    assert only_trial(result)["global_batch_size"] == 16
    assert "round 1: 16 is next below 32" in seen


@pytest.mark.parametrize(("policy", "arms"), [("fixed", [32, 32, 32]), ("grid", [32, 16, 64])])
@pytest.mark.long  # three submits each; bandit/test_every_policy.py has the rules
def test_the_job_file_names_the_policy(zeusrun, policy, arms):
    job = zeusrun.job(policy={"name": policy}, early_stop={"cost_factor": None})
    chosen = [only_trial(zeusrun.submit(job)[1])["global_batch_size"] for _ in arms]
    assert chosen == arms


@pytest.mark.long  # three submits; choice/test_choose.py has the rule
def test_a_control_run_uses_the_default_in_every_nth_recurrence(zeusrun):
    job = zeusrun.job(policy={"name": "grid", "control": 2}, early_stop={"cost_factor": None})
    runs = [only_trial(zeusrun.submit(job)[1]) for _ in range(3)]
    chosen = [(run["global_batch_size"], run["stage"]) for run in runs]
    assert chosen == [(32, "explore"), (32, "control"), (16, "explore")]
    assert "(policy.control)" in runs[1]["why"]
    assert "one recurrence in 2 runs the default" in zeusrun("submit", job, "--dry-run").stdout


def test_a_changed_target_says_what_it_kept_of_the_history(zeusrun):
    zeusrun.submit(zeusrun.job())
    easier = zeusrun.job(objective={"target": 0.2})
    kept = "history: 1 run had another target: read again from its learning curve"
    assert kept in zeusrun("submit", easier, "--dry-run").stdout
    code, _, seen = zeusrun.submit(easier)
    assert code == 0
    assert f"· {kept}" in seen


def test_a_missed_target_is_tried_again_with_another_choice_until_attempts_are_used_up(zeusrun):
    job = zeusrun.job(args=["--gain", "0.01"], attempts=2, objective={"max_epochs": 2})
    code, result, seen = zeusrun.submit(job)
    assert code == 4
    assert [t["status"] for t in result["trials"]] == ["MISSED", "MISSED"]
    size = result["trials"][1]["global_batch_size"]
    assert f"trying again with batch size {size}, attempt 2 of 2" in " ".join(seen.split())
    assert [(t["recurrence"], t["attempt"]) for t in result["trials"]] == [(1, 1), (1, 2)]
    assert len({t["global_batch_size"] for t in result["trials"]}) == 2
    assert result["trials"][0]["reason"] == "accuracy best 0.02 after 2 epochs, target 0.5"


def test_before_anything_has_reached_the_target_two_misses_ask_whether_it_is_right(zeusrun):
    job = zeusrun.job(args=["--gain", "0.01"], attempts=5, objective={"max_epochs": 2})
    code, result, seen = zeusrun.submit(job)
    assert (code, [t["status"] for t in result["trials"]]) == (4, ["MISSED", "MISSED"])
    told = " ".join(seen.split())
    assert "nothing has reached accuracy 0.5 yet (best: 0.02 with batch size 32, 0.02 with" in told
    assert "makes no other attempt (attempts is 5), because the target may be wrong" in told


_EVALUATES_IF_SMALL = """
import os, time, zeusrun
run = zeusrun.current()
for epoch in run.epochs(default=5):
    until_s = time.process_time() + 0.1
    while time.process_time() < until_s: pass
    small = int(os.environ["GLOBAL_BATCH_SIZE"]) < 32
    run.report(epoch=epoch, **{"accuracy" if small else "loss": 0.3 * epoch})
"""


def test_a_batch_size_with_which_the_script_never_evaluates_is_missed_and_avoided(zeusrun):
    (zeusrun.folder / "train.py").write_text(_EVALUATES_IF_SMALL)
    sizes = {"default": 16, "candidates": [16, 64]}
    job = zeusrun.job("train.py", batch_size=sizes, policy={"name": "grid"})
    only_trial(zeusrun.submit(job)[1])
    code, result, seen = zeusrun.submit(job)
    told = [(trial["global_batch_size"], trial["status"]) for trial in result["trials"]]
    assert (code, told) == (0, [(64, "MISSED"), (16, "REACHED")])
    assert "job-1-1 reported it with batch size 16, so the script may" in " ".join(seen.split())
    assert only_trial(zeusrun.submit(job)[1])["global_batch_size"] == 16


def test_after_the_last_epoch_nothing_is_stopped_so_the_script_can_still_save(zeusrun):
    (zeusrun.folder / "train.py").write_text("""
import time
for epoch in range(5):
    print(f"epoch {epoch + 1} accuracy {0.2 * epoch}", flush=True)
time.sleep(2)
open("saved", "w").close()
""")
    pattern = r"^epoch (?P<epoch>\d+) accuracy (?P<accuracy>\S+)"
    job = zeusrun.job("train.py", metrics={"source": "stdout", "pattern": pattern})
    code, result, seen = zeusrun.submit(job)
    assert (code, only_trial(result)["epochs"]) == (0, 4)
    assert (zeusrun.folder / "saved").is_file()
    assert "stopping" not in seen


def test_a_run_without_its_metric_is_stopped_after_three_epochs_and_not_tried_again(zeusrun):
    job = zeusrun.job(
        args=["--metric", "acuracy", "--gain", "0.01"], objective={"max_epochs": 10_000}
    )
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["cause"]) == (2, "FAILED", None)
    assert trial["reason"].startswith(
        "the first 3 epochs reported no 'accuracy', but acuracy; correct objective.metric"
    )
    goes_on = zeusrun.job(args=["--metric", "acuracy"], objective={"missing_metric": "continue"})
    code, result, _ = zeusrun.submit(goes_on)
    assert (code, only_trial(result)["reason"][:28]) == (3, "the script never reported 'a")


@pytest.mark.parametrize("how", ["stop", pytest.param("continue", marks=pytest.mark.long)])
def test_an_accuracy_in_percent_never_reaches_a_target_that_is_a_share(zeusrun, how):
    job = zeusrun.job(
        args=["--gain", "20"], objective={"max_epochs": 4, "missing_metric": how, "target": 0.7}
    )
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (trial["status"], trial["best_metric"]) == ("FAILED", None)
    assert code in {2, 3}
    assert "meets the target 0.7, but does not count" in trial["reason"]
    assert "objective: {target: 70}" in " ".join(seen.split())
    assert zeusrun.submit(job)[1]["trials"][0]["status"] == "FAILED"


def test_a_script_that_reports_trains_on_after_a_value_that_does_not_count(zeusrun):
    script = zeusrun.folder / "slips.py"
    script.write_text(
        "import zeusrun\n"
        "run = zeusrun.current()\n"
        "for epoch in run.epochs(default=4):\n"
        "    run.report(accuracy=(20.0, 0.5, 0.8, 0.9)[epoch - 1])\n"
    )
    job = zeusrun.job(
        str(script), env=None, objective={"target": 0.7}, launch={"nproc_per_node": 1}
    )
    _, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (trial["status"], trial["best_metric"], trial["epochs"]) == ("REACHED", 0.8, 3)
    assert "does not count" in seen


def test_a_share_that_is_printed_as_35_percent_is_read_rightly(zeusrun):
    script = zeusrun.folder / "cifar.py"
    script.write_text(
        "for value in (35, 71):\n"
        "    print(f'Accuracy of the network on the 10000 test images: {value} %', flush=True)\n"
    )
    job = zeusrun.job(
        str(script),
        env=None,
        objective={"metric": "accuracy", "target": 0.7},
        metrics={"source": "stdout", "pattern": r"images: (?P<accuracy>[\d.]+)"},
        launch={"nproc_per_node": 1},
    )
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["best_metric"], trial["epochs"]) == (0, 0.71, 2)


def test_a_script_that_reports_but_never_asks_for_its_batch_size_is_told(zeusrun):
    _, result, seen = zeusrun.submit(zeusrun.job(env=None))
    told = "the script has never asked for the batch size, so it seems to train with its own"
    assert told in " ".join(seen.split())
    assert [told in warning for warning in only_trial(result)["warnings"]] == [True]


@pytest.mark.long  # two trainings that wait; launcher/supervision/test_outcome.py has the rule
def test_a_run_that_times_out_after_its_target_has_reached_it(zeusrun):
    job = zeusrun.job(objective={"on_target": "continue", "max_epochs": 100_000}, timeout_s=4)
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["epochs"]) == (0, "REACHED", 2)
    assert any("timed out after 4 s; the target" in text for text in trial["warnings"])
    assert trial["shutdown_s"] >= 0


def test_placeholders_stand_for_the_choice(zeusrun):
    job = zeusrun.job(
        args=["--gain", "${target}", "--epochs", "${max_epochs}", "--see"],
        env={"MINE": "batch ${batch_size} of $$1"},
    )
    dry = json.loads(zeusrun("submit", job, "--dry-run", "--json").stdout)
    assert dry["argv"][-5:] == ["--gain", "0.5", "--epochs", "5", "--see"]
    assert dry["env"]["MINE"] == "batch 32 of $1"


def test_a_dry_run_writes_and_starts_nothing(zeusrun):
    done = zeusrun("submit", zeusrun.job(), "--dry-run")
    assert done.returncode == 0
    assert "batch size 32" in done.stdout
    assert "torchrun --nproc-per-node=1 " in done.stdout
    assert not zeusrun.home.exists()


def test_a_batch_size_of_the_users_own_is_run_once_and_recorded_as_such(zeusrun):
    job = zeusrun.job(args=["--gain", "0"], objective={"max_epochs": 1})
    code, result, seen = zeusrun.submit(job, "--batch-size", "64")
    assert code == 4
    assert "left to try" not in seen
    assert only_trial(result)["stage"] == "forced"
    assert only_trial(result)["global_batch_size"] == 64


def test_a_batch_size_outside_the_candidates_is_refused(zeusrun):
    done = zeusrun("submit", zeusrun.job(), "--batch-size", "48")
    assert done.returncode == 2
    assert "(16, 32, 64)" in done.stderr
    assert zeusrun.history() == []


def test_quiet_prints_nothing_on_success(zeusrun):
    done = zeusrun("submit", zeusrun.job(), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_on_target_continue_trains_on_and_charges_up_to_the_target(zeusrun):
    job = zeusrun.job(objective={"on_target": "continue"})
    _, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert trial["status"] == "REACHED"
    assert (trial["epochs"], trial["whole_epochs"]) == (2, 5)
    times = [point[1] for point in trial["curve"]]
    assert (trial["time_s"], trial["whole_time_s"]) == pytest.approx((times[1], times[4]))
    assert (trial["energy_j"] or 0) < trial["whole_energy_j"]  # an estimate may see no tick


def test_policy_fixed_has_nothing_else_to_try_and_says_what_could_help(zeusrun):
    job = zeusrun.job(
        args=["--gain", "0.01"], policy={"name": "fixed"}, attempts=3, objective={"max_epochs": 2}
    )
    code, result, seen = zeusrun.submit(job)
    assert (code, only_trial(result)["status"]) == (4, "MISSED")
    assert (
        "32 has not reached accuracy 0.5 (best 0.02), and policy fixed tries no other batch size; correct "
        "objective.target, raise objective.max_epochs, or choose another policy.name" in seen
    )
    assert "candidates" not in seen


def test_an_early_stop_ends_a_hopeless_trial_and_goes_on_with_another(zeusrun):
    time_only = {"eta_knob": 0}  # so short a run has no energy that can be estimated
    zeusrun.submit(zeusrun.job(objective=time_only))
    objective = {"max_epochs": 1000, **time_only}
    slow = zeusrun.job(
        args=["--gain", "0.001", "--epoch-s", "0.3"], objective=objective, attempts=2, timeout_s=5
    )
    code, result, _ = zeusrun.submit(slow)
    stopped, last = result["trials"]
    # max_epochs has changed, so nothing but the reached trial's cost bounds the first attempt
    assert (stopped["status"], "the bound of" in stopped["reason"]) == ("STOPPED", True)
    # nothing could follow the second one, so that only timeout_s ends it
    assert (code, last["reason"]) == (124, "timed out after 5 s")


def test_a_script_that_exits_7_is_a_failed_training_with_that_cause(zeusrun):
    code, result, seen = zeusrun.submit(zeusrun.job("exits_7.py", attempts=1))
    trial = only_trial(result)
    assert (code, trial["status"]) == (3, "FAILED")
    assert trial["reason"] == "rank 0: the script exited with code 7"
    assert trial["reason"] in seen


def test_two_failures_that_are_alike_are_followed_by_another_batch_size_once(zeusrun):
    code, result, seen = zeusrun.submit(zeusrun.job("exits_7.py"))
    assert (code, [trial["status"] for trial in result["trials"]]) == (3, ["FAILED"] * 3)
    assert [trial["global_batch_size"] for trial in result["trials"]] == [32, 32, 16]
    assert {trial["cause"] for trial in result["trials"]} == {"the script exited with code 7"}
    told = " ".join(seen.split())
    assert "the same error again, so there is no other attempt: rank 0: the script exi" in told


def test_a_failure_that_does_not_come_again_is_made_good_by_the_next_attempt(zeusrun):
    code, result, _ = zeusrun.submit(zeusrun.job("fails_in_attempts.py", args=["exit", "raise"]))
    assert [trial["status"] for trial in result["trials"]] == ["FAILED", "FAILED", "REACHED"]
    assert code == 0


def test_a_crash_that_cannot_be_transient_is_not_tried_again(zeusrun):
    code, result, seen = zeusrun.submit(zeusrun.job("fails_in_attempts.py", args=["import"] * 5))
    assert code == 3
    assert only_trial(result)["reason"].endswith("No module named 'there_is_no_such_module'")
    assert "there is no second attempt: the same error would occur" in " ".join(seen.split())


@pytest.mark.parametrize("instrument", [True, False])
def test_a_usage_error_is_told_in_the_scripts_own_words_and_not_tried_again(zeusrun, instrument):
    job = zeusrun.job(args=["--batch", "32"], instrument=instrument)
    code, result, _ = zeusrun.submit(job)
    reason = only_trial(result)["reason"]
    assert code == 3
    assert reason.startswith("rank 0")
    assert "exited with code 2: well.py: error: unrecognized arguments: --batch 32" in reason


@pytest.mark.torchrun
def test_a_script_that_raises_on_one_rank_names_that_rank_line_and_error(zeusrun):
    job = zeusrun.job("raises_on_rank_1.py", launch={"nproc_per_node": 2}, attempts=1)
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (3, "FAILED")
    assert trial["reason"] == (
        "rank 1 at raises_on_rank_1.py:8: ValueError: the data of rank 1 is broken"
    )
    error = json.loads((Path(trial["run_dir"]) / "error.json").read_text())
    assert (error["rank"], error["type"]) == (1, "ValueError")
    assert "zeusrun" not in error["traceback"].replace("zeusrun/tests", "").replace(
        str(CHILDREN), ""
    )
    assert "the data of rank 1 is broken" in zeusrun("show", trial["trial"]).stdout


def test_running_out_of_memory_is_told_apart_and_the_next_arm_is_tried(zeusrun):
    code, result, _ = zeusrun.submit(zeusrun.job("allocates_too_much.py", attempts=2))
    assert [t["status"] for t in result["trials"]] == ["OOM", "OOM"]
    assert "allocate" in result["trials"][0]["reason"]
    assert code == 3


def test_an_abort_after_training_has_ended_is_a_warning_and_not_a_failure(zeusrun):
    code, result, seen = zeusrun.submit(zeusrun.job("aborts_at_exit.py"))
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED")
    assert any("aborted after its script had ended" in text for text in trial["warnings"])
    assert "aborted after its script had ended" in seen


def test_a_script_that_never_reports_is_failed_and_told_how_to(zeusrun):
    code, result, _ = zeusrun.submit(zeusrun.job("says_nothing.py"))
    trial = only_trial(result)
    assert (code, trial["status"]) == (3, "FAILED")
    assert "never reported 'accuracy'" in trial["reason"]
    assert "report(accuracy=...)" in trial["reason"]


def test_a_misspelt_metric_names_those_that_were_seen(zeusrun):
    job = zeusrun.job(args=["--metric", "acuracy"], objective={"max_epochs": 2})
    code, result, seen = zeusrun.submit(job)
    assert code == 3
    assert "it reported acuracy" in only_trial(result)["reason"]
    assert "the first report has no 'accuracy'; it has acuracy" in seen


def test_steps_are_counted_once_and_nan_never_reaches_a_target(zeusrun):
    code, result, _ = zeusrun.submit(zeusrun.job("steps.py", attempts=1, objective={"target": 0.0}))
    trial = only_trial(result)
    assert (code, trial["status"]) == (4, "MISSED")
    assert trial["steps"] == 50
    assert trial["best_metric"] is None
    assert any("NaN" in text for text in trial["warnings"])


def test_without_instrumentation_the_script_runs_bare_and_is_still_judged(zeusrun):
    code, result, _ = zeusrun.submit(zeusrun.job(instrument=False))
    trial = only_trial(result)
    assert (code, trial["status"], trial["startup_s"]) == (0, "REACHED", None)
    assert "the end" in (Path(trial["run_dir"]) / "logs" / "rank0.log").read_text()


def test_a_module_is_run_as_main(zeusrun):
    (zeusrun.folder / "trainer.py").write_text((CHILDREN / "well.py").read_text())
    code, _, _ = zeusrun.submit(zeusrun.job(script=None, module="trainer"))
    assert code == 0


def test_a_trial_that_takes_too_long_is_stopped_with_124(zeusrun):
    job = zeusrun.job("ignores_sigterm.py", timeout_s=4, launch={"grace_period_s": 1})
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["reason"]) == (124, "STOPPED", "timed out after 4 s")
    assert survivors(trial) == []


@pytest.mark.parametrize(
    ("number", "script"),
    [
        (signal.SIGINT, "well.py"),
        (signal.SIGTERM, "well.py"),
        (signal.SIGHUP, "well.py"),
        (signal.SIGTERM, "ignores_sigterm.py"),
    ],
)
def test_a_signal_stops_the_training_and_still_records_it(zeusrun, number, script):
    args = ["--gain", "0.0001"] if script == "well.py" else []
    job = zeusrun.job(script, args=args, objective={"max_epochs": 100_000})
    child = start_and_wait(zeusrun, job)
    child.send_signal(number)
    child.communicate(timeout=300)
    (trial,) = zeusrun.history()
    preempted = number is signal.SIGTERM
    assert child.returncode == (75 if preempted else 128 + number)
    assert trial["status"] == ("PREEMPTED" if preempted else "CANCELLED")
    assert trial["epochs"] >= 1
    assert number.name in trial["reason"]
    assert survivors(trial) == []


def test_a_second_signal_stops_at_once(zeusrun):
    job = zeusrun.job("ignores_sigterm.py", launch={"grace_period_s": 600})
    child = start_and_wait(zeusrun, job)
    child.send_signal(signal.SIGINT)
    wait_for((zeusrun.run_dir() / "stop").exists)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=300)
    (trial,) = zeusrun.history()
    assert (child.returncode, trial["status"]) == (130, "CANCELLED")
    assert survivors(trial) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_training_that_a_stranger_ends_is_failed_and_never_a_miss(zeusrun, number):
    job = zeusrun.job(args=["--gain", "0.0001"], objective={"max_epochs": 100_000})
    child = start_and_wait(zeusrun, job)
    torchrun = agent_of(child)
    torchrun.send_signal(number)
    child.communicate(timeout=300)
    (trial,) = zeusrun.history()
    assert (child.returncode, trial["status"]) == (3, "FAILED")
    assert number.name in trial["reason"]
    assert survivors(trial) == []


def test_a_script_that_takes_a_strangers_sigterm_for_its_end_has_not_missed(zeusrun):
    child = start_and_wait(zeusrun, zeusrun.job("leaves_politely.py"))
    torchrun = agent_of(child)
    torchrun.terminate()
    child.communicate(timeout=300)
    (trial,) = zeusrun.history()
    assert (child.returncode, trial["status"]) == (3, "FAILED")
    assert trial["reason"] == "a SIGTERM that zeusrun did not send ended torchrun"
    (warning,) = trial["warnings"]  # it has no steps
    assert "count from the start of the script" in warning


def test_a_rank_that_waits_in_c_for_a_failed_one_is_not_waited_for(zeusrun):
    job = zeusrun.job("is_stuck_while_another_fails.py", launch={"nproc_per_node": 2}, attempts=1)
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (3, "OOM")
    assert trial["reason"].startswith("rank 1 at is_stuck_while_another_fails.py:")
    log = (Path(trial["run_dir"]) / "logs" / "torchrun.log").read_text()
    assert "Unable to shutdown process" not in log  # what torchrun says after 30 s


def test_the_result_of_a_submit_nobody_reads_is_still_its_exit_code(zeusrun):
    child = subprocess.Popen(
        zeusrun.argv("submit", zeusrun.job("says_nothing.py"), "--json"),
        env=zeusrun.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    child.stdout.close()
    assert child.wait(timeout=300) == 3


@pytest.mark.long  # as the one above, with another cause, which the agents' contract has, too
@pytest.mark.torchrun
def test_a_rank_that_is_killed_is_named_though_another_complains(zeusrun):
    job = zeusrun.job("dies_on_rank_1.py", launch={"nproc_per_node": 2}, attempts=1)
    _, result, _ = zeusrun.submit(job)
    assert only_trial(result)["reason"].startswith("rank 1 was ended by SIGKILL")


def test_a_restart_by_torchrun_keeps_one_trial(zeusrun):
    job = zeusrun.job("fails_once.py", launch={"max_restarts": 1})
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED")
    assert "the ranks were restarted once" in trial["warnings"]


def test_files_in_the_working_directory_shadow_nothing_of_ours(zeusrun):
    workdir = zeusrun.folder / "work"
    workdir.mkdir()
    for name in ("random.py", "json.py", "logging.py"):
        (workdir / name).write_text("raise SystemExit('shadowed')")
    code, _, _ = zeusrun.submit(zeusrun.job(workdir="work"))
    assert code == 0


def test_attempts_end_when_no_other_choice_is_left(zeusrun):
    job = zeusrun.job(
        args=["--gain", "0.01"],
        objective={"max_epochs": 1},
        batch_size={"default": 32, "candidates": [32]},
    )
    code, result, seen = zeusrun.submit(job)
    assert (code, len(result["trials"])) == (4, 1)
    assert "no other batch size is left to try for accuracy 0.5 (best 0.01)" in seen


def test_a_grandchild_that_outlives_the_training_is_ended_and_named(zeusrun):
    code, result, _ = zeusrun.submit(zeusrun.job("leaves_a_grandchild.py"))
    trial = only_trial(result)
    pid = int((Path(trial["run_dir"]) / "grandchild").read_text())
    assert code == 0
    assert has_ended(pid)
    assert any("outlived the training" in text for text in trial["warnings"])


def test_the_trial_of_a_killed_launcher_is_lost_and_its_orphans_are_ended(zeusrun):
    job = zeusrun.job("ignores_sigterm.py")
    child = start_and_wait(zeusrun, job)
    live = zeusrun.run_dir() / "live.json"
    wait_for(lambda: live.exists() and json.loads(live.read_text())["epochs"])
    child.kill()
    child.communicate(timeout=300)
    wait_for(lambda: not survivors({"run_dir": str(zeusrun.run_dir())}))  # by nobody's doing
    (zeusrun.run_dir() / "live.json.tmp").touch()  # as if it had died while it wrote
    zeusrun.submit(zeusrun.job())
    assert not (zeusrun.run_dir() / "live.json.tmp").exists()
    lost, trial = zeusrun.history()
    assert (lost["status"], lost["epochs"]) == ("LOST", 1)
    assert lost["time_s"] > 0
    assert lost["energy_j"] != 0  # unknown, or metered
    assert lost["time_s"] > 0
    assert trial["status"] == "REACHED"
    assert trial["recurrence"] == 2


@pytest.mark.parametrize("victims", [("watchdog", "launcher"), ("torchrun", "launcher")])
def test_no_rank_outlives_its_launcher_whoever_dies_with_it(zeusrun, victims):
    job = zeusrun.job("leaves_a_grandchild.py", args=["--stay"])
    child = start_and_wait(zeusrun, job)
    by_name = {"launcher": child, "torchrun": agent_of(child), "watchdog": watchdog_of(child)}
    for name in victims:
        by_name[name].kill()
    child.communicate(timeout=300)
    grandchild = int((zeusrun.run_dir() / "grandchild").read_text())
    left = {} if "watchdog" not in victims else {grandchild}  # not a rank; the next submit ends it
    wait_for(
        lambda: {each.pid for each in survivors({"run_dir": str(zeusrun.run_dir())})} <= set(left)
    )
    zeusrun.submit(zeusrun.job())
    assert has_ended(grandchild)
    assert [trial["status"] for trial in zeusrun.history()] == ["LOST", "REACHED"]


def test_two_submits_at_once_get_different_numbers(zeusrun):
    job = zeusrun.job(args=["--epoch-s", "0.5"], policy={"name": "zeus"})
    children = [zeusrun.start("submit", job) for _ in range(3)]
    assert [child.wait(timeout=300) for child in children] == [0, 0, 0]
    trials = zeusrun.history()
    assert sorted(t["recurrence"] for t in trials) == [1, 2, 3]
    assert {t["stage"] for t in trials} <= {"explore", "concurrent"}


def test_torchrun_missing_is_exit_5_and_says_how_to_install_it(zeusrun):
    program = (
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a)\n"
        "from zeusrun.cli import main\n"
        "sys.argv[0] = 'zeusrun'\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "submit", zeusrun.job()],
        env=zeusrun.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert "torch is not installed" in done.stderr
    assert "[train]" in done.stderr
    assert zeusrun.history() == []


def test_a_home_that_cannot_be_written_is_exit_6_and_says_what_to_set(zeusrun):
    zeusrun.home.write_text("a file where a directory should be")
    done = zeusrun("submit", zeusrun.job())
    assert done.returncode == 6
    assert "ZEUSRUN_HOME" in done.stderr or "history" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def small_disk(zeusrun):
    """A home on a disk of two megabytes."""
    zeusrun.home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(zeusrun.home)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield zeusrun.home
    subprocess.run(["umount", "-l", str(zeusrun.home)], check=False)


def test_a_disk_filled_by_the_training_does_not_keep_its_outcome_from_history(zeusrun, small_disk):
    code, _, _ = zeusrun.submit(zeusrun.job("fills_the_disk.py"))
    assert code == 0
    assert [t["status"] for t in zeusrun.history()] == ["REACHED"]


def test_a_training_that_prints_goes_on_while_the_disk_is_full(zeusrun, small_disk):
    code, result, seen = zeusrun.submit(zeusrun.job("fills_the_disk.py", args=["--prints"]))
    assert (code, only_trial(result)["status"]) == (0, "REACHED"), seen
    log = (zeusrun.run_dir() / "logs" / "rank0.log").read_text()
    note = r" (\d+) bytes or more are missing: the disk was full \(zeusrun\)\n"
    missing, kept = sum(map(int, re.findall(note, log))), len(re.sub(note, "", log))
    printed = "".join(f"line {n}\nwarning {n}\n" for n in range(2000))
    last = "the last warning\nthere is space again\n"
    assert missing > 0
    assert missing + kept == len(printed + last)  # also where the disk took a part
    assert log.endswith("there is space again\n")


def test_a_training_that_cannot_save_because_the_disk_is_full_says_so_and_is_not_tried_again(
    zeusrun, small_disk
):
    job = zeusrun.job("fills_the_disk.py", args=["--saves"])
    code, result, seen = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "disk_full"), seen
    assert "No space left on device" in trial["reason"]
    assert "free some space on that disk" in trial["reason"]


@pytest.mark.long  # three submits, one over 119 dead trials
def test_a_disk_too_full_for_the_history_keeps_the_outcome_for_the_next_submit(zeusrun, small_disk):
    _, result, _ = zeusrun.submit(zeusrun.job())
    history = TinyDBHistory(small_disk / "history")
    first = Trial.from_json(only_trial(result))
    history.add(
        [
            replace(first, trial=f"job-{n}-1", recurrence=n, uuid=uuid.uuid4().hex, **UNFINISHED)
            for n in range(2, 120)
        ]
    )
    code, _, seen = zeusrun.submit(zeusrun.job("fills_the_disk.py"))
    assert code == 6
    assert "job-120-1 ended as REACHED" in seen
    assert "the next submit records it" in seen
    run_dir = small_disk / "runs" / "job" / "job-120-1"
    kept = json.loads((run_dir / "trial.json").read_text())
    assert zeusrun.history()[-1]["status"] == "DISPATCHED"
    (run_dir / "ballast").unlink()
    zeusrun.submit(zeusrun.job())
    recorded, last = zeusrun.history()[-2:]
    assert {**recorded, **kept} == {"version": 1, **recorded}
    assert last["status"] == "REACHED"


UNFINISHED = {"status": TrialStatus.DISPATCHED, "run_dir": "/nowhere"}


def test_a_script_that_deletes_its_run_directory_has_failed_and_says_nothing_of_its_arm(zeusrun):
    deletes = zeusrun.job("deletes.py", args=["."], objective={"max_epochs": 1})
    code, result, _ = zeusrun.submit(deletes)
    trial = only_trial(result)
    assert (code, trial["status"], trial["cause"]) == (3, "FAILED", None)
    assert "the run directory was deleted while the training ran" in trial["reason"]
    assert zeusrun.history() == [trial]


def test_a_history_that_is_deleted_while_a_trial_runs_is_named_and_can_be_restored(zeusrun):
    deletes = zeusrun.job("deletes.py", args=["../../../history"], objective={"max_epochs": 1})
    code, _, seen = zeusrun.submit(deletes)
    assert code == 6
    assert "The history was deleted or replaced while the trial ran" in " ".join(seen.split())
    assert "`zeusrun repair --restore job` records it" in " ".join(seen.split())
    assert "lacks 1 ended trial; add what the run directories contain" in zeusrun("repair").stdout
    assert zeusrun("repair", "--restore", "job").returncode == 0
    assert [trial["status"] for trial in zeusrun.history()] == ["MISSED"]


def test_a_damaged_history_is_named_and_nothing_is_started(zeusrun):
    zeusrun.submit(zeusrun.job())
    path = zeusrun.home / "history" / "job.json"
    path.write_bytes(path.read_bytes()[:-40])
    done = zeusrun("submit", zeusrun.job())
    assert done.returncode == 6
    assert f"the history {path} is damaged" in done.stderr
    assert "`zeusrun repair --restore job`" in done.stderr
    assert not (zeusrun.run_dir("job-2-1")).exists()


def test_a_history_of_a_newer_version_is_left_alone(zeusrun):
    zeusrun.submit(zeusrun.job())
    path = zeusrun.home / "history" / "job.json"
    newer = re.sub(r'"version": ?\d+', '"version": 99', path.read_text())
    path.write_text(newer)
    done = zeusrun("submit", zeusrun.job())
    assert done.returncode == 6
    assert "newer" in done.stderr
    assert path.read_text() == newer


def test_the_json_of_a_submit_has_the_savings(zeusrun):
    _, result, _ = zeusrun.submit(zeusrun.job())
    assert result["savings"] == {
        **dict.fromkeys(("batch_size", "default_j", "pays_back_in", "note")),
        **dict.fromkeys(("share", "share_low", "share_high", "net_j", "net_low_j", "net_high_j")),
        "recurrences": 0,
    }


def test_a_script_that_nothing_reaches_is_warned_of_by_validate_and_submit(zeusrun):
    script = zeusrun.folder / "plain.py"
    script.write_text("print('training')")
    job = zeusrun.job(str(script), env=None, attempts=1)
    told = "the batch size seems never to reach the script"
    done = zeusrun("validate", job)
    assert done.returncode == 0
    assert told in done.stderr
    assert told not in done.stdout
    assert told in " ".join(zeusrun.submit(job)[2].split())


@pytest.mark.long
def test_an_epoch_that_takes_as_many_steps_with_another_batch_size_is_told(zeusrun):
    job = zeusrun.job("steps.py", attempts=1, objective={"target": 0.0})  # never asks for its size
    assert "epoch takes about" not in zeusrun.submit(job, "--batch-size", "16")[2]
    warnings = only_trial(zeusrun.submit(job, "--batch-size", "64")[1])["warnings"]
    assert any("an epoch takes about 10 steps of batch size 64 now" in text for text in warnings)

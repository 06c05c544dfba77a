"""The command, verb by verb; real trainings are in ``test_submit``."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from tests.factories import CHILDREN
from tests.factories import build_trial as trial
from zeusrun import __version__
from zeusrun.bandit.registry import POLICIES
from zeusrun.cli import VERBS, app
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.rundir.lock import RunLock
from zeusrun.trial import EnergySource, Outcome, TrialStatus

DONE = Outcome(
    TrialStatus.REACHED,
    "accuracy 0.6 in epoch 2",
    "2025-06-01T13:00:00.000+00:00",
    time_s=4.0,
    energy_j=40.0,
    energy_source=EnergySource.ESTIMATED,
    max_power_w=10.0 * len(os.sched_getaffinity(0)),  # as of this machine
    cost_j=100.0,
    epochs=2,
    best_metric=0.6,
)


@pytest.fixture
def record(zeusrun):
    """Put a trial into the history, and its run directory on disk; return it."""
    store = TinyDBHistory(zeusrun.home / "history")

    def add(recurrence, outcome=DONE, job="job", **changes):
        name = f"{job}-{recurrence}-1"
        paths = create_run(zeusrun.home, job, name)
        values = {
            "trial": name,
            "job": job,
            "recurrence": recurrence,
            "run_dir": str(paths.run_dir),
            "started_at": f"2025-06-01T12:00:{recurrence:02d}.000+00:00",
        }
        dispatched = trial(**{**values, **changes})
        store.begin(job, lambda _: dispatched)
        return dispatched if outcome is None else store.finish(name, outcome)

    return add


def test_without_arguments_the_verbs_are_listed(cli):
    _, out, err = cli()
    assert [verb for verb in VERBS["zeusrun"] if verb not in out + err] == []


ALL_VERBS = [
    (*([] if group == "zeusrun" else [group]), verb) for group in VERBS for verb in VERBS[group]
]


@pytest.mark.parametrize("verb", ALL_VERBS, ids=" ".join)
def test_every_verb_has_the_help_that_its_group_says(cli, verb):
    code, out, err = cli(*verb, "--help")
    assert (code, err) == (0, "")
    assert f"zeusrun {' '.join(verb)}" in out
    place, text = VERBS["zeusrun" if len(verb) == 1 else verb[0]][verb[-1]]
    assert text in " ".join(out.split())
    assert f"zeusrun.commands.{place.split('.')[0]}" in sys.modules


def test_verbs_without_a_help_text_are_hidden(cli):
    listed = cli("schedule", "--help")[1]
    hidden = [verb for verb, (_, text) in VERBS["schedule"].items() if not text]
    assert hidden == ["tick", "fire"]
    assert [verb for verb in hidden if f"  {verb} " in listed] == []


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["histry"], "history"), (["schedule", "pase"], "pause")]
)
def test_a_misspelt_verb_is_told_from_those_that_there_are(cli, arguments, meant):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert f"No such command '{arguments[-1]}'" in err
    if hasattr(get_command(app), "suggest_commands"):  # since Typer 0.20
        assert f"Did you mean '{meant}'" in err


COMPLETED = """
import sys
from typer.main import get_command
from zeusrun.cli import app

root = get_command(app)
context = root.make_context("zeusrun", sys.argv[1:-1], resilient_parsing=True)
name, command, rest = root.resolve_command(context, sys.argv[1:-1]) if sys.argv[2:] else (0, root, 0)
context = command.make_context(name, rest, parent=context, resilient_parsing=True) if name else context
print(*(found.value for found in command.shell_complete(context, sys.argv[-1])))
print(*sorted(name for name in sys.modules if name.startswith("zeusrun.commands.")))
"""


@pytest.mark.parametrize(
    ("typed", "found", "imported"),
    [
        (["s"], "submit show schema simulate status schedule", ""),
        (["schedule", "r"], "resume remove run-now", ""),
        (["schema", "--h"], "--help", "zeusrun.commands.job zeusrun.commands.options"),
    ],
)
def test_completion_imports_the_verb_alone_whose_options_it_completes(
    zeusrun, typed, found, imported
):
    done = subprocess.run(
        [sys.executable, "-c", COMPLETED, *typed],
        env=zeusrun.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [found, imported]


def test_the_version_is_printed(cli):
    assert cli("--version") == (0, f"zeusrun {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["nonsense"],
        ["submit"],
        ["submit", "job.yaml", "--nonsense"],
        ["submit", "job.yaml", "--batch-size", "many"],
        ["history", "--last", "0"],
        ["logs", "job-1-1", "--rank", "-1"],
        ["show"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2_and_says_so(cli, arguments):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err


def test_an_empty_history_says_how_to_begin(cli):
    code, out, err = cli("history")
    assert (code, err) == (0, "")
    assert "zeusrun submit" in out


def test_an_empty_history_is_an_empty_list_in_json(cli):
    assert cli("history", "--json") == (0, "[]\n", "")


def test_an_empty_history_is_a_header_in_csv(cli):
    _, out, _ = cli("history", "--csv")
    assert out.startswith("trial,job,recurrence,")


def test_looking_at_a_history_writes_nothing(cli, zeusrun):
    cli("history")
    assert not zeusrun.home.exists()


def test_history_shows_every_job_in_80_columns(cli, record):
    record(1)
    record(2, global_batch_size=16)
    record(1, job="other")
    code, out, _ = cli("history")
    assert code == 0
    assert [line for line in out.splitlines() if line.strip() in {"job", "other"}] != []
    assert out.count("REACHED") == 3
    assert max(map(len, out.splitlines())) <= 80


def test_history_of_one_job_shows_no_other(cli, record):
    record(1)
    record(7, job="other")
    assert "7-1" not in cli("history", "job")[1]


def test_history_takes_a_job_file_for_its_job(cli, record, zeusrun):
    record(1)
    assert "REACHED" in cli("history", zeusrun.job())[1]


@pytest.mark.parametrize("as_json", [True, False])
def test_an_unknown_job_is_exit_2_and_names_the_known_ones(cli, record, as_json):
    record(1)
    record(1, job="other")
    code, out, err = cli("history", "jbo", *(["--json"] if as_json else []))
    assert (code, out) == (2, "")
    assert "'jbo'" in err
    assert "job, other" in err


def test_what_cannot_be_a_jobs_name_is_unknown_too(cli, record):
    record(1)
    for name in ("no such job", "../job", "job/"):
        code, _, err = cli("history", name)
        assert code == 2
        assert repr(name) in err


def test_last_shows_the_last_of_each_job(cli, record):
    for recurrence in (1, 2, 3):
        record(recurrence)
    record(9, job="other")
    _, out, _ = cli("history", "--json", "--last", "1")
    assert [found["trial"] for found in json.loads(out)] == ["job-3-1", "other-9-1"]
    table = cli("history", "job", "--last", "2")[1]
    assert "1 earlier" in table
    assert table.count("REACHED") == 2


def test_history_as_json_is_the_trials_oldest_first(cli, record):
    record(1, job="b")
    record(2, job="a")
    expected = [record(3, job="b"), record(4, job="a")]
    trials = json.loads(cli("history", "--json")[1])
    assert [found["trial"] for found in trials] == ["b-1-1", "a-2-1", "b-3-1", "a-4-1"]
    assert trials[2:] == [{**found.to_json(), "saved_j": 0} for found in expected]


def test_history_as_csv_has_a_header_and_a_row_for_each_trial(cli, record):
    record(1, replace(DONE, reason='a "quoted", reason\nof two lines'))
    record(2, None)
    _, out, _ = cli("history", "--csv")
    first, second = csv.DictReader(io.StringIO(out))
    assert (first["trial"], first["status"], float(first["cost_j"])) == ("job-1-1", "REACHED", 100)
    assert first["reason"] == 'a "quoted", reason\nof two lines'
    assert (second["status"], second["cost_j"]) == ("DISPATCHED", "")


def test_json_and_csv_say_what_each_recurrence_saved(cli, record):
    record(1)
    record(2, replace(DONE, cost_j=60.0), global_batch_size=16)
    record(3, None)
    found = json.loads(cli("history", "--json")[1])
    assert [each["saved_j"] for each in found] == [0, 40, None]
    (last,) = json.loads(cli("history", "job", "--json", "--last", "1")[1])
    assert (last["trial"], last["saved_j"]) == ("job-3-1", None)
    rows = csv.DictReader(io.StringIO(cli("history", "--csv", "--last", "2")[1]))
    assert [row["saved_j"] for row in rows] == ["40.0", ""]


def test_a_running_trial_is_running_in_the_history(cli, record):
    running = record(1, None)
    lock = RunLock(create_paths(running))
    lock.acquire()
    try:
        for arguments in (["history"], ["show", "job-1-1"]):
            assert "RUNNING" in cli(*arguments)[1]
        assert json.loads(cli("history", "--json")[1])[0]["status"] == "DISPATCHED"
    finally:
        lock.release()


def test_a_trial_is_forgotten_and_remembered(cli, record):
    bad = record(1)
    record(2)
    code, out, _ = cli("history", "--forget", "job-1-1")
    assert code == 0
    assert "zeusrun history --unforget job-1-1" in out
    assert "forgotten" in cli("history")[1]
    first, second = json.loads(cli("history", "--json")[1])
    assert (first["forgotten"], second["forgotten"]) == (True, False)
    assert {**first, "forgotten": False, "saved_j": None} == {**bad.to_json(), "saved_j": None}
    assert cli("history", "--forget", "1-1")[:2] == (0, out)  # once more is fine
    told = json.loads(cli("history", "--unforget", "job-1-1", "--json")[1])
    assert told == bad.to_json()
    assert cli("history", "--unforget", "job-1-1")[:2] == (0, "job-1-1 is learned from again\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--forget", "job-9-1"], "job has no run 9-1"),
        (["--forget", "job"], "job is a job; name one of its trials"),
        (["--forget", "job-2-1"], "job-2-1 has not ended"),
        (["--unforget", "job-2-1"], "job-2-1 has not ended"),
        (["--forget", "job-1-1", "--unforget", "job-1-1"], "go alone"),
        (["job", "--forget", "job-1-1"], "go alone"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_forgotten_is_exit_2_and_says_why(cli, record, arguments, told):
    record(1)
    record(2, None)
    code, out, err = cli("history", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_nothing_is_learned_from_a_forgotten_trial(cli, record, zeusrun):
    job = zeusrun.job()
    record(1, world_size=1, max_epochs=5)
    cli("history", "--forget", "job-1-1")
    told = cli("explain", job)[1]
    assert "1 trial forgotten by 'history --forget' (REACHED): left out" in told
    beliefs = json.loads(cli("explain", job, "--json")[1])
    assert {(each["trials"], each["cost_j"]) for each in beliefs} == {(0, None)}


@pytest.mark.parametrize("columns", ["80", "100"])
def test_no_help_is_cut_short(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in ([], ["gpu"], ["schedule"], ["history"], ["submit"]):
        assert "..." not in cli(*arguments, "--help")[1].replace("[ARGS]...", "")


def test_a_corrupt_history_is_exit_6(cli, record, zeusrun):
    record(1)
    path = zeusrun.home / "history" / "job.json"
    path.write_bytes(path.read_bytes()[:-30])
    code, _, err = cli("history")
    assert code == 6
    assert str(path) in err


def test_a_corrupt_history_hides_no_healthy_one(cli, record, zeusrun):
    record(1)
    record(1, job="other")
    (zeusrun.home / "history" / "job.json").write_text("{")
    code, out, err = cli("history")
    assert code == 6
    assert "other" in out
    assert "job.json" in err


def test_show_understands_the_run_that_the_table_shows_unless_two_jobs_have_it(cli, record):
    record(1)
    assert "job-1-1" in cli("show", "1-1")[1]
    record(1, job="other")
    code, _, err = cli("show", "1-1")
    assert code == 2
    assert "JOB-RUN" in err


def test_the_logs_of_a_run_whose_directory_is_gone_say_so(cli, record):
    shutil.rmtree(record(1).run_dir)
    code, _, err = cli("logs", "job-1-1")
    assert code == 2
    assert "is gone" in err
    assert "(gone)" in " ".join(cli("show", "job-1-1")[1].split())


def test_json_and_csv_exclude_each_other(cli):
    assert cli("history", "--json", "--csv")[0] == 2


def test_a_python_script_is_not_a_job_file(cli, zeusrun):
    (zeusrun.folder / "train.py").write_text("print(1)")
    code, _, err = cli("validate", "train.py")
    assert code == 2
    assert "is a Python script" in err


def test_a_home_that_no_user_has_is_exit_6_and_says_what_to_set(cli, monkeypatch):
    monkeypatch.setenv("ZEUSRUN_HOME", "~nobody-of-that-name/zeusrun")
    code, _, err = cli("history")
    assert code == 6
    assert "set ZEUSRUN_HOME" in err


def test_a_folder_named_like_the_job_does_not_stand_in_its_way(cli, record, zeusrun):
    ran = record(1)
    zeusrun.job()
    (Path(ran.run_dir) / "job.yaml").write_text((zeusrun.folder / "job.yaml").read_text())
    (zeusrun.folder / "job").mkdir()
    code, out, _ = cli("explain", "job")
    assert code == 0
    assert "accuracy 0.5" in out


def test_show_tells_all_of_a_trial(cli, record):
    shown = record(1)
    code, out, _ = cli("show", "job-1-1")
    assert code == 0
    for words in ("job-1-1", "REACHED", "accuracy 0.6 in epoch 2", "40.0 J (estimated)"):
        assert words in out
    assert shown.run_dir in out.replace("\n", "").replace(" ", "")


def test_show_takes_a_job_for_its_last_trial(cli, record):
    record(1)
    record(2)
    assert "job-2-1" in cli("show", "job")[1]


def test_show_as_json_is_the_trial(cli, record):
    shown = record(1)
    assert json.loads(cli("show", "job-1-1", "--json")[1]) == shown.to_json()


def test_show_of_a_crash_ends_with_its_traceback(cli, record):
    failed = record(1, replace(DONE, status=TrialStatus.FAILED, reason="rank 0: ValueError: [/b]"))
    error = {"traceback": "Traceback (most recent call last):\nValueError: [/b] broken\n"}
    (Path(failed.run_dir) / "error.json").write_text(json.dumps(error))
    code, out, _ = cli("show", "job-1-1")
    assert code == 0
    assert out.endswith("Traceback (most recent call last):\nValueError: [/b] broken\n")


@pytest.mark.parametrize("verb", ["show", "logs", "explain"])
def test_an_unknown_trial_is_exit_2_and_says_where_to_look(cli, record, verb):
    record(1)
    code, out, err = cli(verb, "job-9-9")
    assert (code, out) == (2, "")
    assert "zeusrun history" in err


def test_a_run_that_there_is_not_is_told_with_those_of_its_job(cli, record):
    record(1)
    record(2)
    _, _, err = cli("show", "job-99-1")
    assert "job has no run 99-1; its runs are 1-1, 2-1" in err
    for recurrence in range(3, 12):
        record(recurrence)
    assert "its newest runs are 4-1, 5-1" in cli("show", "job-99-1")[2]


def test_a_blank_line_parts_the_jobs_of_a_history(cli, record):
    record(1)
    record(1, job="other")
    out = cli("history")[1]
    before, after = out.split("\nother")
    assert before.endswith("\n")
    assert not before.startswith("\n")
    assert not after.endswith("\n\n")


EVIL = "\x1b]0;not yours\x1b\\\x9b2J\u202e"


def test_what_scripts_have_written_is_shown_and_not_obeyed(cli, record):
    failed = record(1, replace(DONE, reason=f"=1+1 {EVIL}", best_metric=-1.0), metric=EVIL)
    (Path(failed.run_dir) / "logs" / "rank0.log").write_text(f"{EVIL}\x1b[31mred\tword\n")
    shown = [cli("show", "job-1-1"), cli("history", "--csv"), cli("logs", "job-1-1")]
    shown += [cli("history", "--json"), cli("cancel", "job-1-1")]
    for code, out, _ in shown:
        assert code == 0
        assert not set("\x1b\x9b\u202e\x07") & set(out), out
    (row,) = csv.DictReader(io.StringIO(shown[1][1]))
    assert row["reason"] == r"'=1+1 \x9b2J\u202e"
    assert row["best_metric"] == "-1.0"
    assert "red\tword" in shown[2][1]
    assert json.loads(shown[3][1])[0]["metric"] == EVIL


def test_raw_logs_are_the_bytes_that_were_written(record, zeusrun):
    logged = record(1)
    content = EVIL.encode() + b"\xff 10%\r50%\n"
    (Path(logged.run_dir) / "logs" / "rank0.log").write_bytes(content)
    done = subprocess.run(
        zeusrun.argv("logs", "job-1-1", "--rank", "0", "--raw"),
        env=zeusrun.environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout == content


def test_the_parts_of_a_log_are_told_apart(cli, record):
    logged = record(1)
    part = Path(logged.run_dir) / "part1" / "logs"
    part.mkdir(parents=True)
    (part / "rank0.log").write_text("before\n")
    (Path(logged.run_dir) / "logs" / "rank0.log").write_text("after\n")
    shown = "── part 1 of 2 ──\n[rank0] before\n── part 2 of 2 ──\n[rank0] after\n"
    assert cli("logs", "job-1-1") == (0, shown, "")
    assert cli("logs", "job-1-1", "--raw")[1] == "[rank0] before\n[rank0] after\n"


def test_logs_prints_what_the_ranks_printed(cli, record):
    logged = record(1)
    for rank in (0, 1):
        (Path(logged.run_dir) / "logs" / f"rank{rank}.log").write_text(f"I am {rank}\nbye")
    assert cli("logs", "job-1-1") == (
        0,
        "[rank0] I am 0\n[rank0] bye\n[rank1] I am 1\n[rank1] bye\n",
        "",
    )
    assert cli("logs", "job", "--rank", "1") == (0, "I am 1\nbye\n", "")


def test_a_rank_that_there_is_not_is_exit_2_and_says_which_there_are(cli, record):
    record(1)
    code, _, err = cli("logs", "job-1-1", "--rank", "2")
    assert code == 2
    assert "ranks 0 to 1" in err


@pytest.fixture
def followed(zeusrun, record):
    """A running trial, whose logs a process of its own follows."""
    running = record(1, None)
    paths = create_paths(running)
    lock = RunLock(paths)
    lock.acquire()
    paths.rank_log(0).write_text("one\n")
    child = zeusrun.start("logs", "job-1-1", "-f")
    assert child.stdout.readline() == "[rank0] one\n"
    yield paths, lock, child
    lock.release()
    child.kill()
    child.communicate()


def create_paths(found):
    from zeusrun.launcher.rundir.layout import RunPaths

    return RunPaths(Path(found.run_dir))


def test_logs_f_goes_on_until_the_trial_ends(followed):
    paths, lock, child = followed
    with paths.rank_log(1).open("w") as log:
        log.write("two\n")
    assert child.stdout.readline() == "[rank1] two\n"
    assert child.poll() is None
    lock.release()
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, "")


def test_logs_f_ends_with_ctrl_c_and_without_a_traceback(followed):
    _, _, child = followed
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in out


@pytest.mark.parametrize("policy", POLICIES)
def test_explain_shows_each_arm_and_what_comes_next(cli, record, zeusrun, policy):
    job = zeusrun.job(policy={"name": policy})
    code, out, _ = cli("explain", job)
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    named = [row[0] for row in rows if row and row[0] in {"16", "32", "64"}]
    assert named == ["16", "32", "64"] * 2  # its numbers, then where it stands
    assert "100%" in out
    record(1, world_size=1, max_epochs=5)
    beliefs = json.loads(cli("explain", job, "--json")[1])
    assert [(b["global_batch_size"], b["trials"]) for b in beliefs] == [(16, 0), (32, 1), (64, 0)]
    assert (beliefs[1]["reached"], beliefs[1]["epochs"]) == (1, pytest.approx(2, rel=0.05))
    low_j, high_j = beliefs[1]["cost_range_j"]
    assert low_j < beliefs[1]["cost_j"] < high_j
    assert sum(b["chance"] for b in beliefs) == pytest.approx(1)


def test_explain_says_what_it_kept_of_trials_with_another_target(cli, record, zeusrun):
    record(1, world_size=1, max_epochs=5, target=0.4)
    out = cli("explain", zeusrun.job(policy={"name": "zeus"}))[1]
    assert "· history: 1 trial had another target (0.4): read again from its learning curve" in out


def test_explain_by_name_takes_the_job_as_it_was_last_run(cli, record, zeusrun):
    from zeusrun.jobfile.spec import load_spec

    last = record(1, world_size=1, max_epochs=5)
    job = zeusrun.job()
    (Path(last.run_dir) / "job.yaml").write_text(load_spec(job).to_yaml())
    assert cli("explain", "job") == cli("explain", job)


def test_explain_is_the_same_each_time(cli, record, zeusrun):
    job = zeusrun.job()
    record(1, world_size=1, max_epochs=5)
    assert cli("explain", job) == cli("explain", job)


def test_a_dry_run_tells_command_and_environment_and_writes_nothing(cli, zeusrun):
    code, out, err = cli("submit", zeusrun.job(), "--dry-run", "--json")
    plan = json.loads(out)
    assert (code, err) == (0, "")
    assert plan["trial"]["trial"] == "job-1-1"
    assert plan["argv"][-1] == str(CHILDREN / "well.py")
    assert plan["env"]["ZEUSRUN_BATCH_SIZE"] == "32"
    assert not zeusrun.home.exists()


def test_validate_names_job_and_batch_sizes(cli, zeusrun):
    code, out, _ = cli("validate", zeusrun.job())
    assert code == 0
    assert "'job'" in out
    assert "16, 32, 64" in out


def test_validate_refuses_with_exit_2_what_submit_would_refuse(cli, zeusrun):
    job = zeusrun.job(batch_size={"default": 48})
    for arguments in (["validate", job], ["submit", job], ["explain", job]):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert f"{job}:" in err
        assert "48" in err


def test_set_overrides_a_key(cli, zeusrun):
    job = zeusrun.job()
    assert "8, 32" in cli("validate", job, "--set", "batch_size.candidates=[8, 32]")[1]
    code, _, err = cli("validate", job, "--set", "batch_size.candidate=[8]")
    assert code == 2
    assert "did you mean" in err


def test_schema_is_a_json_schema(cli):
    code, out, _ = cli("schema")
    schema = json.loads(out)
    assert code == 0
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "batch_size" in schema["properties"]


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


def run_program(zeusrun, program, *arguments, **streams):
    lines = [program, "import sys", "sys.argv[0] = 'zeusrun'", "zeusrun.cli.main()"]
    return subprocess.run(
        [sys.executable, "-c", "import zeusrun.cli\n" + "\n".join(lines), *map(str, arguments)],
        cwd=zeusrun.folder,
        env={**zeusrun.environment, "TMPDIR": str(zeusrun.folder)},
        text=True,
        check=False,
        **(streams or {"capture_output": True}),
    )


BROKEN = (
    "import zeusrun.history.tinydb.store as room\n"
    "def broken(*_):\n    raise ArithmeticError('a bug of ours')\n"
    "room.TinyDBHistory.jobs = broken"
)


def test_a_bug_is_exit_1_one_paragraph_and_a_traceback_in_a_file(zeusrun):
    done = run_program(zeusrun, BROKEN, "history")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "ArithmeticError: a bug of ours" in done.stderr
    assert "please report" in done.stderr
    (kept,) = zeusrun.folder.glob("zeusrun-bug-*.txt")
    assert str(kept) in done.stderr
    assert "Traceback" in kept.read_text()


def test_an_error_is_one_paragraph_without_a_traceback(zeusrun):
    done = zeusrun("submit", zeusrun.folder / "nothing.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("zeusrun: ")
    assert "nothing.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["history"], ["history", "--json"], ["logs", "job-1-1"], ["schema"]], ids=" ".join
)
def test_a_reader_that_has_gone_is_no_error(zeusrun, record, arguments):
    logged = record(1)
    (Path(logged.run_dir) / "logs" / "rank0.log").write_text("line\n" * 1000)
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": writer, "stderr": subprocess.PIPE}
    done = run_program(zeusrun, "", *arguments, **streams)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_training_outlives_whoever_watched_it(zeusrun):
    reader, writer = os.pipe()
    os.close(reader)
    job = zeusrun.job(args=["--see"])
    done = run_program(zeusrun, "", "submit", job, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert [found["status"] for found in zeusrun.history()] == ["REACHED"]


def test_history_piped_into_head(zeusrun, record):
    for recurrence in range(1, 40):
        record(recurrence, replace(DONE, reason="a long reason " * 400))
    command = f"{sys.executable} -m zeusrun history --json | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=zeusrun.environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b'[{"trial":', b"")


def test_output_that_a_terminal_cannot_show_is_replaced(zeusrun, record):
    record(1, None)
    done = subprocess.run(
        zeusrun.argv("history"),
        env={**zeusrun.environment, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"DISPATCHED" in done.stdout


@pytest.mark.parametrize(("number", "code"), [("SIGUSR1", 75), ("SIGINT", 130)])
def test_a_signal_that_comes_while_a_submit_still_imports_ends_it_before_it_begins(
    zeusrun, number, code
):
    program = f"""
import runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.{number})
sys.meta_path.insert(0, Finder())
sys.argv = ["zeusrun", "submit", {str(zeusrun.job())!r}]
runpy.run_module("zeusrun", run_name="__main__")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=zeusrun.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"zeusrun: job: ended by {number} before it began\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "zeusrun: there is not enough memory for zeusrun itself"),
        (OSError(28, "No space left on device", "/x"), "zeusrun: /x: No space left on device; "),
    ],
)
def test_a_shortage_is_no_bug(cli, monkeypatch, error, said):
    def fail():
        raise error

    monkeypatch.setattr("zeusrun.cli.app", fail)
    code, _, err = cli("history")
    assert (code, err.startswith(said)) == (5, True)


def test_a_bug_whose_traceback_cannot_be_kept_is_told_all_the_same(cli, monkeypatch):
    def fail():
        raise ValueError("\x1b[2Jodd")

    def refuse(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zeusrun.cli.app", fail)
    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    code, _, err = cli("history")
    assert code == 1
    assert "this is a bug in zeusrun: ValueError: odd." in err
    assert "could not be written (No space left on device); it ends in" in err
    assert "test_cli.py:" in err


def test_a_second_signal_ends_a_submit_whose_job_file_is_never_read(zeusrun):
    job = zeusrun.folder / "never.yaml"
    os.mkfifo(job)
    child = zeusrun.start("submit", str(job))
    held = os.open(job, os.O_WRONLY)  # once it reads
    while child.poll() is None:
        child.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    os.close(held)
    assert child.wait() == -signal.SIGTERM

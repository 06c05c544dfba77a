"""``history``, ``show``, ``logs``, ``status`` and ``cancel``; the last two beside real trainings."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import DONE, PREEMPTED
from tests.runs import only_trial, survivors, wait_for
from zeusrun.analysis.estimates import SAVED
from zeusrun.history.registry import remember_choice
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.trial import TrialStatus


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
    assert trials[2:] == [{**found.to_json(), **dict.fromkeys(SAVED)} for found in expected]


def test_history_as_csv_has_a_header_and_a_row_for_each_trial(cli, record):
    record(1, replace(DONE, reason='a "quoted", reason\nof two lines'))
    record(2, None)
    _, out, _ = cli("history", "--csv")
    first, second = csv.DictReader(io.StringIO(out))
    assert (first["trial"], first["status"], float(first["cost_j"])) == ("job-1-1", "REACHED", 100)
    assert first["reason"] == 'a "quoted", reason\nof two lines'
    assert (second["status"], second["cost_j"]) == ("DISPATCHED", "")


SPENT = {"price": 0.5, "currency": "EUR", "carbon_g": 300.0, "pue": 1.2}


def test_totals_are_of_all_jobs_or_of_one(cli, record):
    record(1, replace(DONE, **SPENT))
    record(2)
    record(3, None)
    record(1, replace(DONE, **SPENT), job="other")
    totals = json.loads(cli("history", "--total", "job", "--json")[1])
    assert [(total["job"], total["runs"], total["prices"]) for total in totals] == [
        ("job", 2, {"EUR": 0.5}), ("other", 1, {"EUR": 0.5}),
    ]  # fmt: skip
    assert totals[0]["unknown"] == {"energy": 0, "price": 1, "carbon": 1}
    (june,) = json.loads(cli("history", "other", "--total", "month", "--json")[1])
    assert (june["month"], june["carbon_g"], june["energy_j"]) == ("2025-06", 300.0, 40.0)
    code, out, _ = cli("history", "--total", "gpu")
    assert (code, "GPU" in out, "1.00 EUR" in out) == (0, True, True)


def test_totals_before_the_first_run_say_how_to_begin(cli, record):
    assert "zeusrun submit" in cli("history", "--total", "job")[1]
    record(1, None)
    assert "No run has ended yet" in cli("history", "--total", "job")[1]
    assert cli("history", "--total", "job", "--json")[1] == "[]\n"


def test_totals_of_a_damaged_history_do_not_say_that_no_run_has_ended(cli, record, zeusrun):
    record(1)
    (zeusrun.home / "history" / "job.json").write_text("{")
    code, out, err = cli("history", "--total", "job")
    assert (code, out) == (6, "")
    assert "is damaged" in err


@pytest.mark.parametrize("other", [["--last", "3"], ["--csv"], ["--forget", "job-1-1"]])
def test_totals_take_no_option_that_leaves_runs_out(cli, record, other):
    record(1)
    code, out, err = cli("history", "--total", "job", *other)
    assert (code, out) == (2, "")
    assert other[0] in err


def test_json_and_csv_say_what_each_recurrence_saved(cli, record):
    for number in range(1, 4):
        record(number)
    half = replace(DONE, time_s=2.0, energy_j=20.0)
    for number in range(4, 8):
        record(number, half, global_batch_size=16)
    record(8, None)
    found = json.loads(cli("history", "--json")[1])
    assert found[0]["saved_j"] == 0
    first, last = found[3], found[-1]
    assert 0 < first["saved_low_j"] < first["saved_j"] < first["saved_high_j"]
    assert [last[name] for name in SAVED] == [None] * 3
    few = json.loads(cli("history", "job", "--json", "--last", "2")[1])
    assert few == found[-2:]
    rows = list(csv.DictReader(io.StringIO(cli("history", "--csv", "--last", "2")[1])))
    assert [row["saved_j"] for row in rows] == [str(found[-2]["saved_j"]), ""]


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
    assert {**first, "forgotten": False} == {**bad.to_json(), **dict.fromkeys(SAVED)}
    assert cli("history", "--forget", "1-1")[:2] == (0, out)  # once more is fine
    told = json.loads(cli("history", "--unforget", "job-1-1", "--json")[1])
    assert told == bad.to_json()
    assert cli("history", "--forget", "job-1-1")[0] == 0
    assert cli("history", "--unforget", "job-1-1")[:2] == (0, "zeusrun learns from job-1-1 again\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--forget", "job-9-1"], "job has no run 9-1"),
        (["--forget", "job"], "job is a job; name one of its runs"),
        (["--forget", ""], "there is no run and no job called ''"),
        (["--forget", "", "--unforget", "job-1-1"], "exclude each other"),
        (["--forget", "job-2-1"], "job-2-1 has not ended"),
        (["--unforget", "job-2-1"], "job-2-1 has not ended"),
        (
            ["--forget", "job-1-1", "--unforget", "job-1-1"],
            "--forget and --unforget exclude each other",
        ),
        (["--forget", "job-1-1", "job-2-1"], "--forget and JOB exclude each other"),
        (["--unforget", "job-1-1", "job-2-1"], "--unforget and JOB exclude each other"),
        (["--forget", "job-1-1", "--last", "3"], "--forget and --last exclude each other"),
        (["job", "--forget", "job-1-1"], "--forget and JOB exclude each other"),
        (["job-1-1"], "'job-1-1' is a run, not a job: `zeusrun show job-1-1`"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_forgotten_is_exit_2_and_says_why(cli, record, arguments, told):
    record(1)
    record(2, None)
    code, out, err = cli("history", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_a_trial_that_goes_on_while_it_is_to_be_forgotten_is_not(cli, record, monkeypatch):
    going_on = record(1, None)
    cut = going_on.finish(PREEMPTED)
    monkeypatch.setattr("zeusrun.commands.runs.options.find_trial", lambda _name, _store: cut)
    code, out, err = cli("history", "--forget", "job-1-1")
    assert (code, out) == (2, "")
    assert "job-1-1 has not ended" in err


def test_nothing_is_learned_from_a_forgotten_trial(cli, record, zeusrun):
    job = zeusrun.job()
    record(1, world_size=1, max_epochs=5)
    cli("history", "--forget", "job-1-1")
    told = cli("explain", job)[1]
    assert "1 run forgotten by 'history --forget': left out" in told
    beliefs = json.loads(cli("explain", job, "--json")[1])
    assert {(each["trials"], each["cost_j"]) for each in beliefs} == {(0, None)}


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
    code, out, err = cli("status")
    assert (code, out) == (6, "")
    assert "job.json is damaged" in err
    assert "what runs of job is not shown" in err


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
    assert "are gone" in err
    assert "(gone)" in " ".join(cli("show", "job-1-1")[1].split())


def test_json_and_csv_exclude_each_other(cli):
    assert cli("history", "--json", "--csv")[0] == 2


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


def test_a_misspelt_job_is_told_from_the_one_that_is_meant(cli, record):
    record(1, job="train")
    assert "did you mean 'train'?" in cli("show", "trian")[2]
    assert "did you mean 'train-1-1'?" in cli("show", "trian-1-1")[2]


def test_an_unknown_run_of_a_known_job_is_named(cli, record):
    record(1)
    _, _, err = cli("show", "job-99-1")
    assert "job has no run 99-1; `zeusrun history job` lists its runs" in err


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


def test_logs_says_if_the_ranks_have_printed_nothing(cli, record):
    record(1)
    assert cli("logs", "job-1-1") == (0, "", "zeusrun: the ranks have printed nothing\n")
    assert cli("logs", "job", "--rank", "1") == (0, "", "zeusrun: rank 1 has printed nothing\n")


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
    out, _ = child.communicate(timeout=300)
    assert (child.returncode, out) == (0, "")


def test_logs_f_ends_with_ctrl_c_and_without_a_traceback(followed):
    _, _, child = followed
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 130
    assert "Traceback" not in out


def test_status_shows_what_runs_with_live_numbers_and_fails_if_a_server_does_not_respond(
    zeusrun, running
):
    assert "nothing runs now" in zeusrun("status").stdout
    assert json.loads(zeusrun("status", "--json").stdout) == []
    child = running()
    (found,) = json.loads(zeusrun("status", "--json").stdout)
    assert (found["trial"], found["status"], found["alive"]) == ("job-1-1", "DISPATCHED", True)
    assert (found["pid"], found["epochs"], found["last_metric"]) == (child.pid, 1, 0.1)
    assert found["time_s"] > 0
    assert found["energy_j"] != 0  # unknown, or metered
    shown = zeusrun("status").stdout
    for text in ("job-1-1", "1/5", "0.1 → 0.5", " W"):
        assert text in shown
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    remember_choice(zeusrun.home, "other", url)
    done = zeusrun("status", "--json")
    assert [each["trial"] for each in json.loads(done.stdout)] == ["job-1-1"]
    assert (done.returncode, done.stderr) == (
        6,
        (
            f"zeusrun: the server {url} (from the job file of other) does not respond: Connection "
            "refused; what runs of other is not shown. Start that server, or give the job another "
            "'history' and submit it\n"
        ),
    )
    assert zeusrun("status", "other").returncode == 6


def test_a_trial_whose_launcher_is_dead_is_told_and_recorded_by_cancel(zeusrun, running):
    child = running()
    child.kill()
    child.communicate()
    (found,) = json.loads(zeusrun("status", "job", "--json").stdout)
    assert found["alive"] is False
    for verb in (["status"], ["show", "job-1-1"], ["history"]):
        shown = zeusrun(*verb).stdout
        assert "DEAD" in shown
        assert "zeusrun was killed during job-1-1; `zeusrun repair` records it" in shown
    done = zeusrun("cancel", "job-1-1", "--json")
    assert json.loads(done.stdout)["status"] == "LOST"


def test_cancel_stops_a_trial_gently_and_waits_for_its_end(zeusrun, running):
    child = running("steps_slowly.py", objective={"target": 900.0, "max_epochs": 10_000})
    done = zeusrun("cancel", "job-1-1")
    assert done.returncode == 0, done.stderr
    assert "job-1-1 is asked to stop, within 2 s" in done.stdout
    assert "job-1-1 is CANCELLED: cancelled by 'zeusrun cancel'" in done.stdout
    seen, _ = child.communicate(timeout=300)
    assert child.returncode == 128 + signal.SIGINT
    seen = " ".join(seen.split())
    assert "another zeusrun process has asked for it: the training ends within 2 s" in seen
    assert seen.count("cancelled by 'zeusrun cancel'") == 1
    (trial,) = zeusrun.history()
    assert trial["status"] == "CANCELLED"


def test_cancel_names_no_grace_period_if_the_job_file_cannot_be_read(zeusrun, running):
    child = running("steps_slowly.py", objective={"target": 900.0, "max_epochs": 10_000})
    (zeusrun.home / "runs" / "job" / "job-1-1" / "job.yaml").write_text("{")
    done = zeusrun("cancel", "job-1-1")
    child.communicate()
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "job-1-1 is asked to stop")


def test_cancel_now_does_not_wait_for_the_grace(zeusrun, running):
    child = running(launch={"grace_period_s": 600})
    done = zeusrun("cancel", "job", "--now", "--json")
    assert json.loads(done.stdout)["status"] == "CANCELLED"
    child.communicate(timeout=300)
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


def test_cancel_of_what_has_ended_changes_nothing_and_says_so(zeusrun):
    zeusrun.submit(zeusrun.job())
    before = zeusrun.history()
    done = zeusrun("cancel", "job-1-1")
    assert done.returncode == 0
    assert done.stdout == f"job-1-1 had already ended: {before[0]['reason']}\n"
    assert zeusrun.history() == before


def test_like_repeats_a_trial_as_it_was_whatever_the_job_file_says_now(zeusrun):
    first = zeusrun.job(learning_rate={"base": 0.1})
    zeusrun.submit(first, "--batch-size", "16")
    first.write_text("name: [")
    done = zeusrun("submit", "--like", "job-1-1", "--json")
    trial = only_trial(json.loads(done.stdout.splitlines()[-1]))
    old, new = zeusrun.history()
    assert (done.returncode, new["trial"]) == (0, trial["trial"])
    for same in ("global_batch_size", "learning_rate", "metric", "target"):
        assert new[same] == old[same]
    assert (new["recurrence"], new["stage"], new["why"]) == (
        2,
        "forced",
        "as in job-1-1, by --like",
    )


def test_like_without_the_run_directory_says_what_to_do_instead(zeusrun):
    result = zeusrun.submit(zeusrun.job())[1]
    Path(only_trial(result)["run_dir"], "job.yaml").unlink()
    done = zeusrun("submit", "--like", "job-1-1")
    assert done.returncode == 2
    assert "submit the job file with --batch-size 32" in " ".join(done.stderr.split())


def test_logs_as_json_are_objects_with_rank_and_line(zeusrun):
    zeusrun.submit(zeusrun.job(args=["--see"], launch={"nproc_per_node": 2}))
    found = [json.loads(line) for line in zeusrun("logs", "job", "--json").stdout.splitlines()]
    assert {each["rank"] for each in found} == {0, 1}
    assert any(each["line"] == "ZEUSRUN_TRIAL=job-1-1" for each in found)

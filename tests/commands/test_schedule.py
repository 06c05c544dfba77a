"""``zeusrun schedule``: as a user calls it, and as cron does, with real trainings."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.runs import only_trial, start_and_wait, survivors, wait_for, wait_for_report
from zeusrun.clock import read_clock, timestamp
from zeusrun.commands.machine import describe_machine
from zeusrun.schedule.store import Occurrence, Schedules


@pytest.fixture
def schedule(zeusrun, command, tmp_path, monkeypatch):
    """Run ``zeusrun schedule`` where there is no crontab; in this process unless it starts runs."""

    def run(verb, *arguments, **env):
        env = {"PATH": str(tmp_path / "nothing"), **env}
        if verb in {"tick", "run-now"}:
            return zeusrun("schedule", verb, *arguments, **env)
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            return command("schedule", verb, *arguments)

    return run


def listed(schedule):
    done = schedule("list", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def make_due(zeusrun, name="job", seconds_ago=30.0):
    """Set a schedule to the present minute, and its past to before it: one occurrence is due.

    It comes again in a year, so that the next minute may begin during a test.
    """
    path = Schedules(zeusrun.home).path(name)
    content = json.loads(path.read_text())
    minute = read_clock() // 60 * 60
    at = datetime.fromtimestamp(minute, timezone.utc)
    expression = f"{at.minute} {at.hour} {at.day} {at.month} *"
    content["rules"]["timetable"] |= {"expression": expression, "tz": "UTC"}
    content["cursor"]["until"] = minute - seconds_ago
    path.write_text(json.dumps(content))


def firings(schedule):
    return [(each["result"], each["exit_code"]) for each in listed(schedule)[0]["firings"]]


def test_a_job_is_scheduled_shown_paused_and_removed(zeusrun, schedule):
    job = zeusrun.job(schedule={"tz": "Europe/Paris", "catch_up": "once"})
    assert "nothing is scheduled" in schedule("list").stdout
    added = schedule("add", job, "0 2 * * *")
    assert added.returncode == 0, added.stderr
    assert "job runs at 02:00 every day (Europe/Paris); the next time is" in added.stdout
    assert "there is no crontab here; run `zeusrun schedule daemon`" in flat(added.stdout)
    shown = schedule("list").stdout
    assert re.search(r"next   (\w{3} \d\d \w{3} 02:00( · )?){3}\n", shown)
    assert "it has not run yet" in shown
    (record,) = listed(schedule)
    assert record["cron"] == "0 2 * * *"
    assert record["words"] == "at 02:00 every day (Europe/Paris)"
    assert (record["overlap"], record["catch_up"]) == ("forbid", "once")
    assert [moment[10:16] for moment in record["next"]] == ["T02:00"] * 3
    assert schedule("pause", "job").returncode == 0
    assert "paused" in schedule("list").stdout
    assert listed(schedule)[0]["next"] == []
    assert "next" in schedule("resume", "job").stdout
    assert schedule("remove", "job").stdout == "job is no longer scheduled\n"
    assert listed(schedule) == []


def flat(text):
    return " ".join(text.split())


def test_the_section_of_a_job_file_has_the_rules_and_the_command_line_the_times(zeusrun, schedule):
    section = {"cron": "@weekly", "tz": "UTC", "overlap": "queue", "deadline": "2h"}
    job = zeusrun.job(schedule=section)
    assert schedule("add", job).returncode == 0
    (record,) = listed(schedule)
    assert (record["cron"], record["overlap"]) == ("0 0 * * 0", "queue")
    assert schedule("add", job, "@daily").returncode == 0
    (record,) = listed(schedule)
    assert (record["cron"], record["overlap"]) == ("0 0 * * *", "queue")
    assert record["deadline_s"] == 7200


def test_a_suggested_command_can_be_pasted_into_a_shell(zeusrun, schedule):
    job = zeusrun.job()
    done = schedule("add", job.rename(job.with_name("my job.yaml")))
    assert "zeusrun schedule add 'my job.yaml' \"0 2 * * *\"" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["add", "job.yaml"], 2, "has no schedule section; say when to run it"),
        (["add", "job.yaml", "61 * * * *"], 2, "is not a cron expression (bad minute)"),
        (
            ["add", "job.yaml", "0", "2", "a.py", "b.py"],
            2,
            'put WHEN in quotes, such as "0 2 * * *"',
        ),
        (["add", "job.yaml", "@daily", "6h"], 2, "put WHEN in quotes"),
        (["add", "job.yaml", "Daily"], 2, "'Daily' is not a cron expression; did you mean @daily?"),
        (["add", "job.yaml", "@daily", "--env", "NIX"], 2, "this variable is not set"),
        (["add", "nix.yaml", "@daily"], 2, "nix.yaml"),
        (["remove", "job"], 2, "job has no schedule; there is none yet"),
        (["run-now", "job"], 2, "job has no schedule"),
        (["pause", "../../etc/passwd"], 2, "is not a job name: it must be 1 to 64 letters"),
        (["remove", "../history/job"], 2, "is not a job name"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(zeusrun, schedule, arguments, code, said):
    zeusrun.job()
    done = schedule(*arguments)
    assert done.returncode == code
    assert said in flat(done.stderr)
    assert "Traceback" not in done.stderr


def test_a_job_file_with_a_wrong_section_says_where(zeusrun, schedule):
    done = schedule("add", zeusrun.job(schedule={"cron": "@daily", "deadline": "soon"}))
    assert done.returncode == 2
    assert "'schedule.deadline' must be a number with s, m, h or d" in flat(done.stderr)


def test_add_again_keeps_the_times_the_variables_and_a_pause(zeusrun, schedule):
    schedule("add", zeusrun.job(), "0 3 * * *", "--env", "MINE", MINE="7")
    schedule("pause", "job.yaml")
    again = schedule("add", zeusrun.job(schedule={"overlap": "allow"}))
    assert "MINE" in listed(schedule)[0]["environment"]
    assert "it is paused: `zeusrun schedule resume job`" in again.stdout
    (record,) = listed(schedule)
    assert (record["cron"], record["overlap"], record["paused"]) == ("0 3 * * *", "allow", True)


def test_one_that_cannot_be_started_or_read_keeps_no_other_from_running(zeusrun, schedule):
    for name in ("a", "b", "c"):
        schedule("add", zeusrun.job(name=name), "@daily")
        make_due(zeusrun, name)
    store = Schedules(zeusrun.home)
    gone = json.loads(store.path("a").read_text())
    store.path("a").write_text(json.dumps({**gone, "python": "/there/is/no/python"}))
    store.path("b").write_text("{")
    ticked = schedule("tick")
    assert ticked.returncode == 0
    assert "a cannot be started: /there/is/no/python: No such file" in ticked.stdout
    wait_for((zeusrun.home / "runs" / "c" / "c-1-1" / "trial.json").exists)
    shown = schedule("list")
    assert shown.returncode == 6
    assert "b.json is not a schedule" in shown.stderr
    assert "(UTC)" in shown.stdout
    by_hand = schedule("run-now", "a")
    assert by_hand.returncode == 5
    assert "/there/is/no/python cannot be started" in flat(by_hand.stderr)
    wait_for(lambda: store.read("c").firings[-1].result == "ended")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"cron": "0 2 * *"}, "job.yaml: in 'schedule':"),
        ({"tz": "Paris"}, "job.yaml: in 'schedule':"),
        ({"start_within": "1d"}, "as long as the 24h between two runs"),
        ({"start_within": "6h"}, "chooses starts by price, but no price is known"),
        ({"start_within": "soon"}, "'schedule.start_within' must be a number with s, m, h or d"),
        ({"finish_by": "07:30"}, "'schedule.finish_by' only goes with start_within"),
        ({"by": "carbon"}, "'schedule.by' only goes with start_within"),
        ({"start_within": "6h", "finish_by": "7 h"}, "'schedule.finish_by' must be a time of day"),
        ({"start_within": "6h", "by": "wind"}, "'schedule.by' must be 'price' or 'carbon'"),
    ],
)
def test_validate_knows_what_add_refuses(zeusrun, section, said):
    done = zeusrun("validate", zeusrun.job(schedule={"cron": "@daily", **section}))
    assert done.returncode == 2
    assert said in flat(done.stderr)
    assert "job.yaml" in done.stderr


def test_add_and_validate_warn_of_a_window_that_gains_nothing(cli, zeusrun):
    flat_rates = {"price": {"currency": "EUR", "per_kwh": 0.3}}
    job = zeusrun.job(schedule={"start_within": "6h"}, **flat_rates)
    code, out, err = cli("validate", job)
    assert (code, "is well-formed" in out) == (0, True)
    assert "price is the same at all times, so no later start is cheaper" in flat(err)
    code, out, _ = cli("schedule", "add", job, "0 2 * * *", "--no-cron")
    assert code == 0
    assert re.findall("! price [^!]*: start_within delays no run", flat(out))
    schedules, record = Schedules(zeusrun.home), Schedules(zeusrun.home).read("job")
    start = "at 08:55: 0.05 EUR/kWh instead of 0.3"
    begun = Occurrence(read_clock(), "ended", timestamp(), exit_code=0, start=start)
    schedules.write(replace(record, firings=(begun,)))
    out = flat(cli("schedule", "list")[1])
    assert "the target was reached; started at 08:55: 0.05 EUR/kWh instead of 0.3" in out


def test_a_run_by_hand_is_a_submit_and_no_occurrence(zeusrun, schedule):
    schedule("add", zeusrun.job(), "@yearly")
    done = schedule("run-now", "job")
    assert done.returncode == 0, done.stderr
    assert "REACHED" in done.stdout
    assert firings(schedule) == []
    (trial,) = zeusrun.history()
    assert trial["status"] == "REACHED"


def test_a_tick_starts_what_is_due_once_with_its_variables_and_its_log(zeusrun, schedule):
    schedule("add", zeusrun.job(), "@daily", "--env", "COLUMNS")
    make_due(zeusrun)
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/", "SHELL": "/bin/sh"}
    assert zeusrun("schedule", "tick", **bare).stdout == ""
    assert zeusrun("schedule", "tick", **bare).stdout == ""
    wait_for(lambda: firings(schedule)[:1] == [("ended", 0)])
    assert len(zeusrun.history()) == 1
    log = (zeusrun.home / "schedules" / "job.log").read_text()
    assert "✓ job-1-1 REACHED" in log


def test_a_start_waits_for_a_cheaper_hour_and_says_so(zeusrun, schedule):
    now = read_clock()

    def price(*rates):
        at = [datetime.fromtimestamp(now + 3600 * n, timezone.utc) for n in range(-1, 9, 2)]
        lines = [f"{when.isoformat()},{rate}" for when, rate in zip(at, rates, strict=True)]
        (zeusrun.folder / "prices.csv").write_text("\n".join(lines))

    price(0.34, 0.19, 0.5, 0.5, 0.5)
    price_file = {"csv": "prices.csv", "currency": "EUR"}
    job = zeusrun.job(price=price_file, schedule={"start_within": "3h", "tz": "UTC"})
    assert zeusrun("submit", job).returncode == 0
    schedule("add", job, "@daily")
    make_due(zeusrun)
    schedule("tick")
    (record,) = wait_for(lambda: [each for each in listed(schedule) if each["deferred"]])
    assert record["deferred"]["why"] == "0.19 EUR/kWh instead of 0.34"
    start = datetime.fromisoformat(record["deferred"]["start_at"])
    assert 0 <= start.timestamp() - now - 3600 <= 300
    said = f"{start:%H:%M}: 0.19 EUR/kWh instead of 0.34"
    assert f"{said}; due " in flat(schedule("list").stdout)
    assert re.search(rf"job starts at (\w+ )?{said}", zeusrun("status").stdout)
    (waiting,) = json.loads(zeusrun("status", "job", "--json").stdout)
    assert (waiting["state"], waiting["start_at"]) == ("deferred", start.isoformat())
    assert schedule("run-now", "job").returncode == 0
    price(0.1, 0.19, 0.5, 0.5, 0.5)
    schedule("add", job)  # now it is decided anew
    schedule("tick")
    wait_for(lambda: firings(schedule) == [("ended", 0)])
    assert f"started at {start:%H:%M}:" not in schedule("list").stdout  # it started at once
    log = (zeusrun.home / "schedules" / "job.log").read_text()
    said = r"started at (once|[\d:]+): no start until \S+ is cheaper than 0.1 EUR/kWh ──"
    assert re.search(said, log)  # a time if the machine took a minute


def test_a_run_that_fails_is_told_by_a_later_tick_and_a_good_one_is_not(zeusrun, schedule):
    schedule("add", zeusrun.job("exits_7.py", attempts=1), "@daily")
    make_due(zeusrun)
    schedule("tick")
    wait_for(lambda: firings(schedule)[:1] == [("ended", 3)])
    schedule("pause", "job")
    (told,) = schedule("tick").stdout.splitlines()
    assert "the training failed (exit code 3); see" in told
    assert schedule("tick").stdout == ""
    shown = flat(schedule("list").stdout)
    assert "failed (exit code 3)" in shown


@pytest.mark.long  # a submit that waits; launcher/queue/test_admission.py has the rule
def test_forbid_skips_a_run_whose_job_runs_already(zeusrun, schedule):
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000})
    schedule("add", job, "@yearly")
    first = start_and_wait(zeusrun, job)
    done = schedule("run-now", "job")
    assert done.returncode == 75
    assert "job is already running (job-1-1 since " in flat(done.stderr)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=300)
    assert len(zeusrun.history()) == 1


@pytest.mark.long  # two submits
def test_replace_ends_the_older_run_gently_and_runs(zeusrun, schedule):
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000})
    schedule("add", job, "@yearly")
    first = start_and_wait(zeusrun, job)
    done = zeusrun("submit", zeusrun.job(), "--overlap", "replace")
    assert done.returncode == 0, done.stderr
    first.communicate(timeout=300)
    assert first.returncode == 75
    older, newer = zeusrun.history()
    assert older["reason"] == "a newer run of the job took its place"
    assert (older["status"], newer["status"]) == ("CANCELLED", "REACHED")
    assert survivors(older) == []
    assert older["finished_at"] <= newer["started_at"]


@pytest.mark.long
def test_replace_ends_no_run_that_came_after_it(zeusrun):
    slow = zeusrun.job("ignores_sigterm.py", launch={"grace_period_s": 8})
    first = start_and_wait(zeusrun, slow)
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000}, args=["--reaches", "20"])
    second = zeusrun.start("submit", job, "--overlap", "replace")
    cancel = zeusrun.run_dir() / "cancel"
    wait_for(cancel.exists)
    third = zeusrun.start("submit", job, "--overlap", "allow")
    codes = []
    for child in (third, second, first):
        child.communicate(timeout=300)
        codes.append(child.returncode)
    assert codes == [0, 0, 75]
    cancelled = [each["trial"] for each in zeusrun.history() if each["status"] == "CANCELLED"]
    assert cancelled == ["job-1-1"]


def test_queue_waits_for_its_turn_and_a_third_run_is_skipped(zeusrun):
    go = zeusrun.folder / "go"
    args = ["--reaches-with", str(go)]
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000}, args=args)
    first = start_and_wait(zeusrun, job)
    second = zeusrun.start("submit", job, "--overlap", "queue")
    submits = zeusrun.home / "submits"
    wait_for(lambda: len(list(submits.glob("*.json"))) == 2)
    third = zeusrun("submit", job, "--overlap", "queue")
    assert third.returncode == 75
    assert "another run waits for its end" in flat(third.stderr)
    go.touch()
    for child in (first, second):
        assert child.wait(300) == 0
        child.stdout.close()
    one, two = zeusrun.history()
    assert one["finished_at"] <= two["started_at"]
    assert list(submits.glob("*.json")) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 75)],
)
def test_a_run_that_waits_can_be_ended(zeusrun, schedule, number, code):
    limits, section = {"max_epochs": 1000}, {"overlap": "queue"}
    job = zeusrun.job("checkpoints.py", objective=limits, schedule=section)
    schedule("add", job, "@yearly")
    first = start_and_wait(zeusrun, job)
    second = zeusrun.start("schedule", "run-now", "job")
    submits = zeusrun.home / "submits"
    wait_for(lambda: len(list(submits.glob("*.json"))) == 2)
    second.send_signal(number)
    said, _ = second.communicate(timeout=300)
    assert second.returncode == code
    assert f"ended by {number.name} before it began" in flat(said)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=300)
    assert len(zeusrun.history()) == 1


def test_a_signal_while_old_runs_are_removed_changes_nothing_about_the_run(zeusrun, tmp_path):
    assert zeusrun("submit", zeusrun.job(keep={"last": 1})).returncode == 0
    (zeusrun.run_dir() / "large").mkdir()
    # Removing takes as long as somebody else needs to let go of the run.
    slow = tmp_path / "sitecustomize.py"
    slow.write_text(
        "import shutil, time\nreal = shutil.rmtree\n"
        "def rmtree(path, **options):\n"
        "    if 'large' in str(path): print('removes', flush=True); time.sleep(2)\n"
        "    real(path, **options)\n"
        "shutil.rmtree = rmtree\n"
    )
    job = zeusrun.job(keep={"last": 1}, batch_size={"candidates": [32], "default": 32})
    path = f"{tmp_path}:{zeusrun.environment['PYTHONPATH']}"
    child = zeusrun.start("submit", job, PYTHONPATH=path)
    for line in child.stdout:
        if "removes" in line:
            child.send_signal(signal.SIGTERM)
            break
    child.communicate(timeout=300)
    assert child.returncode == 0
    assert [trial["status"] for trial in zeusrun.history()] == ["REACHED"] * 2


@pytest.mark.long
def test_a_killed_run_is_in_nobodys_way(zeusrun):
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000})
    first = start_and_wait(zeusrun, job)
    first.kill()
    first.communicate(timeout=300)
    code, result, seen = zeusrun.submit(zeusrun.job(), "--overlap", "forbid")
    assert (code, only_trial(result)["trial"]) == (0, "job-2-1"), seen


def test_the_daemon_starts_what_is_due_and_hands_over_when_it_is_ended(zeusrun, schedule):
    job = zeusrun.job("checkpoints.py", objective={"max_epochs": 1000})
    schedule("add", job, "@daily")
    make_due(zeusrun)
    daemon = zeusrun.start("schedule", "daemon")
    wait_for_report(zeusrun)
    second = zeusrun("schedule", "daemon")
    assert second.returncode == 75
    assert "a daemon already runs these schedules" in flat(second.stderr)
    daemon.send_signal(signal.SIGTERM)
    said, _ = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    assert said.splitlines()[0] == "zeusrun: 1 job scheduled; due runs are started every minute"
    assert said.count("started a submit of job; its output is in") == 1
    (trial,) = zeusrun.history()
    assert trial["status"] == "PREEMPTED"
    assert survivors(trial) == []
    assert firings(schedule) == [("ended", 75)]


def test_a_changed_or_broken_job_file_is_told_by_list_and_doctor(zeusrun, schedule):
    job = zeusrun.job()
    schedule("add", job, "0 2 * * *")
    assert "job.yaml" not in schedule("list").stdout
    zeusrun.job(schedule={"cron": "0 3 * * *"})
    shown = flat(schedule("list").stdout)
    assert "job.yaml has changed since; to apply that: zeusrun schedule add" in shown
    Path(job).write_text("name: other\n")
    assert "job cannot run:" in flat(schedule("list").stdout)
    broken = {"oops": {"oops": 1}, "gone.csv": {"price": {"currency": "EUR", "csv": "gone.csv"}}}
    for said, changes in broken.items():
        zeusrun.job(**changes)
        found = json.loads(zeusrun("doctor", "--json").stdout)
        (check,) = [each for each in found if each["name"] == "schedule" and not each["well"]]
        assert check["well"] is False
        assert said in check["found"]


def test_a_home_that_would_write_lines_into_the_crontab_is_refused(zeusrun, schedule, tmp_path):
    home = tmp_path / "home\n* * * * * touch evil #"
    done = schedule("add", zeusrun.job(), "@daily", ZEUSRUN_HOME=str(home))
    assert done.returncode == 2
    assert "a crontab cannot contain" in done.stderr
    assert not home.exists()


def test_what_others_may_write_runs_nothing(zeusrun, schedule):
    schedule("add", zeusrun.job(), "@daily")
    (zeusrun.home / "schedules").chmod(0o777)
    for verb in (["tick"], ["run-now", "job"], ["list"]):
        done = schedule(*verb)
        assert done.returncode == 6
        assert "can be written by everybody" in done.stderr
        assert "chmod go-w" in done.stderr
    assert "can be written by everybody" in flat(zeusrun("doctor").stdout)


def test_a_choice_that_there_is_not_is_named_without_a_prefix(cli, zeusrun):
    code, _, err = cli("submit", zeusrun.job(), "--overlap", "never")
    assert code == 2
    assert "'--overlap': 'never' is not one of" in err


def test_removing_what_is_not_scheduled_leaves_nothing(zeusrun, schedule):
    assert schedule("remove", "nosuch").returncode == 2
    assert not (zeusrun.home / "schedules").exists()


def test_without_a_crontab_entry_add_says_that_nothing_starts_it(cli, zeusrun):
    added = cli("schedule", "add", zeusrun.job(), "@daily", "--no-cron")[1]
    assert "nothing starts it: run `zeusrun schedule daemon`, or add it without" in added


def test_a_server_learns_when_a_job_runs_and_nothing_of_its_environment(zeusrun, schedule):
    assert schedule("add", zeusrun.job(), "0 2 * * *", SECRET="x").returncode == 0
    (facts,) = describe_machine(zeusrun.home)["schedules"]
    assert facts.keys() == {"job", "words", "next", "paused", "last_run"}
    assert (facts["job"], facts["last_run"]) == ("job", None)

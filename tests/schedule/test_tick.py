"""Ticks and what they start, with real files and locks; torchrun is in tests.commands.test_schedule."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.schedule.model import AT, DAY_S
from tests.schedule.ticks import fire, tick
from zeusrun.errors import BusyError, HistoryError, JobFileError, UsageError
from zeusrun.files.lock import FileLock
from zeusrun.files.private import open_log
from zeusrun.schedule import tick as ticks
from zeusrun.schedule.due import Cursor, Rules, Timetable
from zeusrun.schedule.store import Occurrence, Schedules, decode_schedule
from zeusrun.schedule.tick import start_due, start_occurrence, take, taken


def look(schedules, now):
    """Do what cron does every minute; return the sentences that are told."""
    told = []
    start_due(schedules, now, told.append)
    return told


def test_a_schedule_is_read_as_it_was_written(schedules, nightly):
    written = nightly(
        cursor=Cursor(AT, AT - 60), firings=(Occurrence(AT, "ended", "then", 4, "why"),)
    )
    assert schedules.read("digits") == written
    assert schedules.path("digits").stat().st_mode & 0o777 == 0o600
    assert schedules.jobs() == ["digits"]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"version": 0}', b"\xff", b"[" * 100_000, b'{"version": 1, "rules": 3}'],
)
def test_a_file_that_is_no_schedule_is_told(schedules, nightly, content):
    nightly()
    schedules.path("digits").write_bytes(content)
    with pytest.raises(HistoryError, match="is not a schedule of this zeusrun"):
        schedules.read("digits")
    assert len(tick(schedules, AT).messages) == 1
    schedules.remove("digits")
    assert schedules.jobs() == []


def test_every_value_of_a_wrong_kind_is_told(schedules, nightly):
    whole = nightly(firings=(Occurrence(AT, "missed", "then", why="off"),)).to_json()

    def places(value, path=()):
        yield path
        if isinstance(value, dict):
            for key, each in value.items():
                yield from places(each, (*path, key))
        if isinstance(value, list | tuple):
            for number, each in enumerate(value):
                yield from places(each, (*path, number))

    free = {"told", "at", "why", "key", "paused", "section"}  # a tick only stores or shows them
    for path in [path for path in places(whole) if path and path[-1] not in free]:
        for wrong in ([1], {"a": 1}, -1e300, True):
            copy = json.loads(json.dumps(whole))
            place = copy
            for key in path[:-1]:
                place = place[key]
            if place[path[-1]] == wrong:
                continue
            place[path[-1]] = wrong
            with pytest.raises(ValueError, match="its content is not valid"):
                decode_schedule(json.dumps(copy).encode(), "digits", Path("digits.json"))


def test_an_unknown_job_is_told_with_those_there_are(schedules, nightly):
    with pytest.raises(UsageError, match="digits has no schedule; there is none yet"):
        schedules.read("digits")
    nightly("other")
    with pytest.raises(UsageError, match="digits has no schedule; these jobs have one: other"):
        schedules.remove("digits")


def test_what_is_due_is_started_once_and_kept(schedules, nightly):
    nightly()
    assert tick(schedules, AT - 1).due == ()
    ((schedule, occurrence),) = tick(schedules, AT + 1).due
    assert (schedule.job, occurrence) == ("digits", AT)
    ran = []
    assert fire(schedules, "digits", AT, lambda s, _begun: ran.append(s.job) or 0) == 0
    assert fire(schedules, "digits", AT, lambda s, _begun: ran.append(s.job) or 0) == 75
    assert ran == ["digits"]
    assert tick(schedules, AT + 61).due == ()
    (firing,) = schedules.read("digits").firings
    assert (firing.occurrence, firing.result, firing.exit_code) == (AT, "ended", 0)
    assert list(schedules.directory.glob("*@*")) == []
    assert tick(schedules, AT + DAY_S).due[0][1] == AT + DAY_S


def test_everything_is_started_before_anything_is_told(schedules, nightly):
    nightly("a")
    nightly("b")
    (schedules.directory / "0.json").write_text("{}")  # is no schedule, which is told
    started = []

    def show(_text):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        start_due(schedules, AT, show, lambda _, schedule, *_due: started.append(schedule.job))
    assert started == ["a", "b"]


def test_an_occurrence_whose_process_never_came_up_is_started_by_the_next_tick(schedules, nightly):
    nightly()
    assert [occurrence for _, occurrence in tick(schedules, AT).due] == [AT]
    assert [occurrence for _, occurrence in tick(schedules, AT + 60).due] == [AT]


def test_of_two_processes_started_for_one_occurrence_one_runs_it(schedules, nightly, monkeypatch):
    monkeypatch.setattr("zeusrun.schedule.tick.CaughtSignals", nullcontext)  # threads have none
    nightly()
    tick(schedules, AT)
    go, ran = threading.Event(), []

    def run(_schedule, begun):
        assert schedules.read("digits").firings[0].result == "waiting"
        begun()
        ran.append(1)
        go.wait(300)
        return 0

    threads = [threading.Thread(target=fire, args=(schedules, "digits", AT, run)) for _ in range(5)]
    for thread in threads:
        thread.start()
    while not ran:
        threads[0].join(0.01)
    assert tick(schedules, AT + 60).messages == ()
    assert schedules.read("digits").firings[0].result == "running"
    go.set()
    for thread in threads:
        thread.join()
    assert ran == [1]


@pytest.mark.parametrize(
    ("error", "result", "told"),
    [
        (BusyError("digits is already running; this run is skipped"), "skipped", "did not run"),
        (JobFileError("/jobs/digits.yaml: no such file"), "ended", "no such file (exit code 2)"),
        (ZeroDivisionError("oh"), "ended", "ZeroDivisionError: oh (exit code 1)"),
    ],
)
def test_what_went_wrong_is_kept_and_told_once(schedules, nightly, error, result, told):
    nightly()
    tick(schedules, AT)

    def run(_schedule, _begun):
        raise error

    with pytest.raises(type(error)):
        fire(schedules, "digits", AT, run)
    assert schedules.read("digits").firings[0].result == result
    (sentence,) = look(schedules, AT + 60)
    assert told in sentence
    assert look(schedules, AT + 120) == []


@pytest.mark.parametrize(
    ("code", "told"), [(0, None), (3, "the training failed"), (4, "missed"), (75, "preempted")]
)
def test_cron_is_told_what_did_not_go_well_and_nothing_else(schedules, nightly, code, told):
    nightly()
    tick(schedules, AT)
    fire(schedules, "digits", AT, lambda _schedule, _begun: code)
    sentences = tick(schedules, AT + 60).messages
    assert len(sentences) == (told is not None)
    assert told is None or told in sentences[0]


def test_what_was_missed_is_told_in_one_sentence(schedules, nightly):
    nightly()
    (sentence,) = tick(schedules, AT + 3 * DAY_S + 3600).messages
    first, last = (f"2026-05-{day} 02:00" for day in (28, 31))
    assert sentence == (
        f"digits did not run 4 times from {first} to {last}: nothing ran that could start it"
    )
    assert [each.result for each in schedules.read("digits").firings] == ["missed"] * 4


def test_a_run_whose_zeusrun_was_killed_is_lost_and_told(schedules, nightly, tmp_path):
    nightly()
    tick(schedules, AT)
    program = (
        "import sys, time; from pathlib import Path\n"
        "from zeusrun.schedule.store import Schedules; from zeusrun.schedule import tick\n"
        f"tick.read_clock = lambda: {AT}\n"
        "def run(schedule, begun): print('runs', flush=True); time.sleep(600)\n"
        "schedules = Schedules(Path(sys.argv[1]))\n"
        f"lock = tick.take(schedules, 'digits', {AT})\n"
        f"tick.fire(schedules, 'digits', {AT}, lock, run)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"runs\n"
        assert tick(schedules, AT + 60).messages == ()
        child.send_signal(signal.SIGKILL)
    (sentence,) = look(schedules, AT + 120)
    assert "its zeusrun died" in sentence
    assert schedules.read("digits").firings[0].result == "lost"
    assert look(schedules, AT + 180) == []


def test_a_paused_job_is_not_started_and_what_it_left_out_is_not_caught_up(schedules, nightly):
    rules = Rules(Timetable("0 2 * * *", "UTC"), catch_up="once")
    nightly(rules=rules, paused=True)
    assert tick(schedules, AT + 60).due == ()
    schedules.update("digits", lambda found: replace(found, paused=False, cursor=Cursor(AT + 90)))
    assert tick(schedules, AT + 120).due == ()
    assert tick(schedules, AT + DAY_S).due[0][1] == AT + DAY_S


def test_one_job_that_cannot_be_read_keeps_no_other_from_running(schedules, nightly):
    nightly("a")
    nightly("b")
    nightly("c")
    schedules.path("b").write_text("{")
    ticked = tick(schedules, AT)
    assert [schedule.job for schedule, _ in ticked.due] == ["a", "c"]
    assert "b.json is not a schedule" in ticked.messages[0]


def test_a_lock_that_nobody_lets_go_of_is_told(schedules, nightly, monkeypatch):
    nightly()
    monkeypatch.setattr("zeusrun.schedule.store._LOCK_WAIT_S", 0.05)
    held = FileLock(schedules.directory / "digits.lock")
    held.acquire()
    (sentence,) = tick(schedules, AT).messages
    assert "has locked the schedule of digits and does not release it" in sentence
    held.release()


def test_the_log_begins_anew_when_it_is_long_and_old_ones_go(schedules, tmp_path):
    path = tmp_path / "digits.log"
    for number in range(6):
        os.close(open_log(path))
        path.write_bytes(b"%d" % number + b" " * (1 << 20))
    assert path.read_bytes()[:1] == b"5"
    kept = sorted(each.name for each in tmp_path.glob("digits.log*"))
    assert kept == ["digits.log", "digits.log.1"]
    assert (tmp_path / "digits.log.1").read_bytes()[:1] == b"4"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_command_names_the_interpreter_the_job_and_the_occurrence(
    schedules, nightly, monkeypatch
):
    started = []
    programs = "zeusrun.launcher.processes.programs"
    monkeypatch.setattr(f"{programs}.start_detached", lambda argv, *_: started.append(argv))
    schedule = nightly()
    with take(schedules, "digits", AT) as lock:
        start_occurrence(schedules, schedule, AT, lock)
        fire = ["schedule", "fire", "digits", f"{AT:.3f}", str(lock.fileno())]
    assert started == [["/python", "-m", "zeusrun", *fire]]


def test_a_clock_that_was_wrong_for_a_while_runs_nothing_twice(schedules, nightly):
    rules = Rules(Timetable("0 2 * * *", "UTC"), catch_up="once")
    nightly(rules=rules)
    tick(schedules, AT)
    fire(schedules, "digits", AT, lambda _schedule, _begun: 0)
    assert tick(schedules, 1000.0).due == ()  # as at boot, before the time is known
    later = tick(schedules, AT + 3660)
    assert later.due == ()
    newest = schedules.read("digits").firings[-1]
    assert (newest.occurrence, newest.result) == (AT, "ended")


def test_what_stays_wrong_is_told_once_a_day(schedules, nightly):
    nightly()
    schedules.path("digits").write_text("{")
    assert len(tick(schedules, AT).messages) == 1
    now = schedules.directory.stat().st_mtime
    assert tick(schedules, now + 60).messages == ()
    assert len(tick(schedules, now + 2 * DAY_S).messages) == 1


@pytest.mark.parametrize(
    "name", ["../history/digits", "/etc/passwd", "", "a/b", ".daemon", "x" * 70]
)
def test_a_name_that_no_job_can_have_reaches_no_file(schedules, nightly, name):
    nightly()
    for verb in (schedules.read, schedules.remove, schedules.path):
        with pytest.raises(UsageError, match="is not a job name"):
            verb(name)


def test_a_job_may_be_called_daemon(schedules, nightly):
    held = schedules.lock(".daemon.lock")
    assert held.acquire()
    nightly("daemon")
    assert tick(schedules, AT).due[0][0].job == "daemon"
    held.release()


def test_a_schedule_that_is_removed_while_it_runs_changes_nothing_about_the_run(schedules, nightly):
    nightly()
    tick(schedules, AT)

    def run(_schedule, _begun):
        schedules.remove("digits")
        return 0

    assert fire(schedules, "digits", AT, run) == 0
    assert schedules.jobs() == []


def test_a_job_that_is_paused_before_it_begins_does_not_run(schedules, nightly):
    nightly()
    tick(schedules, AT)
    schedules.update("digits", lambda found: replace(found, paused=True))
    assert fire(schedules, "digits", AT, pytest.fail) == 75
    assert schedules.read("digits").firings == ()


def test_a_long_run_is_told_however_many_were_skipped_meanwhile(schedules, nightly):
    schedule = untold = nightly(firings=(Occurrence(AT, "running", "then"),))
    for number in range(1, 150):
        schedule = schedule.note(Occurrence(AT + 60 * number, "skipped", "then", told=True))
        untold = untold.note(Occurrence(AT + 60 * number, "skipped", "then"))
    for each in (schedule, untold):
        assert (len(each.firings), each.firings[0].result) == (100, "running")
    schedule = schedule.note(Occurrence(AT, "ended", "then", 3))
    for number in range(150, 160):
        schedule = schedule.note(Occurrence(AT + 60 * number, "skipped", "then", told=True))
    schedules.write(schedule)
    assert any("the training failed" in text for text in tick(schedules, AT + 9600).messages)


def test_what_a_clock_far_ahead_has_missed_hides_nothing_that_happens_after(schedules, nightly):
    nightly()
    tick(schedules, AT - 30)
    ahead = tick(schedules, AT + 200 * DAY_S + 7200)
    assert ahead.due == ()
    assert len(schedules.read("digits").firings) == 100
    minutes = [AT - 300 + 60 * number for number in range(8)]
    due = [occurrence for now in minutes for _, occurrence in tick(schedules, now).due]
    assert due[0] == AT
    assert schedules.read("digits").firings == ()
    fire(schedules, "digits", AT, lambda _schedule, _begun: 3)
    assert "the training failed" in tick(schedules, AT + 180).messages[0]


def test_an_interpreter_that_is_gone_is_told_seldom_and_waited_for(schedules, nightly, tmp_path):
    rules = Rules(Timetable("0 2 * * *", "UTC"), catch_up="once")
    nightly(rules=rules, python=str(tmp_path / "gone"))
    now = schedules.directory.stat().st_mtime // DAY_S * DAY_S + 2 * 3600
    schedules.update("digits", lambda found: replace(found, cursor=Cursor(now - 60)))
    told = []
    for minute in range(30):
        assert start_due(schedules, now + 60 * minute, told.append) == []
    (sentence,) = told
    assert "digits cannot be started" in sentence
    assert schedules.read("digits").cursor == Cursor(now + 60 * 29, now)
    schedules.update("digits", lambda found: replace(found, cursor=Cursor(now, now, tries=3)))
    start_due(schedules, now, told.append)
    assert schedules.read("digits").cursor.tries == 3


def test_processes_that_never_begin_are_five_and_then_it_is_missed(schedules, nightly):
    nightly(rules=Rules(Timetable("0 2 * * *", "UTC"), catch_up="once"))
    ticks = [tick(schedules, AT + 60 * minute) for minute in range(30)]
    assert sum(len(each.due) for each in ticks) == 5
    (sentence,) = {text for each in ticks for text in each.messages}  # until it was told
    assert "was started for it 5 times and never began" in sentence
    assert schedules.read("digits").firings[0].result == "missed"


@pytest.mark.parametrize("catch_up", ["none", "once"])
def test_a_clock_that_is_days_behind_for_a_while_runs_nothing_twice_and_loses_nothing(
    schedules, nightly, monkeypatch, catch_up
):
    nightly(rules=Rules(Timetable("0 2 * * *", "UTC"), catch_up=catch_up))
    due = []
    behind = [AT - 5 * DAY_S + 60 * number for number in range(60, 70)]
    right = [AT + 60, AT + 120, AT + DAY_S - 60, AT + DAY_S, AT + DAY_S + 60]
    for now in [AT - 60, AT, *behind, *right]:
        monkeypatch.setattr("zeusrun.schedule.tick.read_clock", lambda now=now: now)
        for _, occurrence in tick(schedules, now).due:
            due.append(occurrence)
            fire(schedules, "digits", occurrence, lambda _schedule, _begun: 0)
    assert due == [AT, AT + DAY_S]


def test_what_was_run_by_a_clock_that_was_ahead_is_not_run_again(schedules, nightly):
    nightly(firings=(Occurrence(AT, "ended", "2026-01-01T00:00:00+00:00", 0),))
    assert tick(schedules, AT).due == ()


def test_while_a_process_is_at_an_occurrence_no_other_is_started(schedules, nightly):
    nightly()
    assert len(tick(schedules, AT).due) == 1
    lock = schedules.lock(f"digits@{AT:.3f}.lock")
    lock.acquire()
    assert tick(schedules, AT + 60).due == ()
    lock.release()
    assert len(tick(schedules, AT + 120).due) == 1


def test_what_slept_through_its_time_is_missed(schedules, nightly, monkeypatch):
    nightly()
    tick(schedules, AT)
    monkeypatch.setattr("zeusrun.schedule.tick.read_clock", lambda: AT + 3600)
    assert fire(schedules, "digits", AT, pytest.fail) == 75
    (firing,) = schedules.read("digits").firings
    assert (firing.result, firing.why) == ("missed", "nothing ran that could start it")


def test_the_copy_of_a_schedule_runs_nothing(schedules, nightly):
    nightly()
    copy = schedules.path("digits-backup")
    copy.write_bytes(schedules.path("digits").read_bytes())
    ticked = tick(schedules, AT)
    assert [schedule.job for schedule, _ in ticked.due] == ["digits"]
    assert "it belongs to digits" in ticked.messages[0]


def test_removing_a_schedule_takes_what_killed_runs_left(schedules, nightly):
    nightly()
    for job in ("digits", "digits-2"):
        (schedules.directory / f"{job}@{AT:.3f}.lock").touch()
    schedules.remove("digits")
    assert [path.name for path in schedules.directory.glob("*@*")] == [f"digits-2@{AT:.3f}.lock"]


def test_a_job_without_a_schedule_is_told_which_have_one(schedules, nightly):
    nightly()
    with pytest.raises(UsageError, match="have one: digits; did you mean 'digits'"):
        schedules.read("digit")


def test_a_process_that_has_not_begun_is_not_started_again_while_it_lives(schedules, nightly):
    nightly(rules=Rules(Timetable("0 2 * * *", "UTC"), catch_up="once"))
    kept = []  # as a process keeps what it inherits
    ticks.start_due(schedules, AT, print, lambda *due: kept.append(os.dup(due[-1].fileno())))
    assert [tick(schedules, AT + 60 * minute).due for minute in range(1, 10)] == [()] * 9
    assert schedules.read("digits").cursor.tries == 1
    os.close(*kept)
    assert [occurrence for _, occurrence in tick(schedules, AT + 600).due] == [AT]  # it has died


def test_of_ticks_at_once_one_starts_the_occurrence(schedules, nightly, tmp_path):
    slow = tmp_path / "python"  # it takes long to import
    slow.write_text(f"#!/bin/sh\necho >> {tmp_path}/started\nread _ < {tmp_path}/go\n")
    slow.chmod(0o700)
    os.mkfifo(tmp_path / "go")
    nightly(rules=Rules(Timetable("0 2 * * *", "UTC"), catch_up="once"), python=str(slow))
    told, processes = [], []
    for minute in range(3):  # and more follow while it imports
        with ThreadPoolExecutor(6) as pool:
            now = AT + 60 * minute
            begun = [pool.submit(start_due, schedules, now, told.append) for _ in range(6)]
            processes += [process for each in begun for _, process in each.result()]
    assert (told, schedules.read("digits").cursor.tries) == ([], 1)
    (process,) = processes
    (tmp_path / "go").write_text("\n")
    assert process.wait() == 0
    assert (tmp_path / "started").read_text() == "\n"


def test_only_a_tick_can_fire(cli, zeusrun):
    Schedules(zeusrun.home).directory.mkdir(parents=True)
    code, _, err = cli("schedule", "fire", "digits", AT, 0)
    assert (code, "digits has no schedule" in err) == (2, True)


def test_what_inherits_no_lock_of_the_occurrence_does_not_fire(schedules, nightly):
    nightly()
    with FileLock(schedules.directory / f"digits@{AT + DAY_S:.3f}.lock") as other:
        other.acquire()
        for descriptor in (other.fileno(), 0, -1, 99_999, 1 << 99):
            with pytest.raises(UsageError, match="run-now` runs a job now"):
                taken(schedules, "digits", AT, descriptor)

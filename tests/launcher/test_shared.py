"""Submits whose history is on a server, and the verbs that show them, over real servers."""

from __future__ import annotations

import functools
import json
import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.databases import expire_lease, lease_held
from tests.factories import Zeusrun, begin, build_trial
from tests.runs import only_trial, start_and_wait, wait_for, wait_for_report
from tests.servers import Proxy, running
from zeusrun.commands.options import find_settings
from zeusrun.commands.runs import logs, show
from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.registry import remember_choice
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.sql.store import SqlHistory
from zeusrun.launcher import heartbeat
from zeusrun.launcher.heartbeat import HeartbeatThread
from zeusrun.launcher.rundir.layout import Live, create_run, read_cancel, reserve_record, write_live
from zeusrun.maintenance.repair import read_found_trials
from zeusrun.reasons import ReasonCode
from zeusrun.redaction import MASK, Mask
from zeusrun.trial import CurvePoint, Outcome, TrialStatus


@pytest.fixture
def server(sqlite_url):
    with running(sqlite_url) as server:
        yield server
        server.history.close()


@pytest.fixture
def database(server):
    return server.history


@pytest.fixture
def job(zeusrun, server):
    """A function that writes a job file whose history is on the server."""

    def write(script="well.py", *args, **history):
        values = {"url": server.url, "wait_s": 0.2, **history}
        return zeusrun.job(script, args=args, history=values, attempts=1)

    return write


@pytest.fixture
def elsewhere(database):
    """A function that begins a trial on another machine; returns it."""

    def begin_there(recurrence=1, job="job", **values):
        name = f"{job}-{recurrence}-1"
        trial = build_trial(
            recurrence,
            job=job,
            uuid=f"{recurrence:032x}",
            run_dir=f"/home/other/runs/{job}/{name}",
            **{"host": "node-2", **values},
        )
        return begin(database, trial)

    return begin_there


def submit(zeusrun, job, *arguments):
    code, result, err = zeusrun.submit(job, *arguments)
    return code, result and only_trial(result), err


def test_a_submit_is_recorded_on_the_server_with_all_that_its_page_shows(zeusrun, job, database):
    code, trial, _ = submit(zeusrun, job())
    assert code == 0
    (stored,) = database.trials("job")
    assert stored.to_json() == {key: trial[key] for key in stored.to_json()}
    assert len(stored.uuid) == 32
    assert database.settings("job").startswith("# copied from")
    ((host, _, facts),) = database.hosts()
    assert (host, sorted(facts)) == (os.uname().nodename, ["gpus", "schedules", "version"])
    assert database.trace("job-1-1") is None or database.trace("job-1-1")["spans"]
    assert not (zeusrun.home / "history").exists()


def test_the_policy_learns_from_the_runs_of_other_machines(zeusrun, job, database, elsewhere):
    done = Outcome(TrialStatus.OOM, "out of memory", "2025-06-01T13:00:00.000+00:00")
    elsewhere(global_batch_size=32, world_size=1)
    database.finish("job-1-1", done)
    code, trial, _ = submit(zeusrun, job())
    assert (code, trial["trial"], trial["global_batch_size"]) == (0, "job-2-1", 16)


@pytest.mark.long  # three submits
def test_the_home_remembers_the_history_of_a_job(zeusrun, job, server):
    zeusrun.job("well.py", name="own")
    assert zeusrun.submit(zeusrun.folder / "own.yaml")[0] == 0
    submit(zeusrun, job())
    assert {each["trial"] for each in zeusrun.history()} == {"job-1-1", "own-1-1"}
    assert "job-1-1" in zeusrun("show", "job").stdout
    assert zeusrun("logs", "job-1-1").stdout.count("epoch") >= 2
    other = Zeusrun(zeusrun.folder / "other", zeusrun.folder)
    assert "no job called 'job'" in other("history", "job").stderr
    assert "1-1" in other("history", zeusrun.folder / "job.yaml").stdout
    assert "job-1-1" in other("show", "job-1-1", ZEUSRUN_HISTORY=server.url).stdout
    zeusrun.job()  # the job file names no history any more
    assert zeusrun.submit(zeusrun.folder / "job.yaml")[1]["trials"][0]["trial"] == "job-2-1"
    assert [each["trial"] for each in zeusrun.history("job")] == ["job-2-1"]


def test_a_training_goes_on_while_the_server_is_away(zeusrun, job, server):
    with ThreadPoolExecutor() as threads:
        away = zeusrun.folder / "away"
        submitted = job("steps_slowly.py", "--until", str(away))
        child = threads.submit(zeusrun, "submit", submitted)
        wait_for_report(zeusrun)
        server.stop()
        away.touch()
        done = child.result()
    assert done.returncode == 0, done.stderr
    assert "the result of job-1-1 waits in" in " ".join(done.stdout.split())
    assert "job-1-1 REACHED" in done.stdout
    (shown,) = zeusrun.history()
    assert shown["status"] == "REACHED"
    remember_choice(zeusrun.home, "job", None)  # as if the job file named another history now
    assert "1 write waits for" in " ".join(zeusrun("doctor").stdout.split())
    server.start()
    assert server.history.find("job-1-1").status is TrialStatus.DISPATCHED
    code, trial, _ = submit(zeusrun, job())
    assert (code, trial["trial"]) == (0, "job-2-1")
    first, second = server.history.trials("job")
    assert (first.status, second.status) == (TrialStatus.REACHED, TrialStatus.REACHED)


@pytest.mark.long
def test_a_run_whose_number_another_one_got_keeps_its_files(
    zeusrun, job, server, database, elsewhere
):
    replaced = zeusrun.folder / "replaced"
    child = start_and_wait(zeusrun, job("steps_slowly.py", "--until", str(replaced)))
    with database.engine.begin() as connection:  # an older backup is restored
        for table in ("leases", "trials", "jobs"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    elsewhere()
    replaced.touch()
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 0, out
    assert "job-1-1 is now job-2-1" in " ".join(out.split())
    assert zeusrun("logs", "job-2-1").returncode == 0
    assert "runs on node-2" in zeusrun("logs", "job-1-1").stderr
    assert json.loads(zeusrun("repair", "--json").stdout) == []
    submit(zeusrun, job())
    assert zeusrun("history", "--forget", "job-2-1").returncode == 0
    assert zeusrun("gc", "--last", "1").returncode == 0
    run_dir = zeusrun.run_dir("job-1-1")
    assert sorted(each.name for each in run_dir.iterdir()) == ["trial.json"]


def test_without_its_server_a_submit_ends_with_6_and_leaves_nothing(zeusrun, job, server):
    path = job()
    server.stop()
    done = zeusrun("submit", path)
    assert done.returncode == 6
    assert "tried for 0.2 s (history.wait_s)" in done.stderr
    assert not (zeusrun.home / "runs" / "job").exists()


def test_an_offline_submit_is_numbered_when_it_is_delivered(zeusrun, job, server, database):
    submit(zeusrun, job(), "--batch-size", "16")
    server.stop()
    code, trial, err = submit(zeusrun, job(offline="cheapest"))
    assert code == 0, err
    name = trial["trial"]
    assert name == f"job-offline-{trial['uuid'][:8]}"
    assert trial["global_batch_size"] == 16
    assert "the shared history does not respond" in trial["why"]
    run_dir = zeusrun.home / "runs" / "job" / name
    assert trial["run_dir"] == str(run_dir)
    assert f"the result of {name} waits in" in err
    shown = zeusrun.history()[-1]
    assert (shown["trial"], shown["recurrence"]) == (name, None)
    server.start()
    assert zeusrun("schedule", "tick").stdout == ""
    numbered = server.history.trials("job")[-1]
    assert (numbered.trial, numbered.uuid, numbered.run_dir) == (
        "job-2-1",
        trial["uuid"],
        str(run_dir),
    )
    assert "job-2-1" in zeusrun("show", name).stdout
    assert "epoch 2" in zeusrun("logs", "job-2-1").stdout
    assert submit(zeusrun, job())[1]["trial"] == "job-3-1"
    assert (
        zeusrun("history", "--forget", "job-2-1").returncode == 0
    )  # else it may be kept as the cheapest
    assert zeusrun("gc", "--last", "1").returncode == 0
    assert not (run_dir / "logs").exists()
    assert (run_dir / "trial.json").exists()
    assert json.loads(zeusrun("repair", "--json").stdout) == []


def test_an_unknown_job_runs_its_default_offline(zeusrun, job, server):
    path = job(offline="cheapest")
    server.stop()
    create_run(zeusrun.home, "job", "job-5-1")  # of a submit that died before it began
    code, trial, _ = submit(zeusrun, path)
    assert (code, trial["global_batch_size"]) == (0, 32)
    assert "no cost is known here: 32 is the default" in trial["why"]


@pytest.mark.long
def test_an_offline_recurrence_makes_one_attempt(zeusrun, job, server):
    path = zeusrun.job(
        objective={"target": 9.0},
        history={"url": server.url, "wait_s": 0, "offline": "cheapest"},
    )
    server.stop()
    code, trial, err = submit(zeusrun, path)
    assert (code, trial["status"]) == (4, "MISSED")
    assert "there is no further attempt, because the shared history does not respond" in err


# Leases.


@pytest.fixture
def told():
    return []


@pytest.fixture
def open_shared(tmp_path, told):
    """A function that opens the history of a server as a launcher does."""
    opened = []

    def open_(url):
        opened.append(HttpHistory(url))
        return SharedHistory(opened[-1], tmp_path / "s", url, show=told.append)

    yield open_
    for each in opened:
        each.close()


class Bare:
    """As much of a submission as a heartbeat needs."""

    host = "node-1"
    environment = {"HF_TOKEN": "inherited", "PATH": "/usr/bin"}  # noqa: RUF012

    def __init__(self, spec, history):
        self.spec, self.history = spec, history

    @staticmethod
    def describe_machine():
        return {"version": "1"}


@pytest.fixture
def beat(open_shared, server, zeusrun, job, monkeypatch):
    """A function that begins a trial, and returns it, its files and its heartbeat."""
    from zeusrun.jobfile.spec import load_spec

    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.02)
    monkeypatch.setattr(heartbeat, "_AGAIN_S", 0.01)
    spec = load_spec(job())

    def start(url=server.url):
        shared = open_shared(url)
        trial = begin(shared, build_trial(1, uuid="a" * 32))
        paths = create_run(zeusrun.home, "job", trial.trial)
        reserve_record(paths, trial)
        begun = SimpleNamespace(trial=trial, paths=paths, mask=Mask(("hidden",)))
        return trial, paths, HeartbeatThread(Bare(spec, shared), begun)

    return start


def test_a_heartbeat_renews_the_lease_and_shows_the_run(beat, database):
    trial, paths, beating = beat()
    so_far = replace(trial, time_s=3.0, curve=(CurvePoint(1, 3.0, None, 0.4),), epochs=1)
    with beating:
        write_live(paths, Live(so_far, 4711, "node-1", "2025-06-01T12:00:09Z", 12.5))
        live = wait_for(lambda: database.live(trial.trial), what="a heartbeat")
        assert (live["pid"], live["power_w"], live["last_metric"]) == (4711, 12.5, 0.4)
        expire_lease(database, trial.trial)
        wait_for(lambda: lease_held(database, trial.trial), what="a heartbeat")
    assert database.settings("job").startswith("# copied from")
    assert [host for host, _, _ in database.hosts()] == ["node-1"]
    expire_lease(database, trial.trial)
    time.sleep(0.1)
    assert not lease_held(database, trial.trial)


def test_a_heartbeat_carries_the_end_of_the_log_without_secrets(beat, database):
    trial, paths, beating = beat()
    lines = [
        "50%\r100%",
        "inherited in /usr/bin",
        "the key is hidden",
        "or hid\x1b[0mden, or hidx\bden",
        "half: hidd",
    ]
    numbered = [f"step {number}" for number in range(100)]
    paths.rank_log(0).write_text("\n".join([*numbered, *lines]))
    with beating:
        write_live(paths, Live(trial, 4711, "node-1", "2025-06-01T12:00:09Z"))
        live = wait_for(lambda: database.live(trial.trial), what="a heartbeat")
    masked = [f"{MASK} in /usr/bin", f"the key is {MASK}", f"or {MASK}, or {MASK}"]
    assert live["log"][-4:] == ["100%", *masked]
    assert live["log"][0] == "step 64"


def test_a_run_is_cancelled_by_its_next_heartbeat(beat, database):
    trial, paths, beating = beat()
    with beating:
        wait_for(lambda: database.settings("job"), what="the first message")
        assert read_cancel(paths) is None
        assert database.ask_to_cancel(trial.trial)
        wait_for(lambda: read_cancel(paths), what="the request")
    assert read_cancel(paths)[:2] == (1, ReasonCode.CANCELLED)


def test_a_heartbeat_outlives_an_outage_which_hides_no_run_of_this_machine(
    beat, server, database, open_shared, monkeypatch
):
    monkeypatch.setattr("zeusrun.history.shared.spool.READ_S", 0.0)
    trial, _, beating = beat()
    with beating:
        wait_for(lambda: database.settings("job"), what="the first message")
        server.stop()
        assert open_shared(server.url).unfinished("job") == [trial]
        server.start()
        expire_lease(server.history, trial.trial)
        wait_for(lambda: lease_held(server.history, trial.trial), what="a heartbeat")


def test_what_breaks_a_heartbeat_is_shown_once_and_the_next_one_is_sent(
    beat, database, told, monkeypatch
):
    trial, _, beating = beat()
    renew, broken = beating._history.renew, ["missing", "still missing"]
    monkeypatch.setattr(
        beating._history, "renew", lambda *given: {}[broken.pop(0)] if broken else renew(*given)
    )
    with beating:
        wait_for(lambda: database.settings("job"), what="the first message")
        expire_lease(database, trial.trial)
        wait_for(lambda: lease_held(database, trial.trial), 60, what="a heartbeat")
    assert told == ["a heartbeat of job-1-1 failed: KeyError('missing')"]


def test_what_cannot_be_delivered_holds_up_no_heartbeat(beat, database, monkeypatch):
    trial, _, beating = beat()

    def fail():
        raise HistoryError("the spool cannot be read")

    monkeypatch.setattr(beating._history, "deliver", fail)
    with beating:
        wait_for(lambda: database.settings("job"), what="the first message")
        expire_lease(database, trial.trial)
        wait_for(lambda: lease_held(database, trial.trial), 60, what="a heartbeat")


@pytest.mark.long
def test_a_short_outage_loses_no_run_and_a_dead_launcher_is_lost_unasked(
    beat, sqlite_url, monkeypatch
):
    """With a lease of 4 s in place of 120 s, and a heartbeat every 0.5 s in place of 20 s."""
    monkeypatch.setattr("zeusrun.history.http.client._SHORT_S", 0.5)
    monkeypatch.setattr("zeusrun.server.app._EXPIRE_S", 0.25)
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.5)
    monkeypatch.setattr(heartbeat, "_AGAIN_S", 0.2)
    renew = functools.partialmethod(SqlHistory.renew, lease_s=4.0)
    monkeypatch.setattr(SqlHistory, "renew", renew)
    with running(sqlite_url) as server:
        proxy = Proxy(server.port)
        *_, beating = beat(proxy.url)
        raw = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)

        def statuses(seconds):
            found, until_t = set(), time.monotonic() + seconds
            while time.monotonic() < until_t:
                found |= set(raw.execute("SELECT status FROM trials"))
                time.sleep(0.05)
            return {status for (status,) in found}

        with beating:
            seen = statuses(1.0)
            for _ in range(3):
                proxy.mode = "hang"
                seen |= statuses(1.5)
                proxy.mode = "pass"
                proxy.cut()
                seen |= statuses(1.2)
            assert seen == {"DISPATCHED"}
        assert statuses(3.0) == {"DISPATCHED"}
        assert "LOST" in statuses(3.0)  # nobody but the server itself has read it
        raw.close()
        proxy.close()


def test_a_run_that_the_server_took_for_lost_is_recovered_by_its_machine(
    zeusrun, job, server, database
):
    child = start_and_wait(zeusrun, job("steps_slowly.py", "--until", "/never"))
    child.kill()
    child.wait()
    expire_lease(database, "job-1-1")
    lost = database.trials("job")[0]
    assert (lost.status, lost.reason_code) == (TrialStatus.LOST, ReasonCode.LEASE_EXPIRED)
    assert zeusrun("repair").returncode == 0
    found = database.find("job-1-1")
    assert found.status is TrialStatus.LOST
    assert found.reason_code is not ReasonCode.LEASE_EXPIRED
    assert found.curve


@pytest.mark.long
def test_a_run_that_lives_is_not_recovered_and_its_result_replaces_lost(
    zeusrun, job, server, database
):
    child = start_and_wait(
        zeusrun, zeusrun.job("checkpoints.py", objective={"max_epochs": 1000}, history=server.url)
    )
    expire_lease(database, "job-1-1")
    assert database.trials("job")[0].status is TrialStatus.LOST
    assert zeusrun("repair").returncode == 0
    assert database.find("job-1-1").reason_code is ReasonCode.LEASE_EXPIRED
    (shown,) = json.loads(zeusrun("status", "--json").stdout)
    assert (shown["trial"], shown["alive"], shown["pid"]) == ("job-1-1", True, child.pid)
    assert zeusrun("cancel", "job-1-1").returncode == 0
    child.wait(300)
    assert database.find("job-1-1").status is TrialStatus.CANCELLED


def test_a_dead_run_of_another_machine_is_left_to_its_lease(zeusrun, job, database, elsewhere):
    trial = elsewhere(started_at="2025-06-01T12:00:00Z")
    assert submit(zeusrun, job())[0] == 0
    assert zeusrun("repair").returncode == 0
    assert database.find(trial.trial) == trial


@pytest.mark.long  # three submits
def test_a_run_directory_of_an_earlier_history_is_another_run(zeusrun, job, database, elsewhere):
    zeusrun.job()
    assert zeusrun.submit(zeusrun.folder / "job.yaml")[0] == 0  # job-1-1 in the files of the home
    trial = elsewhere(1, world_size=1)
    path = job()
    run_dir = zeusrun.run_dir("job-1-1")
    before = sorted(each.name for each in run_dir.iterdir())
    database.renew(trial.trial, None)
    assert "runs on node-2" in zeusrun("logs", "job-1-1", ZEUSRUN_HISTORY=url(path)).stderr
    expire_lease(database, trial.trial)
    assert zeusrun("repair", ZEUSRUN_HISTORY=url(path)).returncode == 0
    assert database.trials("job")[0].reason_code is ReasonCode.LEASE_EXPIRED
    assert zeusrun("gc", "--last", "1", ZEUSRUN_HISTORY=url(path)).returncode == 0
    assert sorted(each.name for each in run_dir.iterdir()) == before
    assert submit(zeusrun, path)[1]["trial"] == "job-2-1"


def url(path):
    return path.read_text().split("url: ")[1].split()[0]


# Runs of other machines.


def test_status_shows_a_run_of_another_machine_as_its_server_knows_it(
    zeusrun, job, server, database, elsewhere
):
    trial = elsewhere()
    so_far = replace(
        trial, time_s=60.0, epochs=3, whole_epochs=3, curve=(CurvePoint(3, 60.0, None, 0.25),)
    )
    live = Live(so_far, 4711, "node-2", "2025-06-01T12:00:09Z", 250.0)
    database.renew(trial.trial, live.to_json())
    done = zeusrun("status", ZEUSRUN_HISTORY=server.url)
    line = next(line for line in done.stdout.splitlines() if "job-1-1" in line)
    assert {"node-2", "3/5", "250", "W"} <= set(line.split())
    (shown,) = json.loads(zeusrun("status", "--json", ZEUSRUN_HISTORY=server.url).stdout)
    assert (shown["host"], shown["alive"], shown["pid"]) == ("node-2", True, 4711)
    sheet = zeusrun("show", "job", ZEUSRUN_HISTORY=server.url).stdout
    assert "job-1-1 on node-2" in " ".join(sheet.split())


def test_the_end_of_the_log_of_a_run_of_another_machine_is_printed(
    zeusrun, server, database, elsewhere
):
    database.renew(elsewhere().trial, {"log": ["step 1", "step 2\x1b[2J"]})
    done = zeusrun("logs", "job-1-1", ZEUSRUN_HISTORY=server.url)
    assert (done.returncode, done.stdout) == (0, "step 1\nstep 2\n")
    assert "the whole log is on node-2" in done.stderr


def test_a_run_of_another_machine_is_cancelled(zeusrun, server, database, elsewhere):
    trial = elsewhere()
    cancelling = zeusrun.start("cancel", "job", ZEUSRUN_HISTORY=server.url)
    wait_for(lambda: database.renew(trial.trial), 60, what="the request")
    database.finish(trial.trial, Outcome(TrialStatus.CANCELLED, "cancelled", trial.started_at))
    out, _ = cancelling.communicate(timeout=300)
    assert cancelling.returncode == 0
    assert "node-2 is asked to cancel job-1-1" in out
    assert "job-1-1 is CANCELLED: cancelled" in out


@pytest.mark.long  # a heartbeat comes every 20 s
def test_a_submit_is_cancelled_from_another_machine(zeusrun, server, tmp_path):
    slow, history = ["--epoch-s", "10"], {"url": server.url}
    child = start_and_wait(zeusrun, zeusrun.job("checkpoints.py", args=slow, history=history))
    other = Zeusrun(tmp_path / "other", tmp_path)
    done = other("cancel", "job", ZEUSRUN_HISTORY=server.url)
    assert (done.returncode, "job-1-1 is CANCELLED" in done.stdout) == (0, True)
    assert child.wait(300) == 130


@pytest.mark.parametrize("verb", [["logs"], ["show", "--metrics"], ["submit", "--like"]])
def test_what_only_the_other_machine_can_do_says_so(zeusrun, server, elsewhere, verb):
    elsewhere()
    done = zeusrun(*verb, "job-1-1", ZEUSRUN_HISTORY=server.url)
    assert done.returncode == 2
    assert done.stderr == (
        "zeusrun: job-1-1 runs on node-2, and its files are there "
        "(/home/other/runs/job/job-1-1); run this command there\n"
    )


def test_the_files_of_another_home_of_this_machine_are_not_called_gone(
    server, elsewhere, zeusrun, monkeypatch, capsys
):
    monkeypatch.setenv("ZEUSRUN_HOME", str(zeusrun.home))
    monkeypatch.setenv("ZEUSRUN_HISTORY", server.url)
    trial = elsewhere(host=os.uname().nodename)
    theirs = f"are those of another ZEUSRUN_HOME of this machine: {trial.run_dir}"
    with pytest.raises(UsageError, match=theirs):
        logs("job-1-1")
    show("job-1-1")
    sheet = " ".join(capsys.readouterr().out.split())
    assert f" host {trial.host} run {trial.run_dir} of another ZEUSRUN_HOME" in sheet
    with pytest.raises(UsageError, match=r"no run of job has its files in .*; name its job file"):
        find_settings("job")


@pytest.mark.long  # two submits
def test_a_preempted_run_of_another_machine_is_left_to_it(zeusrun, job, database, elsewhere):
    trial = elsewhere(world_size=1)
    cut = Outcome(TrialStatus.PREEMPTED, "SIGTERM", "2025-06-01T12:10:00Z")
    database.finish(trial.trial, cut)
    assert submit(zeusrun, job())[1]["trial"] == "job-2-1"
    assert database.find(trial.trial).status is TrialStatus.PREEMPTED


@pytest.mark.long
def test_a_preempted_run_is_continued_although_others_have_run_since(
    zeusrun, job, database, elsewhere
):
    path = job("checkpoints.py")
    child = start_and_wait(zeusrun, path)
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 75
    other = elsewhere(2, world_size=1)
    database.finish(other.trial, Outcome(TrialStatus.FAILED, "it", "2025-06-01T12:10:00Z"))
    _, trial, _ = submit(zeusrun, path)
    assert (trial["trial"], trial["preemptions"]) == ("job-1-1", 1)
    assert [each.trial for each in database.trials("job")] == ["job-1-1", "job-2-1"]


# Maintenance.


@pytest.mark.long
def test_doctor_checks_the_server(zeusrun, job, server, elsewhere, tmp_path):
    submit(zeusrun, job())
    lines = zeusrun("doctor").stdout
    assert f"✓ server       {server.url}: 1 job, zeusrun" in lines
    server.stop()
    done = zeusrun("doctor")
    assert done.returncode == 5
    assert f"✗ server       the server {server.url} does not respond" in done.stdout


def test_a_numbered_run_is_found_in_the_directory_of_its_offline_id(tmp_path):
    paths = create_run(tmp_path, "job", "job-offline-01234567")
    trial = build_trial(3, uuid="01234567" * 4, run_dir=str(paths.run_dir))
    reserve_record(paths, trial)
    assert read_found_trials(tmp_path, "job") == [trial]


def test_a_run_that_the_server_has_lost_is_restored_from_its_directory(zeusrun, job, database):
    submit(zeusrun, job())
    (trial,) = database.trials("job")
    with database.engine.begin() as connection:  # as an older backup
        for table in ("leases", "trials", "jobs"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    assert "lacks 1 ended trial" in zeusrun("repair").stdout
    assert "1 of 1 runs" in zeusrun("repair", "--restore", "job").stdout
    assert database.trials("job") == [trial]

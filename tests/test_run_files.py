"""The files of a run belong to its owner alone, and no link in their place is followed."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest

from tests.factories import begin
from tests.factories import build_trial as trial
from tests.history.memory import MemoryHistory
from zeusrun.errors import HistoryError
from zeusrun.files.tail import LineTail
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import RunPaths, create_run, write_record
from zeusrun.launcher.rundir.ownership import RunLock, find_own
from zeusrun.maintenance.recover import recover_lost
from zeusrun.metrics.base import SidecarReader
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import Outcome, TrialStatus

NOW = "2025-06-01T13:00:00.000+00:00"
FILES = (
    "job.yaml",
    "trial.json",
    "trial.reserve",
    "metrics.jsonl",
    "error.json",
    "error.json.rank0",
    "stop",
    "stop.ending",
    "lock",
    "cancel",
    "live.json",
    "live.json.tmp",
    "power.csv",
    "logs/rank0.log",
    "logs/torchrun.log",
    "logs/rank0.stack",
    "clock/rank0",
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Run a script that plants links; return the victims and the result."""
    from tests.factories import Zeusrun

    folder = tmp_path_factory.mktemp("planted")
    zeusrun = Zeusrun(folder / "home", folder)
    victims = folder / "victims"
    for name in FILES:
        (victims / name).parent.mkdir(parents=True, exist_ok=True)
        if name != "stop":  # that is there whenever the script may not train on
            (victims / name).write_text("mine")
    job = zeusrun.job(
        "plants_links.py",
        env={"PLANTED": ",".join(FILES), "VICTIMS": str(victims)},
        launch={"max_restarts": 1},
        attempts=1,
    )
    return victims, zeusrun.submit(job)


def test_no_link_in_a_run_directory_is_followed_for_writing(planted):
    victims, _ = planted
    for name in FILES:
        victim = victims / name
        assert not victim.exists() if name == "stop" else victim.read_text() == "mine", name


def test_a_script_that_puts_links_in_its_run_directory_has_a_trial_on_record(planted):
    _, (code, result, seen) = planted
    assert code in {0, 3}, seen
    (found,) = result["trials"]
    assert found["status"] in {"REACHED", "FAILED"}


@pytest.fixture
def open_to_all():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("script", ["well.py", "exits_7.py"])
def test_everything_that_zeusrun_writes_is_its_owners_alone(zeusrun, open_to_all, script):
    zeusrun.submit(zeusrun.job(script))
    found = {path: path.lstat().st_mode for path in zeusrun.home.rglob("*")}
    found[zeusrun.home] = zeusrun.home.stat().st_mode
    assert len(found) > 10
    for path, mode in found.items():
        assert stat.S_IMODE(mode) == (0o700 if stat.S_ISDIR(mode) else 0o600), path


def test_the_lock_is_not_made_through_a_link(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    paths.lock.symlink_to(tmp_path / "elsewhere")
    assert RunLock(paths).is_held()  # in doubt, its launcher lives
    assert not RunLock(paths).acquire_or_gone()
    assert not (tmp_path / "elsewhere").exists()


def test_asking_whether_a_launcher_lives_makes_and_changes_nothing(tmp_path):
    paths = RunPaths(tmp_path)
    assert not RunLock(paths).is_held()
    assert list(tmp_path.iterdir()) == []
    paths.lock.write_text("mine")
    assert not RunLock(paths).is_held()
    assert paths.lock.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe", "device link"])
def test_what_is_no_file_is_read_as_missing_and_never_waited_for(tmp_path, kind):
    path = tmp_path / "metrics.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device link" else tmp_path)
    assert SidecarReader(path).read(final=True) == []
    assert LineTail(path).skip_backlog(0) == 0
    assert read_step_clock(path) is None


def dispatched(home, **changes):
    run_dir = home / "runs" / "job" / "job-1-1"
    return trial(**{"run_dir": str(run_dir), **changes})


def test_a_run_is_found_under_its_home_whichever_way_leads_there(tmp_path):
    home = tmp_path / "home"
    paths = create_run(home, "job", "job-1-1")
    (tmp_path / "alias").symlink_to(home)
    assert find_own(home, dispatched(home)) == paths
    assert find_own(tmp_path / "alias", dispatched(home)) == paths
    assert find_own(home, dispatched(tmp_path / "alias")) is not None
    write_record(paths, dispatched(home))  # processes are found by the path that they got
    assert find_own(tmp_path / "alias", dispatched(home)) == paths


@pytest.mark.parametrize(
    "changes",
    [
        {"run_dir": "/"},
        {"run_dir": "/tmp/job-1-1"},
        {"run_dir": "job-1-1"},
        {"run_dir": ""},
        {"run_dir": "{home}/runs/job/job-1-1/../../other/job-1-1"},
        {"run_dir": "{home}/runs/job"},
        {"trial": "..", "run_dir": "{home}/runs/job/.."},
        {"trial": "../other", "run_dir": "{home}/runs/other"},
        {"job": "..", "run_dir": "{home}/job-1-1"},
        {"job": "../../etc", "run_dir": "/etc/job-1-1"},
        {"job": "a/b", "run_dir": "{home}/runs/a/b/job-1-1"},
        {"run_dir": "\0"},
        {"run_dir": "{home}/\0/job-1-1"},
    ],
    ids=repr,
)
def test_a_record_cannot_name_a_run_directory_elsewhere(tmp_path, changes):
    create_run(tmp_path, "job", "job-1-1")
    changes = {key: value.format(home=tmp_path) for key, value in changes.items()}
    assert find_own(tmp_path, dispatched(tmp_path, **changes)) is None


def test_a_run_directory_that_is_a_link_is_none_of_ours(tmp_path):
    (tmp_path / "runs" / "job").mkdir(parents=True)
    (tmp_path / "runs" / "job" / "job-1-1").symlink_to(tmp_path)
    assert find_own(tmp_path, dispatched(tmp_path)) is None


def test_the_record_in_a_run_directory_says_whose_it_is(tmp_path):
    paths, own = create_run(tmp_path, "job", "job-1-1"), dispatched(tmp_path)
    there = dispatched(tmp_path, host="another machine")
    for content in (None, b"damaged"):
        if content is not None:
            paths.trial.write_bytes(content)
        assert find_own(tmp_path, own) == paths
        assert find_own(tmp_path, there) == paths  # nodes may share a home
    write_record(paths, own)
    assert find_own(tmp_path, there) == paths
    assert find_own(tmp_path, dispatched(tmp_path / "before it was moved")) == paths
    assert find_own(tmp_path, dispatched(tmp_path, uuid="f" * 32)) is None
    assert find_own(tmp_path, dispatched(tmp_path, run_dir=f"{tmp_path}/runs/job/job-2-1")) is None


def test_recovery_touches_nothing_outside_the_runs_of_its_home(tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    strange = create_run(elsewhere, "job", "job-1-1")
    strange.trial.write_text(json.dumps(dispatched(elsewhere).to_json()))
    before = {path: path.lstat().st_mtime_ns for path in elsewhere.rglob("*")}
    history = MemoryHistory()
    begin(history, dispatched(elsewhere))
    (lost,) = recover_lost(history, "job", NOW, home)
    assert (lost.status, lost.steps) == (TrialStatus.LOST, None)
    assert "nothing there was touched" in lost.reason
    assert {path: path.lstat().st_mtime_ns for path in elsewhere.rglob("*")} == before


NAMES = ("..", ".", "../x", "a/b", "/etc/passwd", "a\0b", "", "-rf", "~", "a\nb", ".hidden")


@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_the_home(zeusrun, cli, tmp_path, name):
    history = TinyDBHistory(tmp_path / "history")
    for ask in (history.trials, lambda job: begin(history, trial(job=job))):
        with pytest.raises(ValueError, match="name of a job"):
            ask(name)
    assert history.find(f"{name}-1-1") is None
    with pytest.raises(HistoryError, match="no trial"):
        history.finish(f"{name}-1-1", Outcome(TrialStatus.LOST, "its launcher died", NOW))
    assert not (tmp_path / "history").exists()
    if "\0" in name:
        return  # no argument can hold it
    for verb in ("show", "logs", "explain"):
        code, _, err = cli(verb, "--", f"{name}-1-1")
        assert code == 2, err
    job = zeusrun.job()
    code, _, err = cli("submit", job, "--set", f"name={json.dumps(name)}")
    assert code == 2, err
    assert not zeusrun.home.exists()


def test_a_run_whose_directory_is_gone_is_lost_and_the_reason_says_so(tmp_path):
    history = MemoryHistory()
    own = begin(history, dispatched(tmp_path))
    (lost,) = recover_lost(history, "job", NOW, tmp_path)
    assert (lost.trial, lost.status) == (own.trial, TrialStatus.LOST)
    assert lost.reason == "its launcher died, and its run directory is gone"


def test_a_copy_of_a_home_leaves_a_run_that_goes_on_in_the_original(tmp_path):
    original, history = tmp_path / "original", MemoryHistory()
    paths = create_run(original, "job", "job-1-1")
    own = begin(history, dispatched(original))
    write_record(paths, own)
    shutil.copytree(original, tmp_path / "copy")
    with RunLock(paths) as lease:
        assert lease.acquire()
        assert recover_lost(history, "job", NOW, tmp_path / "copy") == []
    (lost,) = recover_lost(history, "job", NOW, tmp_path / "copy")
    assert lost.status is TrialStatus.LOST

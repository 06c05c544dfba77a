"""Where a run's files are, and how a dead launcher is told from a living one."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import begin, build_trial
from tests.history.memory import MemoryHistory
from zeusrun.errors import HistoryError
from zeusrun.files.home import home_directory, runs_directory, trusted_home
from zeusrun.history.base import NEWEST
from zeusrun.launcher.rundir.layout import (
    RunPaths,
    create_run,
    has_checkpoint,
    numbered_runs,
    reopen_run,
)
from zeusrun.launcher.rundir.ownership import RunLock, remove_unbegun
from zeusrun.trial import TrialStatus


@pytest.mark.parametrize(
    ("named", "home"), [("/var/zeusrun", "/var/zeusrun"), ("~/mine", str(Path.home() / "mine"))]
)
def test_home_is_what_the_environment_says(named, home):
    assert home_directory({"ZEUSRUN_HOME": named}) == Path(home)


def test_a_relative_home_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HistoryError, match=f"'here', a relative path; .*{tmp_path}/here$"):
        home_directory({"ZEUSRUN_HOME": "here"})


@pytest.mark.parametrize("home", ["a file", "a file/below", ""])
def test_a_file_in_the_place_of_the_home_or_its_folders_is_named(tmp_path, home):
    file = tmp_path / ("a file" if home else "runs")
    file.touch()
    with pytest.raises(HistoryError, match=f"{file} is a file where zeusrun needs a directory"):
        trusted_home({"ZEUSRUN_HOME": str(tmp_path / home)})


@pytest.mark.parametrize("environment", [{}, {"ZEUSRUN_HOME": ""}])
def test_otherwise_home_is_the_platforms_state_directory(environment):
    assert home_directory(environment).name == "zeusrun"
    assert home_directory(environment).is_absolute()


def test_the_files_of_a_run_have_the_names_of_the_design(tmp_path):
    paths = RunPaths(tmp_path)
    named = {paths.job_copy, paths.trial, paths.sidecar, paths.power, paths.error}
    assert {path.name for path in named} == {
        "job.yaml",
        "trial.json",
        "metrics.jsonl",
        "power.csv",
        "error.json",
    }
    assert paths.rank_log(3) == tmp_path / "logs" / "rank3.log"


def test_a_new_run_has_its_folders_for_its_owner_alone(tmp_path):
    paths = create_run(tmp_path / "new" / "home", "job", "job-1-1")
    assert paths.run_dir == tmp_path / "new" / "home" / "runs" / "job" / "job-1-1"
    for folder in (paths.run_dir, paths.logs, paths.clocks, paths.checkpoints):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_home_that_is_a_file_says_what_to_set(tmp_path):
    home = tmp_path / "home"
    home.touch()
    with pytest.raises(HistoryError, match=f"^{home}.*be written: .*ZEUSRUN_HOME"):
        create_run(home, "job", "job-1-1")


def test_the_runs_of_a_job_are_told_from_all_else(tmp_path):
    assert numbered_runs(tmp_path, "job") == []
    for name in ("job-2-1", "job-10-3", "job-9-1", "other-99-1", "job-x-1", "job-7"):
        (runs_directory(tmp_path, "job") / name).mkdir(parents=True)
    assert sorted(numbered_runs(tmp_path, "job")) == [
        (2, "job-2-1"),
        (9, "job-9-1"),
        (10, "job-10-3"),
    ]


def test_a_launcher_lives_while_it_holds_the_lock(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    lock = RunLock(paths)
    assert lock.acquire()
    assert RunLock(paths).is_held()
    lock.release()
    assert not RunLock(paths).is_held()


def test_a_lock_that_another_holds_is_not_waited_for(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    lock = RunLock(paths)
    lock.acquire()
    assert not RunLock(paths).acquire()
    lock.release()


def test_looking_does_not_take_the_lock_away(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    lock = RunLock(paths)
    assert not lock.is_held()
    assert lock.acquire()
    lock.release()


def test_a_launcher_that_was_killed_is_known_to_be_dead(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    program = (
        "import sys; from pathlib import Path; from zeusrun.launcher.rundir.ownership import *;"
        "lock = RunLock(RunPaths(Path(sys.argv[1]))); lock.acquire(); print('held', flush=True);"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(paths.run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"held\n"
    assert RunLock(paths).is_held()
    child.kill()
    child.communicate()
    assert not RunLock(paths).is_held()


def test_a_run_directory_that_is_gone_has_no_living_launcher(tmp_path):
    assert not RunLock(RunPaths(tmp_path / "gone")).is_held()
    assert os.listdir(tmp_path) == []


def test_a_run_that_never_began_is_removed_and_no_other_one(tmp_path):
    unbegun, known, held, began, stored = (
        create_run(tmp_path, "job", f"job-{number}-1") for number in range(1, 6)
    )
    lock = RunLock(held)
    assert lock.acquire()
    began.torchrun_log.touch()
    history = MemoryHistory()
    begin(history, build_trial(5))  # after the snapshot that the trials are of
    remove_unbegun(history, tmp_path, "job", [build_trial(2)])
    left = {path.name for path in runs_directory(tmp_path, "job").iterdir()}
    assert left == {paths.run_dir.name for paths in (known, held, began, stored)}
    assert not unbegun.run_dir.exists()
    lock.release()


def test_of_runs_before_those_of_a_full_snapshot_nothing_is_removed(tmp_path):
    old, unbegun = (create_run(tmp_path, "job", f"job-{number}-1") for number in (4, 1007))
    newest = [build_trial(number) for number in range(5, 5 + NEWEST)]
    remove_unbegun(MemoryHistory(), tmp_path, "job", newest)
    assert old.run_dir.exists()
    assert not unbegun.run_dir.exists()


def test_a_run_is_reopened_however_often_a_submit_dies_at_it(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    paths.sidecar.write_text("first")
    (paths.checkpoints / "last").write_text("kept")
    for _ in range(3):
        reopen_run(paths)
    assert (paths.run_dir / "part1" / "metrics.jsonl").read_text() == "first"
    assert (paths.checkpoints / "last").read_text() == "kept"
    assert not paths.sidecar.exists()
    assert list(paths.logs.iterdir()) == []


KEPT = ("job.yaml", "trial.json", "lock", "adapt.json", "sync.json")


def test_what_a_script_has_saved_in_its_run_directory_stays_where_it_was(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    ours = ["metrics.jsonl", "power.csv", "live.json", "live.json.tmp", "trial.reserve", "stop"]
    ours += ["stop.ending", "cancel", "cancel.12", "error.json", "error.2.json", "cgroup"]
    theirs = ["last.pt", "stop.pt", "errors.json", "live.json.bak", "lightning_logs"]
    for name in (*ours, *KEPT):
        (paths.run_dir / name).write_text("x")
    assert not has_checkpoint(paths.run_dir)
    reopen_run(paths)
    assert {*ours, "logs", "clock"} == {each.name for each in (paths.run_dir / "part1").iterdir()}
    assert not has_checkpoint(paths.run_dir)
    for name in theirs:
        (paths.run_dir / name).write_text("x")
    reopen_run(paths)
    assert has_checkpoint(paths.run_dir)
    assert {*theirs, *KEPT} <= {each.name for each in paths.run_dir.iterdir()}


def test_what_a_killed_writer_of_zeusrun_left_is_no_checkpoint(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    names = {"adapt.json.tmp", "sync.json.tmp", "live.json.tmp", "stop.tmp", "error.json.rank0"}
    for name in names:
        (paths.run_dir / name).touch()
    assert not has_checkpoint(paths.run_dir)
    reopen_run(paths)
    assert names <= {path.name for path in (paths.run_dir / "part1").iterdir()}


def test_what_a_part_left_is_not_moved_through_a_link(tmp_path):
    paths = create_run(tmp_path, "job", "job-1-1")
    victim = tmp_path / "victim"
    victim.mkdir()
    (paths.run_dir / "part1").symlink_to(victim)
    paths.sidecar.write_text("mine")
    reopen_run(paths)
    assert list(victim.iterdir()) == []
    assert (paths.run_dir / "part2" / "metrics.jsonl").read_text() == "mine"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_launcher_whose_lock_cannot_be_asked_counts_as_alive(tmp_path, monkeypatch, number):
    paths = create_run(tmp_path, "job", "job-1-1")
    real = os.open

    def refuse(path, *arguments, **options):
        if str(path).endswith("lock"):
            raise OSError(number, os.strerror(number), path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    assert RunLock(paths).is_held()
    assert not RunLock(paths).acquire_or_gone()


@pytest.mark.parametrize("run_dir", ["/x\0y/job-1-1", "/x\ud800/job-1-1", "/nowhere/job-1-1"])
def test_a_run_directory_that_cannot_be_has_no_launcher(run_dir):
    assert not RunLock(RunPaths(Path(run_dir))).is_held()


def test_a_run_that_was_preempted_or_has_ended_is_never_taken_for_unbegun(tmp_path):
    for number, record in enumerate((build_trial(preemptions=1), build_trial()), start=1):
        paths = create_run(tmp_path, "job", f"job-{number}-1")
        ended = replace(record, status=TrialStatus.FAILED) if number == 2 else record
        paths.trial.write_text(json.dumps({"version": 1, **ended.to_json()}))
    remove_unbegun(MemoryHistory(), tmp_path, "job", [build_trial(9)])
    assert len(list(runs_directory(tmp_path, "job").iterdir())) == 2

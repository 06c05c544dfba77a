"""Which run directories go, and what is never touched."""

from __future__ import annotations

import dataclasses

import pytest

from tests.factories import begin, build_trial
from tests.history.memory import MemoryHistory
from zeusrun.launcher.rundir.layout import RunPaths, create_run
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.maintenance.retention import collect, remove
from zeusrun.run_on import registry
from zeusrun.trial import Outcome, TrialStatus

NOW = 1_800_000_000.0


def names(runs):
    return [int(each.trial.split("-")[1]) for each in runs]


@pytest.fixture
def history():
    return MemoryHistory()


@pytest.fixture
def add(history, tmp_path):
    """Record a run with a directory of its own."""

    def write(
        number,
        status=TrialStatus.MISSED,
        target=0.5,
        finished_at=None,
        allocation=None,
        **outcome,
    ):
        name = f"job-{number}-1"
        paths = create_run(tmp_path, "job", name)
        (paths.run_dir / "checkpoint.pt").write_bytes(b"x" * 8192)
        paths.trial.write_text("{}")
        where = {"run_dir": str(paths.run_dir), "allocation": allocation}
        trial = build_trial(number, target=target, **where)
        begin(history, trial)
        if status.finished:
            at = finished_at or f"2027-01-{number:02d}T00:00:00Z"
            history.finish(name, Outcome(status, "so", at, **outcome))
        return paths

    return write


def test_the_best_run_and_one_that_may_go_on_stay(history, add, tmp_path):
    add(1, TrialStatus.REACHED, cost_j=5.0, time_s=1.0, epochs=1)
    for number in (2, 3, 4):
        add(number, TrialStatus.REACHED, cost_j=5.0 + number, time_s=1.0, epochs=1)
    add(5, TrialStatus.PREEMPTED)
    before = history.trials("job")
    old = collect(history, tmp_path, "job", 1, NOW)
    assert names(old) == [2, 3, 4]
    assert all(each.path.is_dir() and each.size_bytes >= 8192 for each in old)
    assert all(remove(each) for each in old)
    runs = tmp_path / "runs" / "job"
    left = {path.name: {file.name for file in path.iterdir()} for path in runs.iterdir()}
    assert {name for name, files in left.items() if "logs" in files} == {"job-1-1", "job-5-1"}
    assert left["job-2-1"] == left["job-3-1"] == left["job-4-1"] == {"trial.json"}
    assert history.trials("job") == before
    assert collect(history, tmp_path, "job", 1, NOW) == []


def test_the_best_run_of_each_objective_stays_and_one_whose_cost_nobody_knows(
    history, add, tmp_path
):
    add(1, TrialStatus.REACHED, cost_j=5.0, time_s=1.0, epochs=1, target=0.3)
    add(2, TrialStatus.REACHED, cost_j=9.0, time_s=1.0, epochs=1)
    add(3, TrialStatus.REACHED, time_s=4.0, epochs=1, target=0.9)
    add(4, TrialStatus.REACHED, time_s=3.0, epochs=1, target=0.9)
    add(5)
    add(6)
    assert names(collect(history, tmp_path, "job", 1, NOW)) == [3, 5]


def test_a_forgotten_run_is_not_the_best(history, add, tmp_path):
    add(1, TrialStatus.REACHED, cost_j=10.0)
    add(2, TrialStatus.REACHED, cost_j=20.0)
    add(3)
    history.forget("job-1-1", forgotten=True)
    assert names(collect(history, tmp_path, "job", 1, NOW)) == [1]


def test_all_runs_that_are_to_go_on_stay(history, add, tmp_path):
    add(1, TrialStatus.PREEMPTED)  # the next one has overtaken it
    add(2)
    for number in (3, 4, 5):
        add(number, TrialStatus.PREEMPTED)
    assert names(collect(history, tmp_path, "job", 1, NOW)) == [1, 2]


def test_what_a_clock_that_was_ahead_recorded_is_no_newer_than_what_came_after(
    history, add, tmp_path
):
    add(1, finished_at="2099-01-01T00:00:00Z")
    add(2, finished_at="2099-01-01T00:00:00Z")
    assert names(collect(history, tmp_path, "job", 1, NOW)) == [1]


def test_a_removal_that_was_interrupted_is_continued_the_next_time(
    history, add, tmp_path, monkeypatch
):
    for number in (1, 2):
        add(number)
    (old,) = collect(history, tmp_path, "job", 1, NOW)
    (old.path / "empty").mkdir()
    monkeypatch.setattr("zeusrun.maintenance.retention.shutil.rmtree", lambda *_, **__: None)
    assert not remove(old)
    assert (old.path / "empty").exists()
    monkeypatch.undo()
    (left,) = collect(history, tmp_path, "job", 1, NOW)
    assert left.path == old.path
    assert remove(left)
    assert [path.name for path in old.path.iterdir()] == ["trial.json"]


def test_a_removal_follows_no_link(history, add, tmp_path):
    for number in (1, 2):
        add(number)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (old,) = collect(history, tmp_path, "job", 1, NOW)
    (old.path / "link").symlink_to(tmp_path / "mine")
    assert remove(old)
    assert (tmp_path / "mine" / "file").exists()


def test_a_run_whose_age_nobody_knows_stays(history, add, tmp_path, monkeypatch):
    add(1)
    strange = dataclasses.replace(history.trials("job")[0], finished_at="yesterday")
    add(2)
    second = history.trials("job")[1]
    monkeypatch.setattr(history, "trials", lambda _job: [strange, second])
    assert collect(history, tmp_path, "job", 1, NOW) == []


def test_the_newest_runs_stay_and_what_is_kept_counts(history, add, tmp_path):
    add(1)
    add(2, TrialStatus.REACHED, cost_j=5.0, time_s=1.0, epochs=1)
    for number in (3, 4, 5):
        add(number)
    assert names(collect(history, tmp_path, "job", 2, NOW)) == [1, 3]
    assert names(collect(history, tmp_path, "job", 4, NOW)) == [1]
    assert collect(history, tmp_path, "job", 5, NOW) == []


def test_without_a_bound_nothing_goes(history, add, tmp_path):
    add(1)
    assert collect(history, tmp_path, "job", None, NOW) == []


def test_what_runs_what_is_not_known_and_what_is_no_run_is_left(history, add, tmp_path):
    add(1, TrialStatus.DISPATCHED)
    held = add(2)
    runs = tmp_path / "runs" / "job"
    create_run(tmp_path, "job", "job-3-1")  # of no trial in the history
    add(4)
    outside = tmp_path / "precious"
    outside.mkdir()
    add(5).run_dir.rename(tmp_path / "moved")
    (runs / "job-5-1").symlink_to(outside)
    (runs / "notes").mkdir()
    add(6)
    lock = RunLock(RunPaths(held.run_dir))
    lock.acquire()
    old = collect(history, tmp_path, "job", 1, NOW)
    gone = [each for each in old if remove(each)]
    lock.release()
    assert (names(old), names(gone)) == ([2, 4], [4])
    assert outside.is_dir()
    left = {path.name for path in runs.iterdir()}
    assert left == {*(f"job-{number}-1" for number in range(1, 7)), "notes"}
    assert [path.name for path in (runs / "job-4-1").iterdir()] == ["trial.json"]


def test_a_preempted_run_stays_while_its_job_of_slurm_may_continue_it(
    add, history, slurm, tmp_path
):
    """Others have overtaken it, so that no other submit continues it."""
    for number, state in enumerate(("PENDING", "CANCELLED", "RUNNING"), 1):
        name = slurm.put(str(number), state)
        add(number, TrialStatus.PREEMPTED, allocation=name)
    for number in (4, 5):
        add(number)
    old = collect(history, tmp_path, "job", 1, NOW)
    assert names(old) == [2, 4]
    assert len(slurm.calls()) == 1
    slurm.fail("squeue")
    registry._states.clear()
    assert names(collect(history, tmp_path, "job", 1, NOW)) == [4]


def test_slurm_is_asked_about_no_other_runs(add, history, slurm, tmp_path):
    add(1, allocation="slurm:1")
    add(2, TrialStatus.PREEMPTED)
    add(3)
    assert names(collect(history, tmp_path, "job", 1, NOW)) == [1, 2]
    assert slurm.calls() == []

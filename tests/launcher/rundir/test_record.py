"""``trial.json`` beside the run, and the recovery of trials whose launcher died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from tests.factories import begin
from tests.factories import build_trial as trial
from tests.history.memory import MemoryHistory
from tests.launcher.values import report, started
from zeusrun.launcher.rundir.layout import create_run, read_outcome, reserve_record, write_record
from zeusrun.launcher.rundir.ownership import RunLock
from zeusrun.maintenance.recover import recover_lost
from zeusrun.sidecar.events import EventWriter
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.trial import CurvePoint, EnergySource, Outcome, TrialStatus

NOW = "2025-06-01T13:00:00.000+00:00"
DONE = Outcome(
    TrialStatus.REACHED,
    "accuracy 0.6 in epoch 2",
    NOW,
    time_s=4.0,
    energy_j=40.0,
    energy_source=EnergySource.COUNTER,
    curve=(CurvePoint(1, 2.0, None, 0.1), CurvePoint(2, 4.0, 40.0, 0.6)),
    warnings=("a ä warning",),
)


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


def dispatched(paths, **changes):
    return trial(run_dir=str(paths.run_dir), **changes)


def test_an_outcome_is_read_as_it_was_written(paths):
    reserve_record(paths, dispatched(paths))
    assert write_record(paths, dispatched(paths).finish(DONE))
    assert read_outcome(paths) == DONE
    stored = {"version": 1, **dispatched(paths).finish(DONE).to_json()}
    assert json.loads(paths.trial.read_text()) == stored
    assert sorted(path.suffix for path in paths.run_dir.glob("trial.*")) == [".json"]


def test_a_dispatched_trial_has_no_outcome_yet(paths):
    reserve_record(paths, dispatched(paths))
    assert json.loads(paths.trial.read_text())["status"] == "DISPATCHED"
    assert read_outcome(paths) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "{}", "[" * 99_999])
def test_what_is_no_record_is_no_outcome(paths, content):
    paths.trial.write_text(content)
    assert read_outcome(paths) is None


def test_no_record_is_no_outcome(paths):
    assert read_outcome(paths) is None


def test_an_outcome_larger_than_its_reserve_is_written_where_there_is_room(paths):
    long = replace(DONE, curve=tuple(CurvePoint(n, 1.0, 1.0, 0.1) for n in range(9000)))
    reserve_record(paths, dispatched(paths))
    assert write_record(paths, dispatched(paths).finish(long))
    assert read_outcome(paths) == long


def test_a_run_directory_that_is_gone_takes_no_record_and_raises_nothing(paths):
    reserve_record(paths, dispatched(paths))
    paths.run_dir.rename(paths.run_dir.with_name("moved"))
    assert not write_record(paths, dispatched(paths).finish(DONE))


def test_a_record_that_could_not_be_written_leaves_the_dispatched_one(paths):
    reserve_record(paths, dispatched(paths))
    reserve = paths.trial.with_suffix(".reserve")
    reserve.unlink()
    reserve.mkdir()
    assert not write_record(paths, dispatched(paths).finish(DONE))
    assert json.loads(paths.trial.read_text())["status"] == "DISPATCHED"


def home_of(paths):
    return paths.run_dir.parents[2]


@pytest.fixture
def history(paths):
    store = MemoryHistory()
    begin(store, dispatched(paths))
    return store


def test_a_trial_whose_launcher_lives_is_left_alone(paths, history):
    lock = RunLock(paths)
    lock.acquire()
    assert recover_lost(history, "job", NOW, home_of(paths)) == []
    lock.release()


def test_a_dead_launchers_trial_is_lost_with_what_its_ranks_reported(paths, history):
    StepClock(paths.clocks / "rank0").tick()
    writer = EventWriter(paths.sidecar)
    begun = started(1e12)  # later than the step above, so that reports count from here
    for event in (begun, report(1e12 + 2, 1, 0.1), report(1e12 + 4, 2, 0.3)):
        writer.write(event)
    writer.close()
    (lost,) = recover_lost(history, "job", NOW, home_of(paths))
    assert (lost.status, lost.reason, lost.finished_at) == (
        TrialStatus.LOST,
        "its launcher died",
        NOW,
    )
    assert (lost.epochs, lost.steps, lost.best_metric) == (2, 1, 0.3)
    assert (lost.energy_j, lost.cost_j) == (None, None)
    assert [(p.epoch, p.energy_j, p.value) for p in lost.curve] == [(1, None, 0.1), (2, None, 0.3)]
    assert history.trials("job") == [lost]


def test_the_time_of_a_lost_trial_runs_from_its_script(paths, history):
    writer = EventWriter(paths.sidecar)
    for event in (started(5000.0), report(5004.0, 1, 0.1)):
        writer.write(event)
    writer.close()
    (lost,) = recover_lost(history, "job", NOW, home_of(paths))
    assert lost.time_s == 4.0


def test_the_time_of_a_lost_trial_whose_start_nobody_marked_is_not_the_machines_uptime(
    paths, history
):
    writer = EventWriter(paths.sidecar)
    for event in (report(5000.0, 1, 0.1), report(5004.0, 2, 0.2)):
        writer.write(event)
    writer.close()
    (lost,) = recover_lost(history, "job", NOW, home_of(paths))
    assert lost.time_s is None or lost.time_s <= 4.0


def test_an_outcome_that_was_decided_is_recorded_and_not_lost(paths, history):
    reserve_record(paths, dispatched(paths))
    write_record(paths, dispatched(paths).finish(DONE))
    (recovered,) = recover_lost(history, "job", NOW, home_of(paths))
    assert recovered == dispatched(paths).finish(DONE)


def test_a_run_directory_that_is_gone_is_lost_all_the_same(paths, history):
    paths.run_dir.rename(paths.run_dir.with_name("moved"))
    (lost,) = recover_lost(history, "job", NOW, home_of(paths))
    assert (lost.status, lost.steps) == (TrialStatus.LOST, None)


def test_finished_trials_are_not_touched(paths, history):
    done = history.finish("job-1-1", DONE)
    assert recover_lost(history, "job", NOW, home_of(paths)) == []
    assert history.trials("job") == [done]


def test_what_a_dead_launcher_left_running_is_ended(paths, history):
    orphan = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"],
        env={**os.environ, "ZEUSRUN_RUN_DIR": str(paths.run_dir)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert orphan.stdout.readline() == b"up\n"
    recover_lost(history, "job", NOW, home_of(paths))
    orphan.communicate(timeout=300)
    assert not psutil.pid_exists(orphan.pid)


class RacedHistory(MemoryHistory):
    """Another submit recovers the same trials between this one's look and its write."""

    raced = True
    home = None

    def unfinished(self, job):
        seen = super().unfinished(job)
        if not self.raced and seen:
            self.raced = True
            recover_lost(self, job, NOW, self.home)
        return seen


def test_two_submits_may_recover_the_same_trial_at_once(paths):
    history = RacedHistory()
    begin(history, dispatched(paths))
    history.raced, history.home = False, home_of(paths)
    recover_lost(history, "job", NOW, home_of(paths))
    assert [found.status for found in history.trials("job")] == [TrialStatus.LOST]


def test_a_trial_whose_files_cannot_be_read_is_lost_with_a_warning(paths, history):
    paths.sidecar.mkdir()
    paths.rank_clock(0).mkdir()
    (lost,) = recover_lost(history, "job", NOW, home_of(paths))
    assert lost.status is TrialStatus.LOST
    assert "cannot be read" in lost.warnings[0]

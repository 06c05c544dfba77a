"""Policies that check the speed of a batch size first, or stop a run by its pace; with real ranks."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal

import pytest

from tests.factories import begin
from tests.factories import build_trial as trial
from zeusrun.bandit.problem import ArmBelief, Observation
from zeusrun.bandit.stopping import hopeless
from zeusrun.choice.problem import Forced
from zeusrun.gpu.registry import job_devices
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.attempts.recurrence import submit
from zeusrun.launcher.context import Submission, holding_limits
from zeusrun.launcher.events import Advanced, BoundChanged, Noted, TrialEnded, TrialStarts, Warned
from zeusrun.launcher.processes.command import find_torchrun
from zeusrun.launcher.supervision import speed_check
from zeusrun.trial import Bound, CurvePoint, Decision, EnergySource, Outcome, Stage, TrialStatus


class Scripted:
    """Returns its decisions one after the other, then the last one again and again."""

    name = "scripted"

    def __init__(self, *decisions, epoch_cost_j=1370.0):
        self.decisions = list(decisions)
        self.epoch_cost_j = epoch_cost_j
        self.asked = []

    def choose(self, problem, runs, rng):
        if runs and runs[-1] == Observation(
            runs[-1].arm, problem.recurrence, TrialStatus.STOPPED, runs[-1].stage, epochs=1
        ):  # the question whether another attempt could follow
            other = next(arm for arm in problem.candidates if arm != runs[-1].arm)
            return Decision(other, Stage.EXPLORE, "another")
        self.asked.append((problem, list(runs)))
        return self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]

    def explain(self, problem, runs, rng):
        return [
            ArmBelief(
                global_batch_size=arm,
                trials=0,
                reached=0,
                epoch_cost_j=self.epoch_cost_j,
                chance=0.0,
                verdict=f"{arm} is 40% dearer",
            )
            for arm in problem.candidates
        ]

    def next_lever(self, problem, decision, profile):
        return None

    def review(self, problem, decision, running):
        return hopeless(decision.bound, problem.mode, running)


class Recorder:
    """Keeps the events of a submit."""

    def __init__(self):
        self.notes, self.bounds, self.ended = [], [], []

    def __call__(self, event):
        match event:
            case Noted(text) | Warned(text):
                self.notes.append(text)
            case TrialStarts(_, bound_j) | BoundChanged(bound_j):
                self.bounds.append(bound_j)
            case Advanced(progress):
                self.advanced(progress)
            case TrialEnded(trial, replaced):
                self.ended.append((trial.status, replaced))

    def advanced(self, progress):
        pass


class Releases(Recorder):
    """Lets a training of ``steps_slowly.py`` go on to its target once its speed is decided."""

    def __init__(self, zeusrun):
        super().__init__()
        self.file = zeusrun.folder / "decided"
        self.args = ["--until", str(self.file)]

    def __call__(self, event):
        super().__call__(event)
        if isinstance(event, (BoundChanged, TrialEnded)):
            self.file.touch()


@pytest.fixture
def run(zeusrun):
    """Submit a job under a policy in this process; return the result and the recorder."""
    environment = {**zeusrun.environment, "CUDA_VISIBLE_DEVICES": ""}

    def run_job(job, policy, recorder=None, **changes):
        spec = load_spec(job)
        devices, world_size = job_devices(spec.launch.nproc_per_node, environment)
        recorder = recorder or Recorder()
        submission = Submission(
            spec=spec,
            history=TinyDBHistory(zeusrun.home / "history"),
            policy=policy,
            devices=devices,
            world_size=world_size,
            torchrun=find_torchrun(),
            home=zeusrun.home,
            environment=environment,
        )
        try:
            with holding_limits(dataclasses.replace(submission, **changes), recorder) as held:
                return submit(held, recorder), recorder
        finally:
            submission.close()

    return run_job


MACHINE_W = 10.0 * len(os.sched_getaffinity(0))  # of the estimated CPU
CHECK = Decision(16, Stage.SPEED_CHECK, "16 may be cheaper", bound=Bound(1e9))
OTHER = Decision(32, Stage.EXPLOIT, "32 has proved cheapest")


def test_a_batch_size_that_a_speed_check_rejects_is_ended_and_the_other_one_follows(zeusrun, run):
    policy = Scripted(CHECK, OTHER)
    recorder = Releases(zeusrun)
    changes = {"args": recorder.args, "attempts": 1, "objective": {"eta_knob": 0}}
    result, _ = run(zeusrun.job("steps_slowly.py", **changes), policy, recorder)
    checked, trained = result.trials
    assert (result.exit_code, result.reached, result.attempts) == (0, True, 1)
    assert (checked.status, checked.global_batch_size) == (TrialStatus.CANCELLED, 16)
    assert checked.reason == (
        "only its speed was checked: 1.37 kJ an epoch; 16 is 40% dearer; 32 follows"
    )
    assert recorder.ended == [(TrialStatus.CANCELLED, True), (TrialStatus.REACHED, False)]
    assert f"stopping: {checked.reason}" in recorder.notes
    assert (trained.status, trained.global_batch_size) == (TrialStatus.REACHED, 32)
    assert (trained.recurrence, trained.attempt) == (1, 2)
    (_, seen), (_, later) = policy.asked[1:3]
    assert [(r.arm, r.status) for r in seen] == [(16, TrialStatus.CANCELLED)]
    assert seen[0].epoch_cost_j > 0
    assert later[0].epoch_cost_j > 0  # so that nobody has to look again


def test_a_batch_size_that_a_speed_check_accepts_goes_on_under_its_new_bound(zeusrun, run):
    on = Decision(16, Stage.EXPLORE, "16 is 10 % cheaper an epoch", bound=Bound(1e6))
    recorder = Releases(zeusrun)
    job = zeusrun.job("steps_slowly.py", args=recorder.args)
    result, _ = run(job, Scripted(CHECK, on), recorder)
    (trained,) = result.trials
    assert (result.exit_code, trained.status) == (0, TrialStatus.REACHED)
    assert recorder.bounds == [1e9, 1e6]
    assert f"the speed is now known, and the run continues: {on.why}" in recorder.notes
    (point,) = trained.power_profile
    assert point.power_limit_w is None
    assert 0 < point.steps_per_s < 110
    assert point.power_w is not None


@pytest.fixture
def known(zeusrun):
    """A history that knows how many steps make an epoch, and what a run costs."""
    history = TinyDBHistory(zeusrun.home / "history")
    begin(history, trial(world_size=1))
    curve = (CurvePoint(1, 1.0, 10.0, 0.1), CurvePoint(2, 2.0, 20.0, 0.6))
    done = Outcome(
        TrialStatus.REACHED,
        "reached",
        "2025-06-01T13:00:00.000+00:00",
        time_s=2.0,
        energy_j=20.0,
        energy_source=EnergySource.ESTIMATED,
        max_power_w=MACHINE_W,
        epochs=2,
        steps=200,
        whole_steps=200,
        curve=curve,
    )
    history.finish("job-1-1", done)


@pytest.mark.long  # a submit; launcher/supervision/test_speed_check.py has the rule
def test_a_speed_check_ends_before_an_epoch_if_the_length_of_an_epoch_is_known(
    zeusrun, run, known, monkeypatch
):
    monkeypatch.setattr(speed_check, "SPEED_CHECK_S", 0.2)
    policy = Scripted(CHECK, OTHER)
    policy.epoch_cost_j = None
    result, _ = run(zeusrun.job("steps_slowly.py", args=["--endless", "16"]), policy)
    checked, trained = result.trials
    assert (checked.status, trained.status) == (TrialStatus.CANCELLED, TrialStatus.REACHED)
    assert checked.reason == "only its speed was checked: 16 is 40% dearer; 32 follows"
    assert policy.asked[0][0].samples_per_epoch == 3200
    assert (policy.asked[1][1][-1].epochs, checked.power_profile != ()) == (None, True)


def test_without_energy_there_is_no_speed_check_and_the_training_goes_on(zeusrun, run):
    policy = Scripted(CHECK, OTHER)
    result, _ = run(zeusrun.job(), policy, devices=())
    (trained,) = result.trials
    assert (trained.status, trained.global_batch_size) == (TrialStatus.REACHED, 16)
    assert len(policy.asked) == 1


@pytest.mark.long  # two trials
def test_the_speed_of_a_batch_size_is_checked_once_however_often_the_policy_asks(zeusrun, run):
    policy = Scripted(CHECK, OTHER, CHECK)
    recorder = Releases(zeusrun)
    job = zeusrun.job("steps_slowly.py", args=recorder.args)
    result, _ = run(job, policy, recorder)
    assert [t.status for t in result.trials] == [TrialStatus.CANCELLED, TrialStatus.REACHED]
    assert [t.global_batch_size for t in result.trials] == [16, 16]


class Interrupted(Recorder):
    """Sends one SIGTERM to zeusrun, as soon as ``when`` is true."""

    def __init__(self, when):
        super().__init__()
        self.when, self.sent = when, False

    def advanced(self, progress):
        if self.when(self, progress) and not self.sent:
            self.sent = True
            signal.raise_signal(signal.SIGTERM)


def test_a_signal_during_a_speed_check_ends_the_submit_without_asking_the_policy_again(
    zeusrun, run, known, monkeypatch
):
    monkeypatch.setattr(speed_check, "SPEED_CHECK_S", math.inf)

    def trains(_recorder, progress):
        if progress.steps:  # from now on enough is seen, while it ends
            monkeypatch.setattr(speed_check, "SPEED_CHECK_S", 0.2)
        return progress.steps

    policy, recorder = Scripted(CHECK, CHECK), Interrupted(trains)
    result, _ = run(zeusrun.job("steps_slowly.py", args=["--endless", "16"]), policy, recorder)
    (cancelled,) = result.trials
    assert (result.exit_code, cancelled.status) == (75, TrialStatus.PREEMPTED)
    assert cancelled.reason == "SIGTERM to zeusrun"
    assert cancelled.time_s > 0.2
    assert cancelled.steps > speed_check.SPEED_CHECK_STEPS
    assert len(policy.asked) == 1
    assert not [note for note in recorder.notes if "known, and it continues" in note]
    assert recorder.ended == [(TrialStatus.PREEMPTED, False)]


def test_a_signal_while_a_speed_check_ends_is_the_cause_because_nothing_follows(
    zeusrun, run, known, monkeypatch
):
    monkeypatch.setattr(speed_check, "SPEED_CHECK_S", 0.2)

    def stopping(recorder, _progress):
        return any(note.startswith("stopping: only its speed") for note in recorder.notes)

    recorder = Interrupted(stopping)
    job = zeusrun.job("steps_slowly.py", args=["--endless", "16"])
    result, _ = run(job, Scripted(CHECK, OTHER), recorder)
    (cancelled,) = result.trials
    assert (result.exit_code, cancelled.reason) == (75, "SIGTERM to zeusrun")
    assert recorder.ended == [(TrialStatus.PREEMPTED, False)]


@pytest.mark.parametrize("attempts", [pytest.param(1, marks=pytest.mark.long), 3])  # 2 s
def test_a_speed_check_that_runs_out_of_memory_while_it_ends_is_oom_and_another_run_follows(
    zeusrun, run, attempts
):
    job = zeusrun.job("is_full_when_told.py", attempts=attempts)
    result, recorder = run(job, Scripted(CHECK, OTHER))
    assert [t.status for t in result.trials] == [TrialStatus.OOM, TrialStatus.REACHED]
    assert result.trials[0].reason.endswith("MemoryError: too little of it")
    assert recorder.ended == [(TrialStatus.OOM, False), (TrialStatus.REACHED, False)]


def test_a_forced_batch_size_has_no_bound_because_no_other_may_follow(zeusrun, run, known):
    tight = Decision(32, Stage.EXPLORE, "32 is tried", bound=Bound(1.0))
    result, recorder = run(zeusrun.job(), Scripted(tight), forced=Forced(64, "the user"))
    (trained,) = result.trials
    assert (trained.status, trained.global_batch_size) == (TrialStatus.REACHED, 64)
    assert recorder.bounds == [None]


def test_a_run_that_falls_behind_the_pace_is_stopped_long_before_its_bound(zeusrun, run):
    time_only = {"eta_knob": 0}
    result, _ = run(zeusrun.job(args=["--epoch-s", "0.3"], objective=time_only), Scripted(OTHER))
    (reached,) = result.trials
    pace = tuple((epoch, 0.05 * epoch) for epoch in range(1, 11))
    bound = Bound(5 * reached.cost_j, (pace,))
    objective = {"max_epochs": 1000, **time_only}
    stuck = zeusrun.job(
        args=["--epoch-s", "0.3", "--gain", "0.0001"], objective=objective, attempts=3
    )
    result, _ = run(stuck, Scripted(dataclasses.replace(OTHER, bound=bound)))
    (stopped,) = result.trials
    assert (result.exit_code, stopped.status) == (4, TrialStatus.STOPPED)
    assert "it has come 20 % of the way at most" in stopped.reason


def test_auto_checks_the_speed_of_a_batch_size_and_goes_back_when_its_epochs_are_expensive(zeusrun):
    from zeusrun.commands.submit import (
        compose,  # the devices of this machine are part of what is compared
    )

    max_epochs = 100_000
    job = zeusrun.job(
        args=["--epoch-s", "0.4", "--gain", "0.15"], objective={"max_epochs": max_epochs}
    )
    max_power_w = sum(device.max_power_w for device in compose(load_spec(job)).devices)
    history = TinyDBHistory(zeusrun.home / "history")
    epochs, epoch_s = 40_000, 0.01
    begun = [CurvePoint(n, n * epoch_s, 0.1 * n, 0.15 * n) for n in (1, 2, 3)]
    for number in range(1, 4):
        time_s = epochs * epoch_s
        energy_j = 0.5 * max_power_w * time_s
        past = trial(
            trial=f"job-{number}-1", recurrence=number, world_size=1, max_epochs=max_epochs
        )
        begin(history, past)
        done = Outcome(
            TrialStatus.REACHED,
            "reached",
            "2025-06-01T13:00:00.000+00:00",
            time_s=time_s,
            energy_j=energy_j,
            energy_source=EnergySource.ESTIMATED,
            max_power_w=max_power_w,
            cost_j=0.75 * max_power_w * time_s,
            epochs=epochs,
            curve=(*begun, CurvePoint(epochs, time_s, energy_j, 0.6)),
        )
        history.finish(past.trial, done)
    code, result, seen = zeusrun.submit(job)
    checked, *others, trained = result["trials"]
    assert (code, checked["status"], checked["stage"]) == (0, "CANCELLED", "look")
    follows = (*others, trained)[0]["global_batch_size"]
    assert re.fullmatch(
        rf"only its speed was checked: .* k?J an epoch; .* more expensive than .*; {follows} follows",
        checked["reason"],
    )
    assert checked["reason"] in seen
    assert (trained["status"], trained["global_batch_size"]) == ("REACHED", 32)
    assert len({t["global_batch_size"] for t in (checked, *others, trained)}) == 2 + len(others)


def test_a_trial_is_recorded_even_if_the_consumer_of_events_fails(zeusrun, run):
    class Failing(Recorder):
        def __call__(self, event):
            match event:
                case TrialStarts():
                    raise RuntimeError("the view failed")

    with pytest.raises(RuntimeError, match="the view failed"):
        run(zeusrun.job(), Scripted(OTHER), Failing())
    (trial,) = zeusrun.history()
    assert trial["status"] == "FAILED"
    assert "the view failed" in trial["reason"]

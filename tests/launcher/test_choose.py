"""What the policy is asked of the next attempt."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.factories import REACHED, build_trial, load_job
from tests.history.memory import MemoryHistory
from zeusrun.bandit.auto.policy import bound_of_proven
from zeusrun.bandit.control import explain_next
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import fit_bound
from zeusrun.launcher.choose import Attempt, NothingLeft, choose_attempt, choose_next, decide
from zeusrun.launcher.context import Submission
from zeusrun.launcher.problem import build_problem
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.trial import CurvePoint, EnergySource, Interruption, Stage, TrialStatus
from zeusrun.view.explain import describe_choice

MISSED, LOOKED = TrialStatus.MISSED, TrialStatus.CANCELLED


@pytest.fixture
def submission(tmp_path):
    return Submission(
        spec=load_job(tmp_path, attempts=3),
        history=MemoryHistory(),
        policy=create_policy("auto"),
        devices=(),
        world_size=1,
        torchrun=None,
        home=tmp_path,
        environment={},
    )


@pytest.mark.parametrize(
    ("endings", "last"),
    [((), False), ((MISSED,), False), ((MISSED, LOOKED), False), ((MISSED, LOOKED, MISSED), True)],
)
def test_the_policy_is_told_that_an_attempt_is_the_last_one_after_a_failure(
    submission, endings, last
):
    earlier = [build_trial(1, n, status=MISSED) for n in (1, 2)]
    now = [build_trial(2, n, status=status) for n, status in enumerate(endings, 1)]
    assert build_problem(submission, [*earlier, *now], 2).last_attempt is last
    assert not build_problem(submission, [*earlier, *now]).last_attempt  # of the next recurrence


def test_a_trial_records_the_micro_batches_that_it_was_to_train_with(submission, tmp_path):
    assert choose_next(submission, [], None, 1).trial.micro_batch_size is None
    spec = load_job(tmp_path, batch_size={"per_device_max": 12})
    submission = replace(submission, spec=spec, world_size=2)
    problem = build_problem(submission, [build_trial(global_batch_size=33)])
    assert problem.micro_batch_sizes == {32: 8, 64: 8}
    assert choose_next(submission, [], None, 1).trial.micro_batch_size == 8


@pytest.mark.parametrize(("interruptions", "ends"), [((Interruption(2.0, 2),), False), ((), True)])
def test_a_target_that_an_interrupted_run_has_reached_is_not_in_doubt(
    submission, interruptions, ends
):
    curve = (CurvePoint(1, 3.0, 30.0, 0.4), CurvePoint(2, 4.0, 40.0, 0.6))
    anew = build_trial(1, world_size=1).finish(
        replace(REACHED, curve=curve, epochs=2, interruptions=interruptions)
    )
    anew = anew if interruptions else replace(anew, forgotten=True)
    low = tuple(point._replace(value=0.1) for point in curve)
    made = [
        build_trial(2, n, world_size=1, global_batch_size=size).finish(
            replace(REACHED, status=MISSED, curve=low, epochs=5)
        )
        for n, size in enumerate((32, 16), 1)
    ]
    attempts = [Attempt(trial, replaced=False) for trial in made]
    choice = choose_attempt(submission, [anew, *made], attempts)
    assert isinstance(choice, NothingLeft) is ends


def test_a_script_that_ignores_the_batch_size_runs_with_its_own(submission):
    ignored = build_trial(1, global_batch_size=64, observed_batch_size=16, status=MISSED)
    assert build_problem(submission, [ignored]).candidates == (32,)  # the default of the job
    again = build_trial(2, global_batch_size=32, observed_batch_size=16, status=MISSED)
    assert build_problem(submission, [again, ignored]).candidates == (16,)
    choice = choose_next(submission, [again, ignored], 1, 2)
    assert choice.trial.global_batch_size == 16
    assert choice.kept[0] == (
        "job-1-1 trained with batch size 16, not with 64: only 16 runs until another one arrives. "
        "Once the script takes it: zeusrun history --forget job-1-1"
    )
    unknown = replace(ignored, observed_batch_size=48)  # no candidate
    assert build_problem(submission, [unknown]).candidates == (32,)
    own = build_trial(2, global_batch_size=16, observed_batch_size=16, status=MISSED)
    assert build_problem(submission, [ignored, own]).candidates == (16,)
    arrived = build_trial(3, global_batch_size=64, observed_batch_size=64, status=MISSED)
    for trials in ([replace(ignored, forgotten=True)], [ignored, own, arrived]):
        assert build_problem(submission, trials).candidates == (16, 32, 64)


def test_a_batch_size_does_not_drift_where_the_script_multiplies_it(submission):
    """As with two ranks that a script starts itself, each with the batch size of the option."""
    trials = []
    for number in range(1, 5):
        choice = choose_next(submission, trials, number, 1)
        assert choice.trial.global_batch_size == 32
        trials.append(
            build_trial(number, global_batch_size=32, observed_batch_size=64, status=MISSED)
        )
    assert choice.kept[0] == (
        "job-3-1 trained with batch size 64, not with 32: only 32 runs until another one arrives. "
        "If the script trains with 2 times what it gets, pass ${batch_size/2} in args, and make "
        "64 the default. Once the script takes it: zeusrun history --forget job-3-1"
    )
    assert choice.trial.why == (
        "32 is the only batch size that runs until the script trains with the one that it gets; "
        "runs with another one teach nothing, even if they reach the target"
    )
    problem, runs = read_history(build_problem(submission, trials), trials)
    beliefs = explain_next(submission.policy, problem, runs, np.random.default_rng(0))
    told = " ".join(describe_choice(submission, problem, runs, beliefs))
    assert "o other candidate is tried before one arrives in the training." in told
    forced = build_trial(5, global_batch_size=64, observed_batch_size=128, status=MISSED)
    assert build_problem(submission, [*trials, forced]).candidates == (32,)


def reached(number, arm, cost_j):
    """A run that has reached the target, priced by its energy and 65 W times its time."""
    outcome = replace(REACHED, time_s=1.0, energy_j=2 * cost_j - 65.0, cost_j=cost_j, curve=())
    trial = build_trial(number, global_batch_size=arm, world_size=1, target=0.5, max_epochs=5)
    return trial.finish(outcome)


def test_a_forced_run_has_no_bound_because_no_other_may_follow(submission):
    submission = replace(submission, forced_batch_size=32)
    problem, runs = read_history(build_problem(submission, []), [reached(1, 32, 100.0)])
    decision = decide(submission, problem, runs, 1)
    assert (decision.stage, decision.bound) == (Stage.FORCED, None)


def preempted(tmp_path, **changes):
    """A preempted trial whose run directory is there."""
    run_dir = tmp_path / "runs" / "job" / "job-2-1"
    run_dir.mkdir(parents=True)
    (run_dir / "job.yaml").touch()
    trial = build_trial(2, global_batch_size=16, world_size=1, run_dir=str(run_dir), **changes)
    return replace(REACHED, status=TrialStatus.PREEMPTED, reason="SIGTERM"), trial


def test_a_preempted_trial_goes_on_under_the_bound_of_any_other(submission, tmp_path):
    outcome, trial = preempted(tmp_path)
    choice = choose_next(submission, [reached(1, 32, 100.0), trial.finish(outcome)], None, 1)
    assert (choice.trial.trial, choice.trial.host) == ("job-2-1", submission.host)
    assert choice.decision.global_batch_size == 16
    bound = bound_of_proven(choice.problem, choice.runs)
    assert choice.decision.bound == fit_bound(choice.problem, choice.runs, 16, bound)
    assert bound.cost_j > 100.0


def test_a_policy_that_bounds_nothing_bounds_no_preempted_trial(submission, tmp_path):
    submission = replace(submission, policy=create_policy("fixed"))
    outcome, trial = preempted(tmp_path)
    choice = choose_next(submission, [reached(1, 32, 100.0), trial.finish(outcome)], None, 1)
    assert (choice.trial.trial, choice.decision.bound) == ("job-2-1", None)


def controlled(submission, tmp_path, every=2):
    spec = load_job(tmp_path, attempts=3, policy={"control": every})
    return replace(submission, spec=spec)


def test_every_nth_recurrence_begins_with_the_default(submission, tmp_path):
    submission = controlled(submission, tmp_path, 3)
    past = [reached(n, 64, 50.0) for n in (1, 2)]
    choice = choose_next(submission, past, None, 1)
    assert (choice.trial.recurrence, choice.trial.global_batch_size) == (3, 32)
    assert (choice.trial.stage, choice.decision.bound) == (Stage.CONTROL, None)
    forced = choose_next(replace(submission, forced_batch_size=64), past, None, 1)
    assert (forced.trial.stage, forced.trial.global_batch_size) == (Stage.FORCED, 64)
    lost = build_trial(3, world_size=1, stage=Stage.CONTROL, status=TrialStatus.LOST)
    assert choose_next(submission, [*past, lost], 3, 2).trial.stage is not Stage.CONTROL


def test_a_preempted_control_run_goes_on_without_a_bound_and_another_run_stays(
    submission, tmp_path
):
    outcome, trial = preempted(tmp_path)
    for stage in (Stage.CONTROL, Stage.EXPLORE):
        cut = replace(trial, stage=stage).finish(outcome)
        past = [reached(1, 32, 100.0), cut]
        choice = choose_next(controlled(submission, tmp_path), past, None, 1)
        assert (choice.trial.trial, choice.trial.global_batch_size) == ("job-2-1", 16)
        assert (choice.decision.stage, choice.decision.bound is None) == (
            stage,
            stage is Stage.CONTROL,
        )


@pytest.mark.parametrize(("time_s", "limit_w"), [(10.0, 250.0), (None, 200.0)])
def test_the_limit_of_today_is_not_that_of_what_was_trained_before(
    submission, tmp_path, time_s, limit_w
):
    gpu = SimpleNamespace(
        is_gpu=True,
        model="A100",
        max_power_w=300.0,
        energy_source=EnergySource.COUNTER,
        read=lambda: SimpleNamespace(power_limit_w=200.0),
    )
    outcome, trial = preempted(tmp_path, gpu_model="A100", gpu_count=1)
    trial = trial.finish(replace(outcome, time_s=time_s, power_limit_w=250.0))
    choice = choose_next(replace(submission, devices=(gpu,)), [trial], None, 1)
    assert choice.trial.trial == "job-2-1"
    assert (choice.trial.power_limit_w, choice.limit_w) == (limit_w, 200.0)


def test_runs_that_the_history_lacks_are_named(submission, tmp_path):
    def begun(name):
        paths = create_run(tmp_path, "job", name)
        paths.sidecar.touch()

    begun("job-3-1")
    choice = choose_next(submission, [], None, 1)
    assert choice.trial.trial == "job-4-1"
    (sentence,) = choice.kept
    assert sentence.startswith("it lacks job-3-1 whose run directory exists; `zeusrun repair")
    begun("job-4-1")
    (sentence,) = choose_next(submission, [], None, 1).kept
    assert sentence.startswith("it lacks 2 runs, such as job-4-1, whose run directory exists")

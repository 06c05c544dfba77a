"""What the policy is asked of the next attempt."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.factories import REACHED, build_trial, load_job
from zeusrun.bandit.auto.policy import Auto, bound_of_proven
from zeusrun.bandit.registry import create_policy, explain_next
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import fit_bound
from zeusrun.choice.choose import (
    Attempt,
    NothingLeft,
    choose_offline,
    choose_trial,
    decide,
    decide_after_miss,
)
from zeusrun.choice.problem import Chooser, Forced, Machine, Moment, build_problem, next_recurrence
from zeusrun.errors import UsageError
from zeusrun.trial import CurvePoint, Hardware, Interruption, SizeChange, Stage, TrialStatus
from zeusrun.view.belief import describe_choice

ROOT = Path(__file__).parents[2]
MISSED, LOOKED = TrialStatus.MISSED, TrialStatus.CANCELLED


@dataclass(frozen=True)
class Asked:
    """A job on a machine; ``choose`` and ``problem`` need nothing but values."""

    chooser: Chooser
    machine: Machine = Machine(hardware=Hardware())  # noqa: RUF009 - a frozen value

    def change(self, machine=None, **changes):
        return Asked(replace(self.chooser, **changes), machine or self.machine)

    def problem(self, trials, recurrence=None):
        number = next_recurrence(trials) if recurrence is None else recurrence
        return build_problem(self.chooser.spec, self.machine, trials, number)

    def choose(self, trials, made=(), **moment):
        values = {"now": "2026-01-02", "uuid": "0" * 32, "runs": Path("runs"), "fingerprint": {}}
        moment = Moment(**{**values, **moment})
        return choose_trial(self.chooser, self.machine, trials, made, moment)


@pytest.fixture
def asked(tmp_path):
    return Asked(Chooser(load_job(tmp_path, attempts=3), create_policy("auto")))


def replaced(trial):
    """An attempt that a speed check has ended, so that another one always follows."""
    return [Attempt(trial, replaced=True)]


@pytest.mark.parametrize(
    ("endings", "left"),
    [((), 3), ((MISSED,), 2), ((MISSED, LOOKED), 2), ((MISSED, LOOKED, MISSED), 1)],
)
def test_the_policy_is_told_how_many_attempts_are_left_after_a_failure(asked, endings, left):
    earlier = [build_trial(1, n, status=MISSED) for n in (1, 2)]
    now = [build_trial(2, n, status=status) for n, status in enumerate(endings, 1)]
    problem = asked.problem([*earlier, *now], 2)
    assert (problem.attempts_left, problem.last_attempt) == (left, left == 1)
    assert not asked.problem([*earlier, *now]).last_attempt  # of the next recurrence


def test_a_policy_is_asked_for_what_the_job_file_says(asked, tmp_path):
    goal = {"metric": "loss", "mode": "min", "target": 0.6, "max_epochs": 7, "eta_knob": 0.25}
    policy = {"window": 4, "control": 3, "learn_from_shared": True}
    bound = {"cost_factor": 3.0}
    spec = load_job(tmp_path, objective=goal, policy=policy, early_stop=bound)
    machine = Machine(hardware=Hardware(), energy_measured=True, max_power_w=90.0)
    problem = asked.change(machine, spec=spec).problem([])
    told = {**goal, **policy, **bound, "energy_measured": True, "max_power_w": 90.0}
    assert {name: getattr(problem, name) for name in told} == told


def test_a_recurrence_of_one_attempt_explores_as_if_others_followed(asked, tmp_path):
    asked = asked.change(spec=load_job(tmp_path, attempts=1))
    assert not asked.problem([]).last_attempt


@pytest.mark.parametrize(("attempts", "asked_of"), [(1, []), (2, [(True, 1)]), (3, [(False, 2)])])
def test_what_would_follow_a_miss_is_asked_with_the_attempts_that_are_left(
    asked, tmp_path, monkeypatch, attempts, asked_of
):
    first, problem = asked.choose([]).decision, asked.problem([])
    problems, choose = [], Auto.choose
    monkeypatch.setattr(
        Auto, "choose", lambda self, *of: problems.append(of[0]) or choose(self, *of)
    )
    asked = asked.change(spec=load_job(tmp_path, attempts=attempts))
    then = decide_after_miss(asked.chooser, problem, [], first, 10.0)
    assert [(each.last_attempt, each.attempts_left) for each in problems] == asked_of
    assert (then is None) == (attempts == 1)
    alone = replace(problem, candidates=(32,))
    assert decide_after_miss(asked.chooser, alone, [], first, 10.0) is None


def test_a_trial_records_the_micro_batches_that_it_was_to_train_with(asked, tmp_path):
    assert asked.choose([]).trial.micro_batch_size is None
    spec = load_job(tmp_path, batch_size={"per_device_max": 12})
    asked = asked.change(Machine(hardware=Hardware(2)), spec=spec)
    problem = asked.problem([build_trial(global_batch_size=33)])
    assert problem.micro_batch_sizes == {32: 8, 64: 8}
    assert asked.choose([]).trial.micro_batch_size == 8


@pytest.mark.parametrize(("interruptions", "ends"), [((Interruption(2.0, 2),), False), ((), True)])
def test_a_target_that_an_interrupted_run_has_reached_is_not_in_doubt(asked, interruptions, ends):
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
    choice = asked.choose([anew, *made], attempts)
    assert isinstance(choice, NothingLeft) is ends


def test_a_script_that_ignores_the_batch_size_runs_with_its_own(asked):
    ignored = build_trial(1, global_batch_size=64, observed_batch_size=16, status=MISSED)
    assert asked.problem([ignored]).candidates == (32,)  # the default of the job
    again = build_trial(2, global_batch_size=32, observed_batch_size=16, status=MISSED)
    assert asked.problem([again, ignored]).candidates == (16,)
    choice = asked.choose([again, ignored], replaced(ignored))
    assert choice.trial.global_batch_size == 16
    assert choice.about_history[0] == (
        "job-1-1 trained with batch size 16, not with 64: only 16 runs until another one arrives. "
        "Once the script takes it: zeusrun history --forget job-1-1"
    )
    unknown = replace(ignored, observed_batch_size=48)  # no candidate
    assert asked.problem([unknown]).candidates == (32,)
    own = build_trial(2, global_batch_size=16, observed_batch_size=16, status=MISSED)
    assert asked.problem([ignored, own]).candidates == (16,)
    arrived = build_trial(3, global_batch_size=64, observed_batch_size=64, status=MISSED)
    for trials in ([replace(ignored, forgotten=True)], [ignored, own, arrived]):
        assert asked.problem(trials).candidates == (16, 32, 64)


def test_after_a_batch_size_that_nothing_took_the_default_runs(asked):
    ignored = build_trial(1, global_batch_size=64, unapplied=True, status=MISSED)
    assert not ignored.teaches
    assert asked.problem([ignored]).candidates == (32,)
    own = build_trial(2, status=MISSED)
    seen = replace(own, observed_batch_size=32)  # that is the script's own
    assert asked.problem([ignored, seen]).candidates == (32,)
    choice = asked.choose([ignored, own])
    assert choice.about_history[0].startswith(
        "job-1-1 trained with its own batch size, not with 64: only 32 runs until another one"
    )
    arrived = build_trial(3, global_batch_size=16, observed_batch_size=16, status=MISSED)
    for trials in ([replace(ignored, forgotten=True)], [ignored, own, arrived]):
        assert asked.problem(trials).candidates == (16, 32, 64)


def test_no_batch_size_above_the_samples_of_an_epoch_runs_again(asked):
    """An epoch of 50 samples, of which two ranks drop a part."""
    seen = {"observed_batch_size": 48, "samples": 480, "progress": 480 / 50, "status": MISSED}
    above = build_trial(1, global_batch_size=64, **seen)
    assert not above.teaches
    assert asked.problem([above]).candidates == (16, 32)
    assert asked.choose([above]).about_history[0] == (
        "job-1-1 trained with batch size 48, not with 64: an epoch has too few samples for a "
        "larger one. When the data have grown, run zeusrun history --forget job-1-1"
    )
    assert asked.problem([replace(above, forgotten=True)]).candidates == (16, 32, 64)
    own = replace(above, observed_batch_size=8)  # that of the script
    assert asked.problem([own]).candidates == (32,)
    small = build_trial(1, global_batch_size=64, **{**seen, "observed_batch_size": 16})
    assert asked.problem([replace(small, samples=160, progress=160 / 16)]).candidates == (16, 32)


def test_a_batch_size_does_not_drift_where_the_script_multiplies_it(asked):
    """As with two ranks that a script starts itself, each with the batch size of the option."""
    trials = []
    for number in range(1, 5):
        choice = asked.choose(trials)
        assert choice.trial.global_batch_size == 32
        trials.append(
            build_trial(number, global_batch_size=32, observed_batch_size=64, status=MISSED)
        )
    assert choice.about_history[0] == (
        "job-3-1 trained with batch size 64, not with 32: only 32 runs until another one arrives. "
        "Once the script takes it: zeusrun history --forget job-3-1"
    )
    assert choice.trial.why == (
        "32 is the only batch size that runs until the script trains with the one that it gets; "
        "runs with another one teach nothing, even if they reach the target"
    )
    problem, runs = read_history(asked.problem(trials), trials)
    beliefs = explain_next(asked.chooser.policy, problem, runs, np.random.default_rng(0))
    told = " ".join(describe_choice(asked.chooser, problem, runs, beliefs))
    assert "o other candidate is tried before the script trains with a chosen batch size." in told
    forced = build_trial(5, global_batch_size=64, observed_batch_size=128, status=MISSED)
    assert asked.problem([*trials, forced]).candidates == (32,)


def reached(number, arm, cost_j):
    """A run that has reached the target, priced by its energy and 65 W times its time."""
    outcome = replace(REACHED, time_s=1.0, energy_j=2 * cost_j - 65.0, cost_j=cost_j, curve=())
    trial = build_trial(number, global_batch_size=arm, world_size=1, target=0.5, max_epochs=5)
    return trial.finish(outcome)


def test_a_forced_run_has_no_bound_because_no_other_may_follow(asked):
    asked = asked.change(forced=Forced(32, "the user"))
    problem, runs = read_history(asked.problem([]), [reached(1, 32, 100.0)])
    decision = decide(asked.chooser, problem, runs, 1)
    assert (decision.stage, decision.bound) == (Stage.FORCED, None)


def test_the_user_may_choose_every_batch_size_of_the_file_also_if_the_script_ignored_one(asked):
    ignored = build_trial(1, global_batch_size=64, observed_batch_size=16, status=MISSED)
    problem, runs = read_history(asked.problem([ignored]), [ignored])
    assert problem.candidates == (32,)
    for size in asked.chooser.spec.batch_size.candidates:
        chooser = replace(asked.chooser, forced=Forced(size, "the user"))
        assert decide(chooser, problem, runs, 1).global_batch_size == size
    with pytest.raises(UsageError, match=r"77: not among the candidates .*\(16, 32, 64\)"):
        decide(replace(asked.chooser, forced=Forced(77, "the user")), problem, runs, 1)


def preempted(**changes):
    """A preempted trial, and the outcome of its first part."""
    trial = build_trial(2, global_batch_size=16, world_size=1, **changes)
    return replace(REACHED, status=TrialStatus.PREEMPTED, reason="SIGTERM"), trial


def go_on(asked, trials):
    """The choice if the last of the trials was preempted, and its files are here."""
    return asked.choose(trials, preempted=trials[-1], has_files=True)


def test_a_preempted_trial_goes_on_under_the_bound_of_any_other(asked):
    outcome, trial = preempted()
    asked = asked.change(Machine(hardware=Hardware(), host="here"))
    choice = go_on(asked, [reached(1, 32, 100.0), trial.finish(outcome)])
    assert (choice.trial.trial, choice.trial.host) == ("job-2-1", "here")
    assert choice.decision.global_batch_size == 16
    bound = bound_of_proven(choice.problem, choice.runs)
    assert choice.decision.bound == fit_bound(choice.problem, choice.runs, 16, bound)
    assert bound.cost_j > 100.0


def test_a_preempted_trial_without_files_is_not_continued(asked):
    outcome, trial = preempted()
    cut = trial.finish(outcome)
    choice = asked.choose([cut], preempted=cut)
    assert choice.trial.trial == "job-3-1"
    assert choice.note == ("job-2-1 was preempted and is not continued: its run directory is gone")
    forced = asked.change(forced=Forced(32, "the user")).choose(
        [cut], preempted=cut, has_files=True
    )
    assert forced.note.endswith("a chosen batch size starts a new run")


def test_a_policy_that_bounds_nothing_bounds_no_preempted_trial(asked):
    outcome, trial = preempted()
    asked = asked.change(policy=create_policy("fixed"))
    choice = go_on(asked, [reached(1, 32, 100.0), trial.finish(outcome)])
    assert (choice.trial.trial, choice.decision.bound) == ("job-2-1", None)


def controlled(asked, tmp_path, every=2):
    return asked.change(spec=load_job(tmp_path, attempts=3, policy={"control": every}))


def test_every_nth_recurrence_begins_with_the_default(asked, tmp_path):
    asked = controlled(asked, tmp_path, 3)
    past = [reached(n, 64, 50.0) for n in (1, 2)]
    choice = asked.choose(past)
    assert (choice.trial.recurrence, choice.trial.global_batch_size) == (3, 32)
    assert (choice.trial.stage, choice.decision.bound) == (Stage.CONTROL, None)
    forced = asked.change(forced=Forced(64, "the user")).choose(past)
    assert (forced.trial.stage, forced.trial.global_batch_size) == (Stage.FORCED, 64)
    lost = build_trial(3, world_size=1, stage=Stage.CONTROL, status=TrialStatus.LOST)
    again = asked.choose([*past, lost], replaced(lost))
    assert again.trial.stage is not Stage.CONTROL


def test_a_preempted_control_run_goes_on_without_a_bound_and_another_run_stays(asked, tmp_path):
    outcome, trial = preempted()
    for stage in (Stage.CONTROL, Stage.EXPLORE):
        cut = replace(trial, stage=stage).finish(outcome)
        choice = go_on(controlled(asked, tmp_path), [reached(1, 32, 100.0), cut])
        assert (choice.trial.trial, choice.trial.global_batch_size) == ("job-2-1", 16)
        assert (choice.decision.stage, choice.decision.bound is None) == (
            stage,
            stage is Stage.CONTROL,
        )


@pytest.mark.parametrize(("time_s", "limit_w"), [(10.0, 250.0), (None, 200.0)])
def test_the_limit_of_today_is_not_that_of_what_was_trained_before(asked, time_s, limit_w):
    outcome, trial = preempted(gpu_model="A100", gpu_count=1)
    trial = trial.finish(replace(outcome, time_s=time_s, power_limit_w=250.0))
    gpu = Machine(hardware=Hardware(1, "A100", 1), power_limit_w=200.0)
    choice = go_on(asked.change(gpu), [trial])
    assert choice.trial.trial == "job-2-1"
    assert (choice.trial.power_limit_w, choice.limit_w) == (limit_w, 200.0)


def test_runs_that_the_history_lacks_keep_their_numbers_and_are_named(asked):
    choice = asked.choose([], unrecorded=((3, "job-3-1"),))
    assert choice.trial.trial == "job-4-1"
    (sentence,) = choice.about_history
    assert sentence.startswith("it lacks job-3-1 whose run directory exists; `zeusrun repair")
    (sentence,) = asked.choose([], unrecorded=((4, "job-4-1"), (3, "job-3-1"))).about_history
    assert sentence.startswith("it lacks 2 runs, such as job-4-1, whose run directory exists")


def choose_without_server(asked, trials, made=()):
    moment = Moment(now="2026-01-02", uuid="0" * 32, runs=Path("runs"), fingerprint={})
    return choose_offline(asked.chooser, asked.machine, trials, made, moment, name="job-offline-1")


OUT_OF_MEMORY = [
    build_trial(n, global_batch_size=32, world_size=1, status=TrialStatus.OOM) for n in (1, 2)
]


@pytest.mark.parametrize(
    ("trials", "size", "stage", "why"),
    [
        ([], 32, Stage.EXPLORE, "and no cost is known here: 32 is the default"),
        (OUT_OF_MEMORY, 16, Stage.EXPLORE, "16 is the largest that may run"),
        (
            [reached(1, 64, 50.0), reached(2, 64, 90.0), reached(3, 32, 80.0)],
            *(64, Stage.EXPLOIT, "and 64 is the cheapest batch size that is known here"),
        ),
        (
            [reached(1, 64, 50.0), reached(2, 64, 90.0), reached(3, 32, 60.0)],
            *(32, Stage.EXPLOIT, "and 32 is the cheapest batch size that is known here"),
        ),
        (
            [replace(reached(1, 64, 50.0), energy_j=None, cost_j=None)],
            *(64, Stage.EXPLOIT, "known here: 64 has reached the target in 1 of 1 runs"),
        ),
    ],
)
def test_without_its_server_a_submit_takes_the_cheapest_batch_size_that_is_known_here(
    asked, trials, size, stage, why
):
    trial = choose_without_server(asked, trials).trial
    assert (trial.trial, trial.global_batch_size, trial.stage) == ("job-offline-1", size, stage)
    assert trial.why.startswith("the shared history does not respond, and")
    assert trial.why.endswith(why)
    assert trial.recurrence == len(trials) + 1


def test_without_its_server_a_submit_takes_what_the_user_chose_and_makes_no_second_attempt(asked):
    asked = asked.change(forced=Forced(16, "the user"))
    choice = choose_without_server(asked, [reached(1, 32, 80.0)])
    assert (choice.trial.global_batch_size, choice.trial.stage) == (16, Stage.FORCED)
    made = [Attempt(choice.trial, replaced=False)]
    assert isinstance(choose_without_server(asked, [], made), NothingLeft)


PATH = (SizeChange(1, 64), SizeChange(3, 128), SizeChange(7, 256))
ADAPTS = build_trial(1, global_batch_size=64, variant="mine:Policy")
GROWN = ADAPTS.finish(replace(REACHED, status=TrialStatus.OOM, batch_sizes=PATH))


@pytest.mark.parametrize(
    ("changes", "largest"),
    [
        ({}, 128),
        ({"batch_sizes": PATH[1:2]}, 64),  # it grew at once
        ({"batch_sizes": PATH[:1]}, None),  # it did not grow
        ({"status": MISSED}, None),
        ({"forgotten": True}, None),
        ({"variant": "noise-scale"}, None),
        ({"micro_batch_size": 4}, None),
        ({"gpu_model": "A100"}, None),
    ],
)
def test_a_run_grows_no_further_than_what_fitted_in_the_runs_like_it(asked, changes, largest):
    choice = replace(asked.choose([]), trial=ADAPTS, earlier=(replace(GROWN, **changes),))
    assert choice.largest_that_fits == largest


def test_of_several_runs_that_grew_too_large_the_least_growth_counts(asked):
    less = replace(GROWN, batch_sizes=PATH[:2])
    for earlier in ((less, GROWN), (GROWN, less)):
        assert replace(asked.choose([]), trial=ADAPTS, earlier=earlier).too_large is less


_NO_FILES = """
import sys
from pathlib import Path
from tests.choice.test_choose import Asked, reached
from zeusrun.bandit.registry import create_policy
from zeusrun.choice.problem import Chooser, Machine
from zeusrun.jobfile.spec import sketch_spec
from zeusrun.trial import Hardware

goal = {"metric": "accuracy", "mode": "max", "target": 0.5, "max_epochs": 5, "eta_knob": 0.5}
spec = sketch_spec("job", goal, candidates=(16, 32, 64), default=32, cost_factor=2.0)
asked = Asked(Chooser(spec, create_policy("auto")), Machine(hardware=Hardware()))
asked.choose([reached(1, 32, 100.0)])  # the first one imports what is imported late

def refuse(event, args):
    if event in {"open", "os.listdir", "os.scandir", "subprocess.Popen", "socket.connect"}:
        raise SystemExit(f"a choice must not {event} {args}")

sys.addaudithook(refuse)
choice = asked.choose([reached(1, 32, 100.0), reached(2, 64, 90.0)])
print(choice.trial.trial, choice.trial.global_batch_size, file=sys.stderr)
"""


def test_a_choice_is_made_in_a_process_that_can_open_no_file():
    done = subprocess.run(
        [sys.executable, "-c", _NO_FILES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.split()[0]) == (0, "job-3-1"), done.stderr

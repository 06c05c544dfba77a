"""Which batch sizes are left out because they cannot finish in the time that is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.choice.test_choose import Asked
from tests.factories import REACHED, build_trial, load_job
from zeusrun.bandit.registry import create_policy
from zeusrun.choice.choose import Attempt, Choice, NothingLeft
from zeusrun.choice.problem import Chooser, Forced, Machine
from zeusrun.jobfile.spec import sketch_spec
from zeusrun.reasons import ReasonCode, Stall
from zeusrun.trial import CurvePoint, Hardware, Interruption, Stage, TrialStatus
from zeusrun.trial.values import WorldChange

MISSED, STOPPED, OOM = TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.OOM
LEFT_S = 1800.0
LIMIT = " the 30 min that are left of the time limit"
ADVICE = "; raise it, or let the script save checkpoints"


def ran(number, arm, took_s, *, attempt=1, **changes):
    """A run that took so many seconds: a hundredth to start, as much to end; 10 W at most."""
    status = changes.pop("status", TrialStatus.REACHED)
    values = {
        "status": status,
        "startup_s": 0.01 * took_s,
        "time_s": 0.98 * took_s,
        "shutdown_s": 0.01 * took_s,
        "energy_j": took_s * 10,
        "cost_j": took_s * 10,
        "curve": (CurvePoint(1, took_s / 2, None, 0.4), CurvePoint(2, 0.98 * took_s, None, 0.6)),
        "epochs": 2,
    }
    own = {name: changes.pop(name) for name in list(changes) if hasattr(REACHED, name)}
    own.pop("power_limit_w", None)
    trial = build_trial(number, attempt, global_batch_size=arm, world_size=1, **changes)
    if status is not TrialStatus.REACHED:
        low = (CurvePoint(1, 0.9 * took_s, None, 0.4),)
        values |= {"curve": low, "epochs": 1, "best_metric": 0.4}
    return trial.finish(replace(REACHED, **{**values, **own}))


def timed_out(number, arm, took_s, **changes):
    return ran(number, arm, took_s, status=STOPPED, reason_code=ReasonCode.TIMEOUT, **changes)


@pytest.fixture
def limited(tmp_path):
    """A job with 30 minutes left, by default of a script that does not resume."""
    asked = Asked(Chooser(load_job(tmp_path, attempts=3), create_policy("auto")))
    return asked.change(Machine(hardware=Hardware(), time_left_s=LEFT_S))


def choose(asked, trials, made=(), **moment):
    return asked.choose(trials, made, **{"resumes": False, **moment})


def left_of(asked, trials, **moment):
    return choose(asked, trials, **moment).problem.candidates


def test_a_batch_size_that_took_longer_than_what_is_left_is_left_out_and_people_are_told(limited):
    trials = [ran(1, 32, 600), ran(2, 64, 2000), ran(3, 16, 1500)]
    choice = choose(limited, trials)
    assert (choice.problem.candidates, choice.problem.default) == ((16, 32), 32)
    assert choice.note == f"too slow to finish in{LIMIT}, and left out: 64{ADVICE}"
    both = choose(limited, [*trials, *(ran(n, 16, 2000) for n in (4, 5, 6))])
    assert both.problem.candidates == (32,)
    assert both.note == f"too slow to finish in{LIMIT}, and left out: 16, 64{ADVICE}"


def test_where_the_default_is_left_out_the_fastest_of_the_others_takes_its_place(limited):
    trials = [ran(1, 32, 2000), ran(2, 64, 900), ran(3, 16, 1500)]
    choice = choose(limited, trials)
    assert (choice.problem.candidates, choice.problem.default) == ((16, 64), 64)
    assert choice.trial.default_batch_size == 32  # of the job


@pytest.mark.parametrize("resumes", [True, None])
def test_nothing_is_left_out_unless_the_script_is_known_not_to_resume(limited, resumes):
    choice = choose(limited, [ran(1, 64, 2000), ran(2, 32, 2000)], resumes=resumes)
    assert (choice.problem.candidates, choice.note) == ((16, 32, 64), None)


def test_without_a_known_run_a_batch_size_stays(limited):
    assert left_of(limited, []) == (16, 32, 64)
    assert left_of(limited, [ran(1, 32, 600)]) == (16, 32, 64)


def test_start_up_and_shutdown_count(limited):
    assert left_of(limited, [ran(1, 64, 1780)]) == (16, 32, 64)
    assert left_of(limited, [ran(1, 64, 1780, startup_s=60.0)]) == (16, 32)
    assert left_of(limited, [ran(1, 64, 1780, shutdown_s=60.0)]) == (16, 32)
    assert left_of(limited, [ran(1, 64, 1780, startup_s=None, shutdown_s=None)]) == (16, 32, 64)


def test_one_slow_night_among_the_newest_three_leaves_nothing_out(limited):
    trials = [ran(1, 64, 1700), ran(2, 64, 2500)]
    assert left_of(limited, trials) == (16, 32, 64)
    # Three in a row are no accident: the data have grown.
    assert left_of(limited, [*trials, ran(3, 64, 1900), ran(4, 64, 1900)]) == (16, 32)
    assert left_of(limited, [*trials, *(ran(n, 64, 1900) for n in (3, 4)), ran(5, 64, 1700)]) == (
        16,
        32,
        64,
    )


SLOWED = {
    "shared": {"shared": True},
    "stalled": {"stalls": (Stall(900.0, 1.0, "", "in a lock"),)},
    "preempted": {"preemptions": 1},
    "interrupted": {"interruptions": (Interruption(1100.0, 1),)},
    "resized": {"world_sizes": (WorldChange(0.0, 0, 2), WorldChange(500.0, 1, 1))},
}


@pytest.mark.parametrize("changes", SLOWED.values(), ids=SLOWED)
def test_a_run_that_something_else_slowed_down_shows_nothing(limited, changes):
    trials = [ran(n, 64, 2000, **changes) for n in (1, 2, 3)]
    assert left_of(limited, trials) == (16, 32, 64)
    assert left_of(limited, [ran(1, 64, 1500, **changes), ran(2, 64, 2000)]) == (16, 32)


NOT_LIKE_TODAY = {
    "target": {"target": 0.55},
    "max_epochs": {"max_epochs": 50},
    "metric": {"metric": "loss"},
    "learning rate": {"learning_rate": 0.1},
    "script": {"fingerprint": {"script": "then"}},
    "variant": {"variant": "adapt"},
    "micro-batches": {"micro_batch_size": 8},
    "GPUs": {"gpu_model": "A100", "gpu_count": 1},
    "forgotten": {"forgotten": True},
    "never began": {"time_s": None},
}


@pytest.mark.parametrize("changes", NOT_LIKE_TODAY.values(), ids=NOT_LIKE_TODAY)
@pytest.mark.parametrize("run", [ran, timed_out])
def test_a_run_that_was_not_like_one_of_today_shows_nothing(limited, changes, run):
    trials = [run(1, 64, 2000, **changes), ran(2, 32, 600, fingerprint={"script": "now"})]
    assert 64 in left_of(limited, trials, fingerprint={"script": "now"})
    # Nor does a short one show that the time is enough.
    short = [ran(n, 64, 60, **changes) for n in (4, 5, 6)]
    alike = ran(3, 64, 2000, fingerprint={"script": "now"})
    assert 64 not in left_of(limited, [*trials, alike, *short], fingerprint={"script": "now"})


def test_a_run_that_the_time_limit_stopped_shows_that_as_much_time_is_too_short(limited):
    # The last step is before the end, and each allocation leaves some seconds more or less.
    assert left_of(limited, [timed_out(1, 64, 1795)]) == (16, 32)
    assert left_of(limited, [timed_out(1, 64, 1200)]) == (16, 32, 64)
    assert left_of(limited, [ran(1, 64, 1700), timed_out(2, 64, 1795)]) == (16, 32, 64)
    hung = timed_out(1, 64, 1795, time_s=300.0, shutdown_s=1400.0)
    assert left_of(limited, [hung]) == (16, 32, 64)


def test_a_run_that_missed_the_target_shows_how_long_a_training_takes(limited):
    assert left_of(limited, [ran(1, 64, 2000, status=MISSED)]) == (16, 32)
    assert left_of(limited, [ran(1, 64, 1795, status=MISSED)]) == (16, 32, 64)
    unheard = ran(2, 64, 60, status=MISSED, reason_code=ReasonCode.NO_METRIC)
    assert left_of(limited, [timed_out(1, 64, 1795), unheard]) == (16, 32)


def test_a_crash_shows_nothing_about_the_time(limited):
    quick = ran(2, 64, 5, status=OOM, reason_code=ReasonCode.OUT_OF_MEMORY)
    assert left_of(limited, [ran(1, 64, 2000), quick]) == (16, 32)
    assert left_of(limited, [quick]) == (16, 32, 64)


def test_another_one_stands_in_for_a_default_that_is_left_out(limited):
    trials = [ran(1, 32, 2000), ran(2, 64, 1700), ran(3, 16, 600)]
    choice = choose(limited.change(policy=create_policy("fixed")), trials)
    assert (choice.problem.candidates, choice.problem.default) == ((16, 64), 16)
    assert choice.trial.global_batch_size == 16
    assert choice.trial.default_batch_size == 32  # what savings are compared with
    assert left_of(limited, trials[:1]) == (16, 64)  # none is known: the nearest, of two the less


def test_a_control_run_of_a_default_that_cannot_finish_is_not_made(limited, tmp_path):
    spec = load_job(tmp_path, attempts=3, policy={"control": 2})
    limited = limited.change(spec=spec)
    assert choose(limited, [ran(1, 32, 600)]).trial.stage is Stage.CONTROL
    assert choose(limited, [ran(1, 32, 2000)]).trial.stage is not Stage.CONTROL


def test_the_users_own_choice_is_never_left_out(limited):
    forced = limited.change(forced=Forced(64, "the user"))
    choice = choose(forced, [ran(1, 64, 2000)])
    assert (choice.trial.global_batch_size, choice.note) == (64, None)


TOO_LONG = (ran(1, 16, 2500), ran(2, 32, 2200), ran(3, 64, 2000))


def test_if_none_can_finish_the_fastest_one_still_begins_a_recurrence(limited):
    choice = choose(limited, list(TOO_LONG))
    assert choice.problem.candidates == (64,)
    assert choice.note == "no batch size is likely to finish in" + LIMIT + ADVICE
    unknown = [timed_out(n, arm, 1795) for n, arm in enumerate((16, 32, 64), 1)]
    assert left_of(limited, unknown) == (32,)  # the default


@pytest.mark.parametrize("status", [STOPPED, TrialStatus.CANCELLED])
def test_if_none_can_finish_no_further_attempt_is_made_but_one_after_a_speed_check(limited, status):
    last = ran(4, 64, 30, status=status)
    trials = [*TOO_LONG, last]
    checked = status is TrialStatus.CANCELLED
    choice = choose(limited, trials, [Attempt(last, replaced=checked)])
    if checked:
        assert choice.trial.global_batch_size == 64
    else:
        assert choice == NothingLeft("no batch size is likely to finish in" + LIMIT + ADVICE)


def test_a_script_that_ignores_the_batch_size_still_runs_with_its_own(limited):
    own = [ran(n, 32, 2000, observed_batch_size=32) for n in (1, 2)]
    trials = [*own, ran(3, 64, 2000, observed_batch_size=32)]
    choice = choose(limited, trials)
    assert (choice.problem.candidates, choice.trial.global_batch_size) == ((32,), 32)
    assert choice.note.startswith("no batch size is likely to finish")


def test_one_that_does_not_fit_into_memory_is_no_way_out(limited, tmp_path):
    too_large = [ran(n, 64, 5, status=OOM) for n in (3, 4)]
    trials = [ran(1, 16, 2500), ran(2, 32, 2000), *too_large]
    assert left_of(limited, trials) == (32,)
    assert left_of(limited, [ran(1, 32, 2000), *too_large]) == (16,)
    wider = limited.change(spec=load_job(tmp_path, batch_size={"candidates": [8, 32, 64]}))
    assert choose(wider, [ran(1, 32, 2000), *too_large]).problem.default == 8  # 64 is nearer


def test_a_preempted_trial_is_continued_as_ever(limited):
    cut = ran(2, 64, 900, status=TrialStatus.PREEMPTED)
    choice = choose(limited, [ran(1, 64, 2000), cut], preempted=cut, has_files=True)
    assert (choice.trial.trial, choice.trial.global_batch_size) == ("job-2-1", 64)
    gone = choose(limited, [ran(1, 64, 2000), cut], preempted=cut)
    first, second = gone.note.split(". ")
    assert first.endswith("its run directory is gone")
    assert second.startswith("too slow to finish in")


_ARMS = st.sampled_from([16, 32, 64])
_RUNS = st.lists(st.tuples(_ARMS, st.integers(10, 4000), st.booleans(), st.booleans()), max_size=8)


@given(_RUNS, st.floats(0, 5000), st.sampled_from(["auto", "zeus", "fixed", "grid"]))
def test_without_a_limit_the_choice_is_as_ever_and_with_one_it_is_a_candidate(runs, left_s, policy):
    goal = {"metric": "accuracy", "mode": "max", "target": 0.5, "max_epochs": 5, "eta_knob": 0.5}
    spec = sketch_spec("job", goal, candidates=(16, 32, 64), default=32, cost_factor=2.0)
    asked = Asked(Chooser(spec, create_policy(policy)))
    trials = [
        (timed_out if late else ran)(n, arm, took_s, shared=shared)
        for n, (arm, took_s, late, shared) in enumerate(runs, 1)
    ]
    free = asked.choose(trials)
    assert asked.choose(trials, resumes=False) == free
    limited = asked.change(replace(asked.machine, time_left_s=left_s))
    assert limited.choose(trials, resumes=True) == free
    choice = choose(limited, trials)
    assert isinstance(choice, Choice)
    assert choice.trial.global_batch_size in choice.problem.candidates
    if choice.problem.candidates == (16, 32, 64):
        assert choice == free

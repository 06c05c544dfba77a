"""When a look is over, and what it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from tests.bandit.scripts import problem
from tests.factories import build_trial as trial
from tests.launcher.values import LAUNCHED, METERED, UNMETERED, after, report, started, ten_watts
from zeusrun.bandit.auto.policy import SPEED_CHECK_S
from zeusrun.bandit.problem import Observation, Running
from zeusrun.choice.choose import Choice
from zeusrun.launcher.supervision.outcome import outcome_now
from zeusrun.launcher.supervision.speed_check import (
    SPEED_CHECK_STEPS,
    PolicyControl,
    begins_with_speed_check,
    has_seen_enough,
    measure_speed,
    read_speed_check,
)
from zeusrun.lever import power_lever
from zeusrun.metrics.progress import take_step_clock
from zeusrun.reasons import ReasonCode
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import Bound, CurvePoint, Decision, PowerPoint, Stage, TrialStatus

KNOWN = problem(
    candidates=(16, 32),
    default=32,
    metric="accuracy",
    target=0.5,
    max_epochs=5,
    gpu_model=None,
    gpu_count=0,
    learning_rates={},
    samples_per_epoch=640.0,
)


UNCOUNTED = replace(KNOWN, samples_per_epoch=None)


def then(progress, steps, seconds):
    """Progress after so many steps more, from 101 s on the clock."""
    stepping = take_step_clock(progress, StepCount(steps, 101.0, 101.0 + seconds))
    return replace(stepping, now_t=101.0 + seconds, energy_j=10.0 * seconds)


def stepped(steps, seconds):
    """Progress of so many steps, from 101 s on the clock."""
    return then(LAUNCHED, steps, seconds)


def choice(stage=Stage.SPEED_CHECK, *runs):
    return Choice(
        trial=trial(7),
        problem=problem(recurrence=7),
        runs=runs,
        decision=Decision(32, stage, "why"),
    )


def test_only_a_decision_to_look_begins_with_one():
    assert begins_with_speed_check(choice())
    assert not begins_with_speed_check(choice(Stage.EXPLORE))


def test_a_batch_size_is_looked_at_once_in_a_recurrence():
    looked = Observation(32, 7, TrialStatus.CANCELLED, Stage.SPEED_CHECK)
    assert not begins_with_speed_check(choice(Stage.SPEED_CHECK, looked))
    for other in (
        looked._replace(arm=16),
        looked._replace(recurrence=6),
        looked._replace(stage=Stage.EXPLORE),
    ):
        assert begins_with_speed_check(choice(Stage.SPEED_CHECK, other))


def test_an_epoch_is_enough_where_steps_are_not_counted():
    assert has_seen_enough(after(report(105.0, 1, 0.1)), UNCOUNTED, 32)


def test_before_an_epoch_it_takes_time_steps_and_the_length_of_an_epoch():
    assert has_seen_enough(stepped(SPEED_CHECK_STEPS, SPEED_CHECK_S), KNOWN, 32)
    assert not has_seen_enough(stepped(SPEED_CHECK_STEPS - 1, SPEED_CHECK_S), KNOWN, 32)
    assert not has_seen_enough(stepped(SPEED_CHECK_STEPS, SPEED_CHECK_S - 2), KNOWN, 32)
    assert not has_seen_enough(stepped(SPEED_CHECK_STEPS, SPEED_CHECK_S), UNCOUNTED, 32)
    assert not has_seen_enough(LAUNCHED, KNOWN, 32)


def test_an_evaluation_before_the_first_step_is_no_epoch():
    evaluated = after(report(101.0, 0, 0.1))
    assert not has_seen_enough(evaluated, KNOWN, 32)
    assert not has_seen_enough(then(evaluated, SPEED_CHECK_STEPS, 5.0), KNOWN, 32)
    assert has_seen_enough(then(evaluated, SPEED_CHECK_STEPS, SPEED_CHECK_S), KNOWN, 32)


def test_an_epoch_of_counted_steps_takes_some_of_them():
    reported = after(report(101.0, 1, 0.1))
    assert not has_seen_enough(then(reported, SPEED_CHECK_STEPS - 1, 5.0), UNCOUNTED, 32)
    assert has_seen_enough(then(reported, SPEED_CHECK_STEPS, 5.0), UNCOUNTED, 32)


@pytest.mark.parametrize(("steps", "enough"), [(14, False), (15, True), (20, True)])
def test_an_epoch_of_known_length_takes_most_of_its_steps(steps, enough):
    assert has_seen_enough(then(after(report(101.0, 1, 0.1)), steps, 5.0), KNOWN, 32) is enough


def test_speed_and_power_are_those_between_the_first_step_and_the_last():
    assert measure_speed(stepped(11, 5.0), power_lever(200.0), ten_watts) == PowerPoint(
        200.0, 2.0, 10.0
    )


@pytest.mark.parametrize("progress", [LAUNCHED, stepped(1, 0.0), stepped(2, 0.0)])
def test_without_two_steps_there_is_no_speed(progress):
    assert measure_speed(progress, None, ten_watts) is None


def test_without_energy_there_is_no_power():
    assert measure_speed(stepped(11, 5.0), None, lambda _since, _until: None) is None


def test_a_look_reads_as_a_run_cut_short_that_knows_its_cost_per_epoch():
    progress = stepped(11, 5.0)
    point = measure_speed(progress, None, ten_watts)
    run = read_speed_check(KNOWN, trial(mode="max"), progress, point, METERED)
    assert run.status is TrialStatus.CANCELLED
    # 640 samples are 20 steps of 32, 10 s at 10 W; eta_knob of the problem is 1
    assert run.epoch_cost_j == pytest.approx(100.0)


def test_a_look_after_an_evaluation_knows_the_cost_of_an_epoch_from_its_steps():
    progress = then(after(report(101.0, 0, 0.1)), 11, 5.0)
    run = read_speed_check(
        KNOWN, trial(), progress, measure_speed(progress, None, ten_watts), METERED
    )
    assert (run.epochs, run.epoch_cost_j) == (None, pytest.approx(100.0))


def test_a_look_of_a_whole_epoch_needs_no_steps():
    progress = after(report(105.0, 1, 0.1))
    run = read_speed_check(UNCOUNTED, trial(), progress, None, METERED)
    assert (run.epochs, run.epoch_cost_j) == (1, 50.0)
    assert run.pace == ((1, 0.1),)


def test_a_look_that_saw_no_energy_says_nothing():
    progress = after(report(105.0, 1, 0.1), energy_between=lambda _since, _until: None)
    unmetered = replace(UNMETERED, max_power_w=None)
    assert read_speed_check(KNOWN, trial(), progress, None, unmetered) is None


class Deciding:
    """A submission whose policy decides for a batch size once a look is over."""

    spec = SimpleNamespace(policy=SimpleNamespace(seed=0))
    name = "deciding"

    def __init__(self, size):
        self.size, self.policy, self.seen = size, self, []

    def choose(self, _problem, runs, _rng):
        self.seen.append(runs)
        return Decision(self.size, Stage.EXPLORE, "why")

    def explain(self, _problem, _runs, _rng):
        return [
            SimpleNamespace(global_batch_size=size, epoch_cost_j=cost_j, verdict=f"{size} is dear")
            for size, cost_j in ((16, 1.0), (32, 200.0))
        ]


ENOUGH = stepped(SPEED_CHECK_STEPS, SPEED_CHECK_S)


def control(size, trial_=None, **changes):
    looking = Choice(
        trial=trial_ or trial(7),
        problem=KNOWN,
        runs=(),
        decision=Decision(32, Stage.SPEED_CHECK, "why"),
    )
    return PolicyControl(Deciding(size), replace(looking, **changes), METERED)


def test_after_a_look_the_run_goes_on_if_the_policy_decides_for_its_batch_size():
    of_32 = control(32)
    assert of_32.check_speed(stepped(SPEED_CHECK_STEPS - 1, SPEED_CHECK_S), [None]) is None
    decision = of_32.check_speed(ENOUGH, [power_lever(200.0)])
    assert (decision.global_batch_size, decision.stage) == (32, Stage.EXPLORE)
    assert of_32.speed == measure_speed(ENOUGH, power_lever(200.0), ten_watts)
    ((*_, measured),) = of_32._submission.seen
    assert (measured.arm, measured.status) == (32, TrialStatus.CANCELLED)
    assert of_32.check_speed(ENOUGH, [None]) is None  # it is over


def test_after_a_look_a_run_has_no_bound_if_what_would_follow_has_failed_in_its_recurrence():
    def choose(_problem, runs, _rng):
        size = 16 if runs[-1].status is TrialStatus.STOPPED else 32
        return Decision(size, Stage.EXPLORE, "why", bound=Bound(3000.0))

    now = replace(KNOWN, recurrence=7, attempts_left=2)
    for recurrence, bounded in ((6, True), (7, False)):
        missed = trial(recurrence, global_batch_size=16, status=TrialStatus.MISSED)
        of_32 = control(32, problem=now, earlier=(missed,))
        of_32._submission.choose = choose
        assert (of_32.check_speed(ENOUGH, [None]).bound is not None) is bounded


def test_after_a_look_the_run_ends_if_the_policy_decides_for_another_batch_size():
    order = control(16).check_speed(ENOUGH, [None])
    assert order.cause is ReasonCode.SPEED_CHECKED
    assert order.reason == ("only its speed was checked: 200 J an epoch; 32 is dear; 16 follows")


@pytest.mark.parametrize(
    ("progress", "levers", "changes"),
    [
        (replace(ENOUGH, reached=CurvePoint(1, 1.0, 10.0, 0.9)), [None], {}),
        (ENOUGH, [None], {"decision": Decision(32, Stage.EXPLORE, "why")}),
        (ENOUGH, [None], {"trial": trial(7, variant="noise-scale")}),
        # a mean over several limits says nothing about any of them
        (replace(ENOUGH, energy_j=None), [None, power_lever(200.0)], {}),
    ],
)
def test_a_run_that_shows_no_speed_of_its_own_is_not_looked_at(progress, levers, changes):
    of_16 = control(16, **changes)
    assert of_16.check_speed(progress, levers) is None
    assert (of_16.speed, of_16._submission.seen) == (None, [])


@dataclass
class Asked:
    """A policy that keeps what it was asked, as the policy of a submission."""

    running: list[Running] = field(default_factory=list)
    name: str = "asked"

    @property
    def policy(self):
        return self

    def review(self, problem, decision, running):
        self.running.append(running)


def cost_in_review(progress, of=None):
    """Return the cost so far that a policy sees."""
    now_t = progress.now_t + 3.0  # into the next epoch
    progress = replace(progress, now_t=now_t, energy_j=ten_watts(101.0, now_t))
    asked, chosen = Asked(), replace(choice(Stage.EXPLORE), trial=of or trial(7, max_epochs=9))
    assert PolicyControl(asked, chosen, METERED).review(progress) is None
    return asked.running[-1].cost_j


def test_a_review_sees_what_the_epochs_cost():
    # the first step of training is its start, at 101 s; half of 10 W and half of 40 W
    steady = after(started(101.0), report(111.0, 1, 0.1), report(121.0, 2, 0.2))
    assert cost_in_review(steady) == pytest.approx(20.0 * 25.0)


LONG = after(started(101.0), report(103.0, 1, 0.1), report(105.0, 2, 0.2))


@pytest.mark.parametrize(
    ("progress", "max_epochs", "asked_for"),
    [
        (LONG, 3, 2),
        (LONG, 2, None),  # its last epoch
        (after(started(101.0), report(101.3, 1, 0.1), report(101.4, 2, 0.2)), 9, None),
        (after(started(101.0), report(103.0, 0, 0.1)), 9, None),  # before the first step
        (after(report(107.0, 3, 0.6), start=LONG), 9, None),  # it has reached the target
        (replace(LONG, by_samples=LONG.curve), 9, None),
    ],
)
def test_a_training_is_reviewed_once_an_epoch_shows_its_cost_and_more_follow(
    progress, max_epochs, asked_for
):
    """One of less than a second shows nothing."""
    asked, chosen = Asked(), replace(choice(Stage.EXPLORE), trial=trial(7, max_epochs=max_epochs))
    PolicyControl(asked, chosen, METERED).review(progress)
    assert [each.epochs for each in asked.running] == ([] if asked_for is None else [asked_for])


@pytest.mark.parametrize(("samples", "units"), [(None, None), (40, 1), (149, 1), (151, 2)])
def test_a_training_by_samples_is_reviewed_by_the_whole_units_that_it_has_gone(samples, units):
    now = replace(choice(Stage.EXPLORE), trial=trial(7, max_epochs=9))
    now = replace(now, problem=replace(now.problem, unit=100))
    asked = Asked()
    PolicyControl(asked, now, METERED).review(replace(LONG, samples=samples))
    assert [each.epochs for each in asked.running] == ([] if units is None else [units])


def test_what_a_restart_lost_is_no_cost_of_the_batch_size():
    first = after(started(101.0), report(111.0, 1, 0.1), report(121.0, 2, 0.2))
    again = [report(161.0, 1, 0.1), report(171.0, 2, 0.2), report(181.0, 3, 0.3)]
    restarted = replace(first, ranks=first.ranks.take(started(151.0, restart=1), 2))
    assert cost_in_review(after(*again, start=restarted)) == pytest.approx(30.0 * 25.0)


def test_what_a_preemption_lost_is_no_cost_of_the_batch_size():
    first = after(started(101.0), report(111.0, 1, 0.1), report(121.0, 2, 0.2))
    first = replace(first, now_t=126.0, energy_j=250.0)  # 5 s into its third epoch
    cut = trial(7, max_epochs=9)
    cut = cut.finish(outcome_now(cut, first, METERED, TrialStatus.PREEMPTED))
    now = after(started(101.0), report(131.0, 3, 0.3), report(141.0, 4, 0.4))
    resumed = cut.resume("2026-01-02T00:00:00Z")
    assert cost_in_review(now, resumed) == pytest.approx(40.0 * 25.0)

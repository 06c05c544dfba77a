"""Studies of the benchmarks: their sums, and that a seed always gives the same result."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.study import (
    Scenario,
    StudySettings,
    run_study,
    simulate,
)
from benchmarks.synthetic import FAMILIES
from tests.simulate.jobs import job
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import LearningCurve, Rate

TEN = StudySettings(recurrences=10)


def test_an_episode_adds_up_by_recurrence():
    misses = {8: [LearningCurve(None, ())], 16: [LearningCurve(4, ((4, 1.0),))]}
    made = job(misses, default=16)
    episode = simulate(Scenario(made.name, made), "fixed", 0, StudySettings(recurrences=3))
    assert episode.spent.tolist() == [[400 * 150, 400 * 100, 400]] * 3
    assert episode.best.tolist() == episode.never.tolist() == episode.spent.tolist()
    assert episode.regret_j.tolist() == [0, 0, 0]
    assert (episode.arms, episode.failed, episode.best_arm) == ({16: 3}, 0, 16)
    assert episode.reached.all()


def test_failed_attempts_are_charged_to_their_recurrence():
    made = job({8: [LearningCurve(None, ())], 16: [LearningCurve(2, ((2, 1.0),))]}, default=16)
    episode = simulate(
        Scenario(made.name, made), "grid", 0, StudySettings(recurrences=4, cost_factor=None)
    )
    assert (sum(episode.arms.values()), episode.failed) == (5, 1)
    assert episode.spent[:, 2].tolist() == [200, 1000 + 200, 200, 200]
    assert episode.reached.all()


def test_a_recurrence_without_a_model_is_charged_and_counted():
    made = job({8: [LearningCurve(None, ()), LearningCurve(2, ((2, 1.0),))]})
    settings = StudySettings(recurrences=40)
    episode = simulate(Scenario(made.name, made), "fixed", 0, settings)
    assert 0 < episode.failed < 40 == sum(episode.arms.values())  # what failed is not repeated
    assert episode.spent[:, 2].sum() == (40 - episode.failed) * 200 + episode.failed * 1000
    assert episode.best[0, 2] == (10 + 2) * 100  # as often as not it takes one more
    assert (~episode.reached).sum() == episode.last_attempts == episode.failed


def test_a_recurrence_makes_as_many_attempts_as_it_is_allowed():
    made = job({8: [LearningCurve(None, ())], 16: [LearningCurve(2, ((2, 1.0),))]}, default=16)
    episode = simulate(
        Scenario(made.name, made), "grid", 0, StudySettings(recurrences=3, attempts=1)
    )
    assert episode.reached.tolist() == [True, False, True]
    assert episode.last_attempts == 3


def test_a_job_that_nothing_can_finish_is_an_error():
    made = job({8: [LearningCurve(None, ())]})
    with pytest.raises(UsageError, match="toy: no batch size ever reaches"):
        simulate(Scenario(made.name, made), "fixed", 0, StudySettings(recurrences=1))


@pytest.mark.long  # three studies
def test_the_number_of_processes_changes_nothing():
    scenarios = [Scenario(name, FAMILIES[name]) for name in ("law", "drift")]
    shares = []
    alone = run_study(scenarios, ["zeus", "auto"], range(12), TEN)
    spread = run_study(
        scenarios, ["zeus", "auto"], range(12), TEN, processes=2, on_progress=shares.append
    )
    keys = [(each.name, each.policy, each.seed) for each in alone]
    assert keys[:2] == [("law", "zeus", 0), ("law", "zeus", 1)]
    assert keys == [(each.name, each.policy, each.seed) for each in spread]
    for one, other in zip(alone, spread, strict=True):
        assert np.array_equal(one.spent, other.spent)
        assert one.arms == other.arms
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_other_seeds_make_other_jobs_of_a_family():
    one, other = (Scenario("law", FAMILIES["law"]).build(seed) for seed in (0, 1))
    assert one != other
    assert Scenario("law", FAMILIES["law"]).build(0) == one


def test_an_unknown_policy_is_refused():
    with pytest.raises(UsageError, match="unknown policy 'zues'; did you mean 'zeus'"):
        run_study([Scenario("law", FAMILIES["law"])], ["zues"], [0])


def test_ratios_by_hand():
    rates = {8: {200.0: Rate(100.0, 100.0)}, 16: {200.0: Rate(50.0, 200.0)}}
    curves = {8: [LearningCurve(4, ((4, 1.0),))], 16: [LearningCurve(4, ((4, 1.0),))]}
    made = job(curves, rates)  # 16 costs 200 W for half the time of 150 W
    (own,) = run_study([Scenario(made.name, made)], ["fixed"], [0], TEN)
    assert own.best_arm == 16
    assert own.spent.tolist() == own.never.tolist()
    assert (own.spent.sum(axis=0) / own.best.sum(axis=0)).tolist() == pytest.approx([1.5, 1, 2])
    assert own.regret_j.sum() / own.best[0, 0] == pytest.approx(10 * 0.5)


def test_a_default_that_never_reaches_is_compared_with_nothing():
    made = job({8: [LearningCurve(None, ())], 16: [LearningCurve(2, ((2, 1.0),))]})
    (own,) = run_study([Scenario(made.name, made)], ["zeus"], [0], TEN)
    assert np.isinf(own.never[:, 0]).all()
    assert own.failed > 0

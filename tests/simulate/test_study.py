"""Studies: what they add up to, that they repeat, and what they say in JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from tests.simulate.traces import job
from zeusrun.errors import UsageError
from zeusrun.simulate.job import LearningCurve, Rate
from zeusrun.simulate.study import (
    Scenario,
    Settings,
    build_scenarios,
    pooled_regret,
    run_study,
    simulate,
    summarise,
)
from zeusrun.simulate.synthetic import FAMILIES

TEN = Settings(recurrences=10)


def test_an_episode_adds_up_by_recurrence():
    misses = {8: [LearningCurve(None, ())], 16: [LearningCurve(4, ((4, 1.0),))]}
    made = job(misses, default=16)
    episode = simulate(Scenario(made.name, made), "fixed", 0, Settings(recurrences=3))
    assert episode.spent.tolist() == [[400 * 150, 400 * 100, 400]] * 3
    assert episode.best.tolist() == episode.never.tolist() == episode.spent.tolist()
    assert episode.regret_j.tolist() == [0, 0, 0]
    assert (episode.arms, episode.failed, episode.best_arm) == ({16: 3}, 0, 16)
    assert episode.reached.all()


def test_failed_attempts_are_charged_to_their_recurrence():
    made = job({8: [LearningCurve(None, ())], 16: [LearningCurve(2, ((2, 1.0),))]}, default=16)
    episode = simulate(
        Scenario(made.name, made), "grid", 0, Settings(recurrences=4, cost_factor=None)
    )
    assert (sum(episode.arms.values()), episode.failed) == (5, 1)
    assert episode.spent[:, 2].tolist() == [200, 1000 + 200, 200, 200]
    assert episode.reached.all()


def test_a_recurrence_without_a_model_is_charged_and_counted():
    made = job({8: [LearningCurve(None, ()), LearningCurve(2, ((2, 1.0),))]})
    settings = Settings(recurrences=40)
    episode = simulate(Scenario(made.name, made), "fixed", 0, settings)
    assert 0 < episode.failed < 40 == sum(episode.arms.values())  # what failed is not repeated
    assert episode.spent[:, 2].sum() == (40 - episode.failed) * 200 + episode.failed * 1000
    assert episode.best[0, 2] == (10 + 2) * 100  # as often as not it takes one more
    (summary,) = summarise([episode], ["fixed"])
    assert summary.unreached == episode.last_attempts == episode.failed


def test_a_recurrence_makes_as_many_attempts_as_it_is_allowed():
    made = job({8: [LearningCurve(None, ())], 16: [LearningCurve(2, ((2, 1.0),))]}, default=16)
    episode = simulate(Scenario(made.name, made), "grid", 0, Settings(recurrences=3, attempts=1))
    assert episode.reached.tolist() == [True, False, True]
    assert episode.last_attempts == 3


def test_a_job_that_nothing_can_finish_is_an_error():
    made = job({8: [LearningCurve(None, ())]})
    with pytest.raises(UsageError, match="toy: no batch size ever reaches"):
        simulate(Scenario(made.name, made), "fixed", 0, Settings(recurrences=1))


def test_the_number_of_processes_changes_nothing():
    scenarios = [Scenario(name) for name in ("law", "drift")]
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
    one, other = (Scenario("law").build(seed) for seed in (0, 1))
    assert one != other
    assert Scenario("law").build(0) == one


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown policy 'zues'; did you mean 'zeus'"):
        run_study([Scenario("law")], ["zues"], [0])
    with pytest.raises(UsageError, match="unknown synthetic workload 'lw'; did you mean 'law'"):
        build_scenarios(["lw"])
    with pytest.raises(UsageError, match="unknown workload 'imagnet'; did you mean 'imagenet'"):
        build_scenarios(["imagnet"], tmp_path, "toy")


def test_a_summary_is_plain_json():
    scenarios = [Scenario(name) for name in FAMILIES]
    episodes = run_study(scenarios, ["auto", "zeus"], range(2), TEN)
    summaries = summarise(episodes, ["auto", "zeus"])
    assert [each.workload for each in summaries[::2]] == list(FAMILIES)
    records = json.loads(json.dumps([asdict(each) for each in summaries], allow_nan=False))
    first = records[0]
    assert (first["workload"], first["policy"], first["seeds"], first["recurrences"]) == (
        "law", "auto", 2, 10,
    )  # fmt: skip
    for name in ("cumulative_cost_j", "cumulative_regret_j", "cumulative_regret_best_runs"):
        assert set(first[name]) == {"mean", "median", "p5", "p95"}
        assert len(first[name]["median"]) == 10
    assert first["cost_j"]["mean"] == first["cumulative_cost_j"]["mean"][-1]
    assert first["regret_j"]["mean"] == pytest.approx(first["cost_j"]["mean"] - first["best_j"])
    assert set(first["to_never"]) == set(first["to_zeus"]) == {"cost", "energy", "time"}
    assert sum(first["batch_sizes"].values()) == pytest.approx(1)


def test_ratios_by_hand():
    rates = {8: {200.0: Rate(100.0, 100.0)}, 16: {200.0: Rate(50.0, 200.0)}}
    curves = {8: [LearningCurve(4, ((4, 1.0),))], 16: [LearningCurve(4, ((4, 1.0),))]}
    made = job(curves, rates)  # 16 costs 200 W for half the time of 150 W
    (own,) = summarise(run_study([Scenario(made.name, made)], ["fixed"], [0], TEN), ["fixed"])
    assert own.best_batch_sizes == (16,)
    assert own.to_never.cost == own.to_never.energy == own.to_never.time == 1
    assert own.to_best.cost == pytest.approx(150 / 100)
    assert own.to_best.energy == pytest.approx(1)
    assert own.to_best.time == pytest.approx(2)
    assert own.regret_best_runs["median"] == pytest.approx(10 * 0.5)
    assert (own.to_zeus.cost, own.regret_to_zeus) == (None, None)  # nobody asked zeus


def test_zeus_is_once_itself():
    episodes = run_study([Scenario("law")], ["zeus"], range(3), TEN)
    (own,) = summarise(episodes, ["zeus"])
    assert own.to_zeus.cost == own.regret_to_zeus == 1
    assert pooled_regret([own], "zeus") == pytest.approx(1)
    assert pooled_regret([], "auto") is None


def test_a_regret_of_nothing_counts_in_the_pool():
    flat = job({8: [LearningCurve(2, ((2, 1.0),))]})  # nothing to find out: everybody's regret is 0
    steep = job(
        {8: [LearningCurve(4, ((4, 1.0),))], 16: [LearningCurve(2, ((2, 1.0),))]}, name="steep"
    )
    scenarios = [Scenario(flat.name, flat), Scenario(steep.name, steep)]
    summaries = summarise(run_study(scenarios, ["fixed", "zeus"], [0], TEN), ["fixed", "zeus"])
    still, other = (each for each in summaries if each.policy == "fixed")
    assert (still.regret_best_runs["mean"], still.zeus_regret_best_runs) == (0, 0)
    assert still.regret_to_zeus is None
    assert other.regret_best_runs["mean"] == 10
    zeus = replace(still, zeus_regret_best_runs=5.0, regret_to_zeus=0.0)  # ours 0, that of zeus not
    expected = 10 / (other.zeus_regret_best_runs + 5)
    assert pooled_regret([zeus, other], "fixed") == pytest.approx(expected)
    assert pooled_regret([still], "fixed") is None


def test_a_default_that_never_reaches_is_compared_with_nothing():
    made = job({8: [LearningCurve(None, ())], 16: [LearningCurve(2, ((2, 1.0),))]})
    (own,) = summarise(run_study([Scenario(made.name, made)], ["zeus"], [0], TEN), ["zeus"])
    assert own.never_j is None
    assert own.to_never.cost is None
    assert own.failed_share > 0

"""Studies: what they add up to, that they repeat, and what they say in JSON."""

from __future__ import annotations

import json
import lzma
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.synthetic import FAMILIES
from tests.simulate.traces import job, write
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import LearningCurve, Rate, never_optimising
from zeusrun.simulate.replay import replay
from zeusrun.simulate.study import (
    Scenario,
    StudySettings,
    build_scenarios,
    pooled_regret,
    run_study,
    simulate,
    summarise,
)
from zeusrun.simulate.traces import ClusterRun, Group, load_groups

HEADER = "group,start_time,end_time,dataset,runtime_ratio\n"
CLUSTER = HEADER + (
    "b,50,60,cifar100,2\n"
    "a,100,110,cifar100,1\n"
    "a,0,40,cifar100,0.5\n"
    "c,0,1,elsewhere,1\n"
    "a,20,30,cifar100,1.5\n"
)
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
    (summary,) = summarise([episode], ["fixed"])
    assert summary.unreached == episode.last_attempts == episode.failed


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


def cluster(tmp_path, text=CLUSTER, name="cluster.csv"):
    path = tmp_path / name
    if path.suffix == ".xz":
        with lzma.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["cluster.csv", "cluster.csv.xz"])
def test_a_cluster_trace_is_sorted_into_groups(tmp_path, name):
    path = cluster(tmp_path, name=name)
    assert load_groups(path, ["cifar100"]) == [
        Group(
            "a",
            "cifar100",
            (ClusterRun(0, 40, 0.5), ClusterRun(20, 10, 1.5), ClusterRun(100, 10, 1)),
        ),
        Group("b", "cifar100", (ClusterRun(50, 10, 2),)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CLUSTER.replace("a,0,40", "a,0,-1"), "cluster.csv:4: end_time -1 is before start_time 0"),
        (CLUSTER.replace("a,20", "a,soon"), "cluster.csv:6: start_time is 'soon', not a number"),
        (
            CLUSTER.replace("30,cifar100", "30,squad"),
            "cluster.csv:6: group a is of dataset 'cifar10",
        ),
        (CLUSTER.replace("cifar100,2", "cifar100,0"), "cluster.csv:2: runtime_ratio is '0'"),
        (
            CLUSTER.replace("cifar100,2", "cifar100,1e308"),
            "cluster.csv:2: runtime_ratio is '1e308', not a number from 1e-09 to 1e+15",
        ),
        (
            CLUSTER.replace("b,50", "b,-1e308"),
            "cluster.csv:2: start_time is '-1e308', not a number from",
        ),
        (
            CLUSTER.replace("runtime_ratio", "ratio"),
            "cluster.csv:1: there is no column 'runtime_rat",
        ),
        (HEADER, "none of its datasets is simulated (no rows)"),
        (HEADER + "a,0,1,cifar,1\n", "(cifar); did you mean 'cifar100'?"),
    ],
)
def test_what_is_wrong_with_a_cluster_trace_is_told(tmp_path, text, words):
    with pytest.raises(UsageError) as caught:
        load_groups(cluster(tmp_path, text), ["cifar100", "squad"])
    assert words in str(caught.value)


def test_a_file_that_is_not_packed_is_told(tmp_path):
    path = tmp_path / "cluster.csv.xz"
    path.write_text(CLUSTER)
    with pytest.raises(UsageError, match=r"\.xz cannot be read: "):
        load_groups(path, ["cifar100"])


def test_groups_are_charged_by_their_ratio_and_merged_by_time(tmp_path):
    scenarios = build_scenarios([], write(tmp_path), "toy", cluster(tmp_path))
    assert [(each.name, len(each.runs)) for each in scenarios] == [
        ("cifar100", 3),
        ("cifar100", 1),
    ]
    assert scenarios[0].salt != scenarios[1].salt
    (episode,) = run_study(scenarios, ["fixed"], [0], TEN)
    assert episode.starts_s.tolist() == [0, 20, 50, 100]
    ratios = np.array([0.5, 1.5, 2, 1])
    assert episode.best[:, 2] == pytest.approx(50 * ratios)
    rest = simulate(scenarios[1], "fixed", 0, TEN)
    assert rest.spent[0, 0] == pytest.approx(episode.spent[2, 0])


def test_a_trial_lasts_as_long_as_the_trace_says_of_the_default(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "zeusrun.simulate.study.replay",
        lambda *args, arrivals, **options: seen.extend(arrivals) or replay(*args, **options),
    )
    (scenario, _) = build_scenarios([], write(tmp_path), "toy", cluster(tmp_path))
    simulate(scenario, "fixed", 0, TEN)
    assert [arrival.start_s for arrival in seen] == [0, 20, 100]
    assert seen[0].stretch == 40 / never_optimising(scenario.build(0), 0.5, 1).time_s


@pytest.mark.long
def test_a_summary_is_plain_json():
    scenarios = [Scenario(name, make) for name, make in FAMILIES.items()]
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
    episodes = run_study([Scenario("law", FAMILIES["law"])], ["zeus"], range(3), TEN)
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

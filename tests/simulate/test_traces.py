"""Traces become jobs, and what is wrong with them is told with its place."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulate.traces import POWER, TRAINING, write
from tests.simulate.traces import job as made_job
from zeusrun.bandit.registry import POLICIES
from zeusrun.errors import UsageError
from zeusrun.simulate.job import (
    Course,
    Rate,
    best_arm,
    best_limit_w,
    expected_cost_j,
    never_optimising,
)
from zeusrun.simulate.scenario import Scenario
from zeusrun.simulate.study import Settings, run_study
from zeusrun.simulate.traces import gpus, load_jobs
from zeusrun.simulate.workloads import WORKLOADS, Workload, parse_workload

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
PUBLIC = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public traces are not in {SHARED}")


def test_a_job_has_the_batch_sizes_that_both_traces_have(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy")
    assert (job.name, job.arms, job.default, job.max_epochs) == ("cifar100", (512, 1024), 1024, 100)
    assert job.max_power_w == 200
    assert job.power_limits_w == (100, 200)
    assert job.rates[512][100] == Rate(30, 70)
    assert job.courses(1024, 1) == [
        Course(4, ((1, 0.3), (4, 0.6))),
        Course(6, ((2, 0.3), (6, 0.6))),
    ]
    assert job.courses(512, 1) == [Course(None, ((1, 0.3),))]


HOLE = POWER.replace("cifar100,net,512,sgd,200,20,150\n", "")  # 512 was only held at 100 W


def test_a_limit_that_one_batch_size_lacks_is_kept_for_the_others(tmp_path):
    (job,) = load_jobs(write(tmp_path, power=HOLE), "toy")
    assert job.power_limits_w == (100, 200)
    assert {arm: set(rates) for arm, rates in job.rates.items()} == {512: {100}, 1024: {100, 200}}
    assert job.max_power_w == 200
    # 5 epochs of 10 s at 190 W
    assert best_limit_w(job, 1024, 0.5) == 200
    assert expected_cost_j(job, 1024, 0.5, 1) == 5 * 10 * (190 + 200) / 2
    assert never_optimising(job, 1.0, 1) == (5 * 10 * 190, 5 * 10 * 190, 50)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_with_a_hole_is_simulated(tmp_path, policy):
    scenarios = [Scenario.of_job(job) for job in load_jobs(write(tmp_path, power=HOLE), "toy")]
    (episode,) = run_study(scenarios, [policy], [0], Settings(recurrences=10))
    assert episode.reached.all()


@pytest.mark.parametrize("policy", POLICIES)
def test_batch_sizes_without_a_limit_in_common_are_simulated(tmp_path, policy):
    power = HOLE.replace("cifar100,net,1024,sgd,100,20,80\n", "")
    (job,) = load_jobs(write(tmp_path, power=power), "toy")
    assert {arm: set(rates) for arm, rates in job.rates.items()} == {512: {100}, 1024: {200}}
    (episode,) = run_study([Scenario.of_job(job)], [policy], [0], Settings(recurrences=10))
    assert episode.reached.all()


@pytest.mark.parametrize("rates", [{8: {200.0: Rate(1, 1)}, 16: {}}, {}])
def test_a_batch_size_without_a_rate_is_refused(rates):
    with pytest.raises(ValueError, match="needs a rate under a power limit"):
        replace(made_job(), rates=rates)


def test_expected_costs_by_hand(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy")
    # 5 epochs on average, of 10 s at (190 + 200) / 2 W or 20 s at (80 + 200) / 2 W
    assert expected_cost_j(job, 1024, 0.5, 1) == 5 * 10 * 195
    assert never_optimising(job, 1.0, 1) == (5 * 10 * 190, 5 * 10 * 190, 50)
    assert expected_cost_j(job, 512, 0.5, 1) == float("inf")
    assert best_arm(job, 0.5, 1) == 1024


def test_a_metric_that_falls_is_read_downwards(tmp_path):
    wanted = parse_workload("other:8:3:9:min")
    (job,) = load_jobs(write(tmp_path), "toy", [wanted])
    assert job.courses(8, 1) == [Course(9, ((2, 5.0), (9, 3.0)))]


def test_the_default_is_at_most_the_largest_batch_size(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy", [Workload("cifar100", 4096, 0.6, 100)])
    assert job.default == 1024


def test_epochs_beyond_the_last_one_allowed_do_not_count(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy", [Workload("cifar100", 1024, 0.6, 5)])
    assert [course.epochs for course in job.courses(1024, 1)] == [4, None]


def test_the_case_of_a_gpu_does_not_matter(tmp_path):
    assert load_jobs(write(tmp_path), "TOY")
    assert gpus(tmp_path) == ["toy"]


def test_a_job_pickles(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy")
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.parametrize(
    ("training", "power", "words"),
    [
        (None, POWER, "there is no file {}/summary_train.csv"),
        (
            TRAINING.replace("target_epoch", "epochs"),
            POWER,
            "summary_train.csv:1: there is no colu",
        ),
        (
            TRAINING.replace("0.6,4", "0.6,four"),
            POWER,
            "summary_train.csv:3: target_epoch is 'four'",
        ),
        (TRAINING.replace("0.6,4", "0.6,-4"), POWER, "summary_train.csv:3: target_epoch is -4"),
        (TRAINING.replace("0.6,4", "0.6,4.5"), POWER, "target_epoch is 4.5, not a whole number"),
        (TRAINING.replace(",0.1,1,0.6,4", ""), POWER, "summary_train.csv:3: 4 cells where"),
        (TRAINING, POWER.replace("20,80", "0,80"), "power_toy.csv:2: time_per_epoch is 0"),
        (
            TRAINING,
            POWER.replace("sgd,100,20", "sgd,nan,20"),
            "power_toy.csv:2: power_limit is 'nan'",
        ),
        (TRAINING, POWER.replace("20,80", "-20,80"), "power_toy.csv:2: time_per_epoch is -20"),
        (TRAINING, POWER.replace("20,80", "1e308,80"), "time_per_epoch is 1e308, beyond reason"),
        (TRAINING, POWER.replace("20,80", "1e-310,80"), "time_per_epoch is 1e-310, beyond reason"),
        (TRAINING, POWER.replace("20,80", "20,-80"), "power_toy.csv:2: average_power is -80"),
        (TRAINING, POWER.replace("sgd,100,20", "sgd,1e300,20"), "power_limit is 1e300, beyond"),
        (TRAINING.replace("0.6,4", "-1e300,4"), POWER, "train.csv:3: target_metric is -1e300, bey"),
        (TRAINING + '"squad,a\n' + TRAINING, POWER, "summary_train.csv:11: this row is no CSV: "),
        (TRAINING + "x" * 200_000 + ",1\n", POWER, "summary_train.csv:11: this row is no CSV: fi"),
        ('"dataset' + TRAINING, POWER, "summary_train.csv:1: this row is no CSV: "),
        (TRAINING, POWER.splitlines()[0] + "\n", "summary_power_toy.csv has no rows"),
        (TRAINING, "", "summary_power_toy.csv:1: there is no column 'dataset'; found no header"),
        (TRAINING, POWER.replace("cifar100", "mnist"), "has none of the workloads known by name"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(tmp_path, training, power, words):
    with pytest.raises(UsageError) as caught:
        load_jobs(write(tmp_path, training, power), "toy")
    assert words.format(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (Workload("cifar10", 1, 1, 1), "did you mean 'cifar100'?"),
        (
            Workload("cifar100", 700, 0.6, 10),
            "the default, 700, is no batch size of both traces: 512",
        ),
        (Workload("cifar100", 1024, 0.7, 10), "no run reaches 0.7 within 10 epochs"),
    ],
)
def test_a_workload_that_cannot_be_simulated_is_told(tmp_path, workload, words):
    with pytest.raises(UsageError) as caught:
        load_jobs(write(tmp_path), "toy", [workload])
    assert words in str(caught.value)


def test_no_batch_size_in_both_traces(tmp_path):
    power = POWER.replace("other,net,8,sgd", "other,net,8,adam")
    with pytest.raises(
        UsageError, match=r"other: no batch size of the training trace \(net, sgd\)"
    ):
        load_jobs(write(tmp_path, power=power), "toy", [Workload("other", 8, 5, 9, "min")])


@pytest.mark.parametrize(
    ("gpu", "words"),
    [(None, "say which GPU with --gpu"), ("tpu", "has no power trace of 'tpu', but of a100, toy")],
)
def test_which_gpus_there_are_is_told(tmp_path, gpu, words):
    write(tmp_path, gpu="a100")
    with pytest.raises(UsageError, match=words):
        load_jobs(write(tmp_path), gpu)


def test_a_directory_without_traces(tmp_path):
    for path, words in (
        (tmp_path, "no summary_power_<gpu>.csv in it"),
        (tmp_path / "x", "no such"),
    ):
        with pytest.raises(UsageError, match=words):
            load_jobs(path, "toy")


def test_workloads_are_known_by_name_or_described():
    assert parse_workload("librispeech") == Workload("librispeech", 256, 40, 16, "min")
    assert parse_workload("a:8:0.5:9") == Workload("a", 8, 0.5, 9)
    assert parse_workload("a:8:0.5:9:min").mode == "min"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("imagnet", "did you mean 'imagenet'?"),
        ("a:8:0.5", "it is to read name:default:target:max_epochs"),
        ("a:8:0.5:9:up", "it is to read"),
        (":8:0.5:9", "it is to read"),
        ("a:b:0.5:9", "the default batch size is 'b', not a number"),
        ("a:8:inf:9", "the target is 'inf', not a number"),
        ("a:8:0.5:0", "max_epochs must be a whole number above 0"),
        ("a:8:0.5:1e300", "max_epochs must be at most 1,000,000"),
        ("a:8.5:1:2", "the default batch size must be a whole number above 0"),
    ],
)
def test_a_workload_that_cannot_be_read_is_told(text, words):
    with pytest.raises(UsageError) as caught:
        parse_workload(text)
    assert words in str(caught.value)


@PUBLIC
@pytest.mark.parametrize("gpu", ["v100", "p100"])
def test_the_six_public_workloads_can_be_simulated(gpu):
    jobs = load_jobs(SHARED, gpu)
    assert [job.name for job in jobs] == list(WORKLOADS)
    assert {job.max_power_w for job in jobs} == {250.0}
    for job in jobs:
        assert expected_cost_j(job, job.default, 0.5, 1) < float("inf")
        assert job.default == min(WORKLOADS[job.name].default, job.arms[-1])

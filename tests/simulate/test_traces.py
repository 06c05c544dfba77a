"""Traces become jobs, and what is wrong with them is told with its place."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from benchmarks.study import Scenario, StudySettings, run_study
from benchmarks.traces import (
    WORKLOADS,
    Workload,
    _build_curve,
    gpus,
    load_jobs,
)
from tests.simulate.jobs import POWER, TRAINING, write
from zeusrun.bandit.registry import POLICIES
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import (
    LearningCurve,
    Rate,
    best_arm,
    best_limit_w,
    expected,
    never_optimising,
)

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
PUBLIC = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public traces are not in {SHARED}")


def test_a_job_has_the_batch_sizes_that_both_traces_have(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy")
    assert (job.name, job.arms, job.default, job.max_epochs) == ("cifar100", (512, 1024), 1024, 100)
    assert job.max_power_w == 200
    assert job.power_limits_w == (100, 200)
    assert job.rates[512][100] == Rate(30, 70)
    assert job.curves(1024, 1) == [
        # 0.3 half-way through epoch 1, 0.6 half-way through epoch 4: in between, 0.1 an epoch
        LearningCurve(4, ((1, 0.3), (3, pytest.approx(0.55)), (4, pytest.approx(0.65)))),
        LearningCurve(6, ((2, 0.3), (5, pytest.approx(0.5625)), (6, pytest.approx(0.6375)))),
    ]
    assert job.curves(512, 1) == [LearningCurve(None, ((1, 0.3),))]


HOLE = POWER.replace("cifar100,net,512,sgd,200,20,150\n", "")  # 512 was only held at 100 W


def test_a_limit_that_one_batch_size_lacks_is_kept_for_the_others(tmp_path):
    (job,) = load_jobs(write(tmp_path, power=HOLE), "toy")
    assert job.power_limits_w == (100, 200)
    assert {arm: set(rates) for arm, rates in job.rates.items()} == {512: {100}, 1024: {100, 200}}
    assert job.max_power_w == 200
    # 5 epochs of 10 s at 190 W
    assert best_limit_w(job, 1024, 0.5) == 200
    assert expected(job, 1024, 0.5, 1).cost_j == 5 * 10 * (190 + 200) / 2
    assert never_optimising(job, 1.0, 1) == (5 * 10 * 190, 5 * 10 * 190, 50)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_trace_with_a_hole_is_simulated(tmp_path, policy):
    scenarios = [Scenario(job.name, job) for job in load_jobs(write(tmp_path, power=HOLE), "toy")]
    (episode,) = run_study(scenarios, [policy], [0], StudySettings(recurrences=10))
    assert episode.reached.all()


@pytest.mark.parametrize("policy", POLICIES)
def test_batch_sizes_without_a_limit_in_common_are_simulated(tmp_path, policy):
    power = HOLE.replace("cifar100,net,1024,sgd,100,20,80\n", "")
    (job,) = load_jobs(write(tmp_path, power=power), "toy")
    assert {arm: set(rates) for arm, rates in job.rates.items()} == {512: {100}, 1024: {200}}
    (episode,) = run_study([Scenario(job.name, job)], [policy], [0], StudySettings(recurrences=10))
    assert episode.reached.all()


def test_expected_costs_by_hand(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy")
    # 5 epochs on average, of 10 s at (190 + 200) / 2 W or 20 s at (80 + 200) / 2 W
    assert expected(job, 1024, 0.5, 1).cost_j == 5 * 10 * 195
    assert never_optimising(job, 1.0, 1) == (5 * 10 * 190, 5 * 10 * 190, 50)
    assert expected(job, 512, 0.5, 1).cost_j == float("inf")
    assert best_arm(job, 0.5, 1) == 1024


def test_a_metric_that_falls_is_read_downwards(tmp_path):
    wanted = Workload("other", 8, 3, 9, "min")
    (job,) = load_jobs(write(tmp_path), "toy", [wanted])
    assert job.curves(8, 1) == [
        LearningCurve(9, ((2, 5.0), (8, pytest.approx(22 / 7)), (9, pytest.approx(20 / 7))))
    ]


def test_a_target_between_two_levels_is_passed_in_the_last_epoch():
    levels = {0.5: 1, 0.8: 2, 0.92: 10}
    curve = _build_curve(levels, Workload("toy", 8, 0.9, 20))
    assert curve.epochs == 10
    (*_, (before, value), (last, reached)) = curve.pace
    assert (before, last) == (9, 10)
    assert value < 0.9 < reached


def test_the_default_is_at_most_the_largest_batch_size(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy", [Workload("cifar100", 4096, 0.6, 100)])
    assert job.default == 1024


def test_epochs_beyond_the_last_one_allowed_do_not_count(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy", [Workload("cifar100", 1024, 0.6, 5)])
    assert [curve.epochs for curve in job.curves(1024, 1)] == [4, None]


def test_the_case_of_a_gpu_does_not_matter(tmp_path):
    assert load_jobs(write(tmp_path), "TOY")
    assert gpus(tmp_path) == ["toy"]


def test_a_job_pickles(tmp_path):
    (job,) = load_jobs(write(tmp_path), "toy")
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.parametrize(
    ("training", "power", "words"),
    [
        (None, POWER, "{}/summary_train.csv cannot be read: No such file"),
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
        (TRAINING.replace("0.6,4", "0.6,-4"), POWER, "summary_train.csv:3: target_epoch is '-4'"),
        (TRAINING.replace("0.6,4", "0.6,4.5"), POWER, "target_epoch is 4.5, not a whole number"),
        (
            TRAINING.replace(",0.1,1,0.6,4", ""),
            POWER,
            "summary_train.csv:3: fewer cells than the 8",
        ),
        (TRAINING, POWER.replace("20,80", "0,80"), "power_toy.csv:2: time_per_epoch is '0'"),
        (
            TRAINING,
            POWER.replace("sgd,100,20", "sgd,nan,20"),
            "power_toy.csv:2: power_limit is 'nan'",
        ),
        (TRAINING, POWER.replace("20,80", "-20,80"), "power_toy.csv:2: time_per_epoch is '-20'"),
        (
            TRAINING,
            POWER.replace("20,80", "1e308,80"),
            "time_per_epoch is '1e308', not a number from 1e-09",
        ),
        (TRAINING, POWER.replace("20,80", "1e-310,80"), "time_per_epoch is '1e-310', not a number"),
        (TRAINING, POWER.replace("20,80", "20,-80"), "power_toy.csv:2: average_power is '-80'"),
        (TRAINING, POWER.replace("sgd,100,20", "sgd,1e300,20"), "power_limit is '1e300', not a"),
        (TRAINING.replace("0.6,4", "-1e300,4"), POWER, "train.csv:3: target_metric is '-1e300', n"),
        (TRAINING + '"squad,a\n' + TRAINING, POWER, "summary_train.csv, after line 10: not CSV: "),
        (TRAINING + "x" * 200_000 + ",1\n", POWER, "summary_train.csv, after line 10: not CSV: fi"),
        ('"dataset' + TRAINING, POWER, "summary_train.csv, after line 0: not CSV: "),
        (TRAINING, POWER.splitlines()[0] + "\n", "summary_power_toy.csv has no rows"),
        (TRAINING, "", "summary_power_toy.csv:1: there is no column 'dataset'; found no header"),
        (TRAINING, POWER.replace("cifar100", "mnist"), "has no known workload; it has "),
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
            "both traces have batch sizes 512, 1024, not the default 700",
        ),
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
    [(None, "name the GPU"), ("tpu", "has no power trace of 'tpu'; it has a100, toy")],
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


@PUBLIC
@pytest.mark.parametrize("gpu", ["v100", "p100"])
def test_the_six_public_workloads_can_be_simulated(gpu):
    jobs = load_jobs(SHARED, gpu)
    assert [job.name for job in jobs] == list(WORKLOADS)
    assert {job.max_power_w for job in jobs} == {250.0}
    for job in jobs:
        assert expected(job, job.default, 0.5, 1).cost_j < float("inf")
        assert job.default == min(WORKLOADS[job.name].default, job.arms[-1])

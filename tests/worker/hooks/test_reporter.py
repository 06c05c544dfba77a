"""How often a metric that a hook has seen is recorded."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

from zeusrun.sidecar.events import Loading
from zeusrun.worker.context import RunContext
from zeusrun.worker.hooks.observer import Observer as RealObserver
from zeusrun.worker.hooks.reporter import Reporter, number_of


class Run:
    rank = 0

    def __init__(self):
        self.reports = []

    def meets_target(self, name, value):
        return name == "accuracy" and value >= 0.5

    def report_for(self, source, epoch, metrics):
        self.reports.append((source, epoch, dict(metrics)))


class Observer:
    epoch = None


@pytest.fixture
def run():
    return Run()


@pytest.fixture
def reporter(run):
    return Reporter(run, Observer())


def test_where_no_epoch_is_known_the_kth_value_is_epoch_k(run, reporter):
    for value in (0.1, 0.2):
        reporter.log("wandb", {"accuracy": value})
    reporter.log("wandb", {"loss": 2.0})
    assert run.reports == [
        ("wandb", 1, {"accuracy": 0.1}),
        ("wandb", 2, {"accuracy": 0.2}),
        ("wandb", 1, {"loss": 2.0}),
    ]


def test_a_pass_over_the_training_data_is_an_epoch(run, reporter):
    for Observer.epoch, value in ((1, 0.1), (2, 0.2)):
        reporter.log("wandb", {"accuracy": value})
    Observer.epoch = None
    assert [epoch for _, epoch, _ in run.reports] == [1, 2]


def test_a_metric_of_every_step_is_recorded_first_and_last_and_no_value_twice(run, reporter):
    for step in range(1000):
        reporter.log("tensorboard", {"loss": 1000 - step, "lr": 0.1}, epoch=1)
    reporter.log("tensorboard", {"loss": 0.5}, epoch=2)
    reporter.flush()
    losses = [(epoch, m["loss"]) for _, epoch, m in run.reports if "loss" in m]
    assert losses[0] == (1, 1000)
    assert losses[-2:] == [(1, 1), (2, 0.5)]
    assert len(losses) < 10
    assert sum("lr" in metrics for _, _, metrics in run.reports) == 1


def test_metrics_within_a_mapping_have_both_names(run, reporter):
    reporter.log("accelerate", {"accuracy": {"f1": 0.1, "note": "none"}, "loss": 1.0}, epoch=1)
    assert run.reports == [("accelerate", 1, {"accuracy/f1": 0.1, "loss": 1.0})]


def test_a_value_that_meets_the_target_is_recorded_at_once(run, reporter):
    for value in (0.1, 0.2, 0.6, 0.3):
        reporter.log("tensorboard", {"accuracy": value}, epoch=1)
    assert [metrics["accuracy"] for _, _, metrics in run.reports] == [0.1, 0.6]


def test_a_known_name_counts_whatever_many_names_come(run, reporter):
    reporter.log("wandb", {"accuracy": 0.1})
    reporter.log("wandb", {f"name {number}": 1.0 for number in range(2000)})
    reporter.log("wandb", {"accuracy": 0.2, "another": 1.0})
    assert run.reports[-1] == ("wandb", 2, {"accuracy": 0.2})


def test_other_ranks_record_nothing(run, reporter):
    run.rank = 1
    reporter.log("wandb", {"accuracy": 0.9})
    reporter.flush()
    assert run.reports == []


def test_a_muted_one_records_nothing_but_what_came_before(run, reporter):
    for value in (0.1, 0.2):
        reporter.log("wandb", {"accuracy": value}, epoch=1)
    reporter.muted = True
    reporter.log("wandb", {"accuracy": 0.9}, epoch=1)
    reporter.flush()
    assert [metrics["accuracy"] for _, _, metrics in run.reports] == [0.1, 0.2]


@pytest.mark.parametrize(
    "raw",
    ["0.5", b"1", None, True, [1, 2], {"a": 1}, object(), 1j, pytest.param(10**400, id="huge")],
)
def test_what_is_no_number_is_left_out(raw):
    assert number_of(raw) is None


def test_a_full_disk_ends_no_training_under_w_error():
    environment = {"ZEUSRUN_TRIAL": "job-1-1", "ZEUSRUN_SIDECAR": "/dev/full"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RunContext(environment).report_for("lightning", 1, {"accuracy": 0.5})


def test_the_groups_of_an_odd_optimizer_end_no_training():
    events = []
    observer = RealObserver(
        SimpleNamespace(
            rank=0, world_size=1, grouped=False, record=events.append, look_for_groups=list
        )
    )
    feed = observer.begin_pass(object())
    observer.current = feed
    for _ in range(9):
        feed.pending = 1
        observer.step(SimpleNamespace(param_groups=[1, 2]))
    (loading, observed) = events
    assert loading == Loading(loading.t)
    assert observed.learning_rates == ()

"""How often a metric that a hook has seen is recorded."""

from __future__ import annotations

import time
import warnings
from types import SimpleNamespace

import pytest

from zeusrun.sidecar.events import Loading, Reported
from zeusrun.sidecar.plan import RankPlan
from zeusrun.worker.environment import WorkerEnvironment
from zeusrun.worker.hooks.observer import Observer
from zeusrun.worker.hooks.reporter import Reporter, number_of


class Run:
    rank = number = 0
    world_size = 1
    grouped = True
    share = None
    plan = RankPlan(metric="accuracy", target=0.5, mode="max", on_target="stop")

    def __init__(self):
        self.events, self.agents = [], []

    @property
    def reports(self):
        return [(event.source, event.epoch, dict(event.metrics)) for event in self.events]

    def report(self, event):
        self.events.append(event)

    def record(self, event):
        pass

    def look_for_groups(self):
        pass


class Loader:
    """Yields batches of some sizes, as the hook of the DataLoader tells the observer."""

    def __init__(self, observer, *sizes):
        self.observer, self.sizes = observer, sizes

    def __iter__(self):
        part = self.observer.begin_pass(self)
        for size in self.sizes:
            self.observer.current = part
            part.feed.see(size, [0] * size)
            part.pending, part.samples = part.pending + 1, part.samples + size
            yield size
        self.observer.end_pass(part)


@pytest.fixture
def run():
    return Run()


@pytest.fixture
def observer(run):
    return Observer(run)


@pytest.fixture
def reporter(run, observer):
    run.agents.append(Reporter(run, observer))
    return run.agents[0]


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    clock = SimpleNamespace(now=100.0)
    patched = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("zeusrun.worker.hooks.reporter.time", patched)
    return clock


@pytest.fixture
def accuracies(run, reporter):
    """Log an accuracy with TensorBoard; return what was recorded of it so far."""

    def log(*values):
        for value in values:
            reporter.log("tensorboard", {"accuracy": value})
        return [(event.epoch, event.metrics["accuracy"], event.parts) for event in run.events]

    return log


STEP = SimpleNamespace(param_groups=[])
OTHER = SimpleNamespace(param_groups=[])


@pytest.fixture
def train(observer):
    """Train for one pass of four steps."""
    loader = Loader(observer, 8, 8, 8, 8)

    def run_pass():
        for _ in loader:
            observer.step(STEP)

    return run_pass


def test_the_values_of_an_evaluation_are_one_value_their_mean_by_samples(
    observer, accuracies, train, run
):
    for epoch in (1, 2):
        train()
        for value, _ in zip((0.4, 0.4, 1.0), loader := Loader(observer, 4, 4, 2), strict=True):
            assert len(accuracies(value)) == epoch - 1  # a lucky batch meets no target
        assert accuracies()[-1] == (epoch, pytest.approx(0.52), 3)
    assert loader.sizes == (4, 4, 2)


def test_where_the_samples_are_unknown_the_parts_count_alike(accuracies, train):
    train()
    accuracies(0.4, 0.4, 1.0)
    train()
    assert accuracies() == [(1, pytest.approx(0.6), 3)]


def test_an_evaluation_that_breaks_off_is_over_when_the_training_goes_on(
    observer, accuracies, train
):
    train()
    for value, _ in zip((0.2, 0.4), Loader(observer, *[8] * 9), strict=False):
        accuracies(value)
    assert accuracies() == []
    train()
    assert accuracies() == [(1, pytest.approx(0.3), 2)]


def test_two_evaluations_without_a_step_between_them_are_two(observer, accuracies, train):
    train()
    for values in ((0.2, 0.4), (0.1, 0.3)):
        for value, _ in zip(values, Loader(observer, 8, 8), strict=True):
            accuracies(value)
    assert accuracies() == [(1, pytest.approx(0.3), 2), (1, pytest.approx(0.2), 2)]


def test_a_value_of_an_evaluation_is_as_old_as_its_last_part(run, accuracies, train):
    train()
    before_t = time.monotonic()
    accuracies(0.2, 0.4)
    after_t = time.monotonic()
    train()
    assert before_t <= run.events[0].t <= after_t
    assert run.events[0].samples == 32


def test_what_is_logged_in_every_step_meets_no_target(observer, reporter, run):
    for _ in range(2):
        for _ in Loader(observer, *[8] * 6):
            observer.step(STEP)
            reporter.log("tensorboard", {"accuracy": 0.9})
    reporter.conclude()
    assert run.events
    assert all(event.each_step for event in run.events)


def test_what_is_logged_in_some_steps_is_a_result(observer, reporter, run):
    for step, _ in enumerate(Loader(observer, *[8] * 6)):
        observer.step(STEP)
        if step in {1, 3}:
            reporter.log("tensorboard", {"accuracy": 0.1 * step})
    reporter.conclude()
    assert [event.metrics["accuracy"] for event in run.events] == [0.1, pytest.approx(0.3)]
    assert not any(event.each_step for event in run.events)


def test_in_a_training_of_one_step_an_epoch_the_values_are_results(observer, reporter, run):
    for _ in range(4):
        for _ in Loader(observer, 64):
            observer.step(STEP)
            reporter.log("tensorboard", {"accuracy": 0.9})
    reporter.conclude()
    assert not any(event.each_step for event in run.events)


def test_where_no_epoch_is_known_the_kth_value_is_epoch_k(run, reporter):
    for value in (0.1, 0.2):
        reporter.log("wandb", {"accuracy": value})
    reporter.log("wandb", {"loss": 2.0})
    assert run.reports == [
        ("wandb", 1, {"accuracy": 0.1}),
        ("wandb", 2, {"accuracy": 0.2}),
        ("wandb", 1, {"loss": 2.0}),
    ]


def test_a_pass_over_the_training_data_is_an_epoch(run, reporter, train):
    for value in (0.1, 0.2):
        train()
        reporter.log("wandb", {"accuracy": value})
    reporter.conclude()
    assert [epoch for _, epoch, _ in run.reports] == [1, 2]


def test_a_metric_of_every_step_is_recorded_first_and_last_and_no_value_twice(run, reporter):
    for step in range(1000):
        reporter.log("tensorboard", {"loss": 1000 - step, "lr": 0.1}, epoch=1)
    reporter.log("tensorboard", {"loss": 0.5}, epoch=2)
    reporter.conclude()
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
    reporter.conclude()
    assert run.reports == []


def test_a_muted_one_records_nothing_but_what_came_before(run, reporter):
    for value in (0.1, 0.2):
        reporter.log("wandb", {"accuracy": value}, epoch=1)
    reporter.muted = True
    reporter.log("wandb", {"accuracy": 0.9}, epoch=1)
    reporter.conclude()
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
        worker = WorkerEnvironment(environment)
        worker.report(Reported(1.0, 1, {"accuracy": 0.5}))
    worker._writer.close()


def test_the_groups_of_an_odd_optimizer_end_no_training():
    events = []
    observer = Observer(
        SimpleNamespace(
            rank=0,
            number=0,
            world_size=1,
            grouped=False,
            agents=[],
            record=events.append,
            look_for_groups=list,
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


def test_the_first_batch_of_the_training_is_no_evaluation(observer, reporter, run):
    for _ in Loader(observer, *[8] * 6):  # logged before the step, with a lucky first batch
        reporter.log("tensorboard", {"accuracy": 0.9})
        observer.step(STEP)
    reporter.conclude()
    assert all(event.each_step for event in run.events)


def test_two_optimizers_make_one_step(observer, reporter, run):
    for _ in Loader(observer, *[8] * 6):
        observer.step(STEP)
        observer.step(OTHER)
        reporter.log("tensorboard", {"accuracy": 0.9})
    reporter.conclude()
    assert observer.steps == 6
    assert all(event.each_step for event in run.events)


def test_an_evaluation_iterator_that_is_kept_is_weighed_by_its_own_batches(
    observer, accuracies, train
):
    kept = iter(Loader(observer, *[4] * 99))
    for epoch in (1, 2, 3):
        train()
        for value in (0.0, 0.4):
            next(kept)
            accuracies(value)
        train()
        assert accuracies()[-1][1] == pytest.approx(0.2), epoch


def test_a_value_that_stays_is_recorded_again_once_the_training_has_gone_on(
    observer, reporter, run, clock
):
    for step, _ in enumerate(Loader(observer, *[8] * 9), 1):
        observer.step(STEP)
        if step % 2 == 0:
            clock.now += 2.0
            reporter.log("tensorboard", {"accuracy": 0.4, "loss": 0.1})
            reporter.log("tensorboard", {"accuracy": 0.4})  # the same evaluation
    reporter.conclude()
    kept = [(event.samples, event.parts) for event in run.events if "accuracy" in event.metrics]
    assert kept == [(16, 2), (32, 2), (48, 2), (64, 2)]
    assert sum("loss" in event.metrics for event in run.events) == 1  # no result of the job


def test_a_value_that_stays_is_recorded_once_a_second_and_at_the_end(
    observer, reporter, run, clock
):
    for step, _ in enumerate(Loader(observer, *[8] * 100), 1):
        observer.step(STEP)
        if step % 2 == 0:
            clock.now += 0.3
            reporter.log("tensorboard", {"accuracy": 0.6})  # meets the target
    reporter.conclude()
    assert [event.samples for event in run.events][:3] == [16, 80, 144]
    assert len(run.events) < 15
    assert run.events[-1].samples == 800


def test_what_is_logged_in_every_step_is_recorded_once_while_it_stays(
    observer, reporter, run, clock
):
    for _ in Loader(observer, *[8] * 50):
        clock.now += 2.0
        observer.step(STEP)
        reporter.log("tensorboard", {"accuracy": 0.4})
    reporter.conclude()
    assert len(run.events) == 1


def test_of_two_optimizers_the_steps_of_one_count(observer):
    for _ in Loader(observer, *[8] * 3):
        assert [observer.step(each) for each in (STEP, OTHER, STEP)] == [True, False, True]
    assert observer.steps == 6


def test_without_a_loader_the_optimizer_that_goes_on_counts(observer):
    steps = [observer.step(each) for each in (STEP, OTHER, STEP, OTHER, OTHER, OTHER)]
    assert steps == [True, False, True, False, True, True]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_array_of_one_number_is_that_number(library, shape):
    ones = pytest.importorskip(library).ones
    assert number_of(ones(shape)) == 1.0
    assert number_of(ones((2,))) is None


def test_a_tensor_with_a_gradient_is_a_number_without_a_warning():
    class Tensor:
        def __init__(self, *, grad):
            self.grad = grad

        def detach(self):
            return Tensor(grad=False)

        def __float__(self):
            assert not self.grad  # torch warns
            return 0.5

    assert number_of(Tensor(grad=True)) == 0.5


@pytest.mark.parametrize("seen", [True, False])
def test_an_optimizer_promises_steps_only_where_they_can_be_counted(seen):
    """On a full disk there is no step clock: a report must be able to meet the target."""
    events = []
    run = SimpleNamespace(rank=0, number=0, record=events.append, agents=[])
    observer = Observer(run)
    observer.build(observer, 0.1, steps_are_seen=seen)
    observer.build(observer, 0.1, steps_are_seen=seen)
    assert len(events) == seen

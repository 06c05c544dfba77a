"""What is recorded of a watched model, and of which samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.worker.stats.test_noise import exactly
from zeusrun.worker.stats import model as model_module
from zeusrun.worker.stats.model import Model, Settings


class Training:
    """A model, and the run it trains in: 10 steps of 16 samples in an epoch, 0.3 s each."""

    def __init__(self, monkeypatch, settings, data=160):
        self.now_s, self.steps, self.data, self.records = 1000.0, 0, data, []
        run = SimpleNamespace(rank=0, consumed=self.consumed, record_on_0=self.records.append)
        parameter = SimpleNamespace(numel=lambda: 7)
        self.model = Model(run, 3, [parameter], settings, self.window)
        self.model.watch = object()
        monkeypatch.setattr(model_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def consumed(self):
        return 16 * self.steps or None

    def window(self):
        done = 16 * self.steps
        return (done / 4, None) if self.data is None else (self.data, done // self.data)

    def step(self, norms, how="ranks", *, preconditioned=None):
        self.now_s += 0.3
        self.steps += 1
        self.model.add(norms, how, preconditioned)


BOTH = Settings(1, 1)


def test_values_are_recorded_once_a_second_with_the_samples_that_they_are_of(monkeypatch):
    training = Training(monkeypatch, BOTH)
    for step in range(40):
        training.step(exactly(8 + step % 2, 1))
    training.model.finish()
    last = training.records[-1]
    assert (last.model, last.parameters, last.how, last.problem) == (3, 7, "ranks", None)
    names = {"noise_scale", "noise_scale_low", "noise_scale_high", "gradient_variance"}
    assert set(last.values) == names
    assert last.values["noise_scale"] == pytest.approx(8.5, rel=0.01)
    assert last.values["noise_scale_low"] < 8.5 < last.values["noise_scale_high"]
    assert last.values["gradient_variance"] == pytest.approx(8.5 / 8, rel=0.01)  # of 8 samples
    assert last.samples == pytest.approx(40 * 16 - training.model.noise.age, abs=1)
    assert 10 <= len(training.records) <= 14  # 12 seconds, and the begins of 4 epochs
    epochs = {round(record.t - 1000.3, 1) for record in training.records}
    assert {2.7, 5.7, 8.7, 11.7} <= epochs  # each epoch has one of its end


def test_the_half_life_is_an_epoch_and_without_one_a_quarter_of_the_samples(monkeypatch):
    for data, found in ((160, 160), (None, 16 * 20 / 4)):
        training = Training(monkeypatch, BOTH, data)
        for _ in range(20):
            training.step(exactly(1, 1))
        assert training.model.noise.half_life == found


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (Settings(1, None), {"noise_scale", "noise_scale_low", "noise_scale_high"}),
        (Settings(None, 1), {"gradient_variance"}),
    ],
)
def test_only_what_was_asked_for_is_recorded(monkeypatch, settings, names):
    training = Training(monkeypatch, settings)
    for _ in range(5):
        training.step(exactly(1, 1))
    training.model.finish()
    assert set(training.records[-1].values) == names
    assert training.records[-1].problem is None


def test_gradients_as_adam_scales_them_come_first_and_the_variance_is_of_plain_ones(monkeypatch):
    training = Training(monkeypatch, BOTH)
    for _ in range(5):
        training.step(exactly(8, 1), preconditioned=exactly(30, 1))
    training.model.finish()
    last = training.records[-1]
    assert last.how == "adam"
    assert last.values["noise_scale"] == pytest.approx(30)
    assert last.values["gradient_variance"] == pytest.approx(1)


def test_the_variance_beside_examples_is_that_of_micro_batches(monkeypatch):
    training = Training(monkeypatch, BOTH)
    for _ in range(5):
        training.step(exactly(3, 1), "examples")
        training.step(exactly(8, 1), "micro_batches")
    training.model.finish()
    last = training.records[-1]
    assert last.how == "examples"
    assert last.values["noise_scale"] == pytest.approx(3)
    assert last.values["gradient_variance"] == pytest.approx(1)


@pytest.mark.parametrize(("noise", "variance"), [(8, 1), (1, 8)])
def test_a_measurement_stands_for_the_steps_of_its_own_interval(monkeypatch, noise, variance):
    training = Training(monkeypatch, Settings(noise, variance))
    for step in range(80):
        if step % noise == 0:
            training.step(exactly(3, 1), "examples")
        if step % variance == 0:
            training.step(exactly(8, 1), "micro_batches")
    scales = training.model._scales
    counts = {how: scales[how].done for how in ("examples", "micro_batches")}
    assert counts["examples"] == pytest.approx(80 * 16)
    assert counts["micro_batches"] == pytest.approx(80 * 16, abs=8 * 16)


def test_a_lower_bound_is_recorded_without_a_value_and_explained(monkeypatch):
    training = Training(monkeypatch, BOTH)
    for step in range(40):
        training.step(exactly(1000 + step, -5.0 if step % 2 else 6.0))
    training.model.finish()
    last = training.records[-1]
    assert set(last.values) == {"noise_scale_low", "gradient_variance"}
    assert last.values["noise_scale_low"] > 100
    assert "|G|² was within four standard errors of 0" in last.problem

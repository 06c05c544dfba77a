"""What is recorded of a watched model, and of which samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.gradients.rank.test_noise import exactly
from zeusrun.gradients.rank import agent as watch_module
from zeusrun.gradients.rank.agent import WatchedModel


class Training:
    """A model, and the run it trains in: 10 steps of 16 samples in an epoch, 0.3 s each."""

    def __init__(self, monkeypatch, data=160, interval=1):
        self.now_s, self.steps, self.data, self.records = 1000.0, 0, data, []
        environment = SimpleNamespace(rank=0, record_on_0=self.records.append)
        parameter = SimpleNamespace(numel=lambda: 7)
        self.model = WatchedModel(
            environment, 3, [parameter], interval=interval, observer=self, window=self.window
        )
        self.model.watch = object()
        monkeypatch.setattr(watch_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    @property
    def consumed(self):
        return 16 * self.steps or None

    def window(self):
        done = 16 * self.steps
        return (done / 4, None) if self.data is None else (self.data, done // self.data)

    def step(self, norms, how="ranks"):
        self.now_s += 0.3
        self.steps += 1
        self.model.add(norms, how)


def test_values_are_recorded_once_a_second_with_the_samples_that_they_are_of(monkeypatch):
    training = Training(monkeypatch)
    for step in range(40):
        training.step(exactly(8 + step % 2, 1))
    training.model.finish()
    last = training.records[-1]
    assert (last.model, last.parameters, last.how, last.problem) == (3, 7, "ranks", None)
    assert last.values.keys() - {"gradient_variance"} == {
        *("noise_scale", "noise_scale_low", "noise_scale_high")
    }
    assert last.values["gradient_variance"] == pytest.approx(8.5 / 8, rel=0.01)  # of 8 samples
    assert last.values["noise_scale"] == pytest.approx(8.5, rel=0.01)
    assert last.values["noise_scale_low"] < 8.5 < last.values["noise_scale_high"]
    assert last.samples == pytest.approx(40 * 16 - training.model.noise.age, abs=1)
    assert 10 <= len(training.records) <= 14  # 12 seconds, and the begins of 4 epochs
    epochs = {round(record.t - 1000.3, 1) for record in training.records}
    assert {2.7, 5.7, 8.7, 11.7} <= epochs  # each epoch has one of its end


def test_the_half_life_is_an_epoch_and_without_one_a_quarter_of_the_samples(monkeypatch):
    for data, found in ((160, 160), (None, 16 * 20 / 4)):
        training = Training(monkeypatch, data)
        for _ in range(20):
            training.step(exactly(1, 1))
        assert training.model.noise.half_life == found


def test_another_way_to_measure_begins_again(monkeypatch):
    training = Training(monkeypatch)
    for way, noise in (("ranks", 3), ("micro_batches", 8)):
        for _ in range(5):
            training.step(exactly(noise, 1), way)
    training.model.finish()
    last = training.records[-1]
    assert last.how == "micro_batches"
    assert last.values["noise_scale"] == pytest.approx(8)


def test_a_measurement_stands_for_the_steps_of_its_interval(monkeypatch):
    training = Training(monkeypatch, interval=8)
    for step in range(80):
        if step % 8 == 0:
            training.step(exactly(3, 1))
    assert training.model.noise.done == pytest.approx(80 * 16)


def test_a_lower_bound_is_recorded_without_a_value_and_explained(monkeypatch):
    training = Training(monkeypatch)
    for step in range(40):
        training.step(exactly(1000 + step, -5.0 if step % 2 else 6.0))
    training.model.finish()
    last = training.records[-1]
    assert set(last.values) == {"noise_scale_low", "gradient_variance"}
    assert last.values["noise_scale_low"] > 100
    assert "|G|² was within four standard errors of 0" in last.problem

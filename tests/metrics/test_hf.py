"""The states of transformers' Trainer, of which each has the whole log."""

from __future__ import annotations

import json

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import open_source, values_of


def state_json(rows):
    """Return a state as the library saves it."""
    return json.dumps({"epoch": 1.0, "log_history": rows}, indent=2, sort_keys=True) + "\n"


class TestHf(MetricSourceContract):
    misses_its_file = True

    @pytest.fixture
    def source(self, tmp_path):
        return open_source(tmp_path, source="hf", path="out")

    @pytest.fixture
    def begin_report(self, tmp_path):
        rows = []

        def begin(epoch, **metrics):
            rows.append({"epoch": float(epoch), "step": 10 * epoch, **metrics})
            text = state_json(rows)
            folder = tmp_path / "out" / f"checkpoint-{10 * epoch}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "trainer_state.json"
            path.write_text(text[:100])
            return lambda: path.write_text(text)

        return begin

    @pytest.fixture
    def report(self, begin_report):
        return lambda epoch, **metrics: begin_report(epoch, **metrics)()

    @pytest.fixture
    def spoil(self, begin_report):
        return begin_report(1, accuracy="unknown")

    def test_half_a_report_waits_for_its_other_half(self, source, report, begin_report):
        report(1, accuracy=0.25)
        assert self.read(source) == [(1, {"accuracy": 0.25})]
        complete = begin_report(2, accuracy=0.5)
        assert self.read(source) == []  # the newest state has the rows of those before
        complete()
        assert self.read(source, final=True) == [(2, {"accuracy": 0.5})]


def save(folder, number, rows):
    folder = folder / "out" / f"checkpoint-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(state_json(rows))


def row(epoch, accuracy):
    return {"epoch": epoch, "step": int(100 * epoch), "eval_accuracy": accuracy}


def test_what_transformers_itself_saves_is_read(tmp_path):
    callbacks = pytest.importorskip("transformers.trainer_callback")
    source = open_source(tmp_path, source="hf", path="out", name="eval_accuracy")
    (tmp_path / "out" / "checkpoint-100").mkdir(parents=True)
    state = callbacks.TrainerState(log_history=[{"loss": 2.5, "epoch": 0.5}, row(1.0, 0.1 + 0.2)])
    state.save_to_json(str(tmp_path / "out" / "checkpoint-100" / "trainer_state.json"))
    assert values_of(source) == [(1, 0.1 + 0.2)]


def test_the_newest_checkpoint_counts_and_fractions_of_an_epoch_are_under_way(tmp_path):
    source = open_source(tmp_path, source="hf", path="out/checkpoint-*", name="eval_accuracy")
    save(tmp_path, 50, [row(0.5, 0.25)])
    assert values_of(source) == [(1, 0.25)]
    save(tmp_path, 150, [row(0.5, 0.25), row(1.0, 0.5), row(1.5, 0.75)])
    assert values_of(source) == [(1, 0.5), (2, 0.75)]
    assert list(source.warnings) == []


@pytest.mark.parametrize("continued", [True, False])
def test_a_state_of_before_the_run_is_ignored(tmp_path, continued):
    save(tmp_path, 100, [row(1.0, 0.25)])
    source = open_source(tmp_path, source="hf", path="out", name="eval_accuracy")
    assert values_of(source) == []
    rows = [row(1.0, 0.25 if continued else 0.3), row(2.0, 0.5)]
    save(tmp_path, 200, rows)
    assert values_of(source) == [(2, 0.5)] if continued else [(1, 0.3), (2, 0.5)]


def test_what_is_no_state_is_named_at_the_end(tmp_path):
    source = open_source(tmp_path, source="hf", path="out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "trainer_state.json").write_text('{"log_history": 3}')
    assert source.read() == []
    assert list(source.warnings) == []
    source.read(final=True)
    path = tmp_path / "out" / "trainer_state.json"
    assert list(source.warnings) == [
        f"metrics.source hf: {path} is not a state of a transformers Trainer"
    ]

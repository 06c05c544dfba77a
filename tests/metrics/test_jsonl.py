"""Files with one JSON object a line."""

from __future__ import annotations

import json

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import append, open_source, values_of


class TestJsonl(MetricSourceContract):
    misses_its_file = True

    @pytest.fixture
    def source(self, tmp_path):
        return open_source(tmp_path, source="jsonl", path="log.jsonl")

    @pytest.fixture
    def report(self, tmp_path):
        return lambda epoch, **metrics: append(tmp_path / "log.jsonl", self.line(epoch, metrics))

    @staticmethod
    def line(epoch, metrics):
        return json.dumps({"epoch": epoch, **metrics}) + "\n"

    @pytest.fixture
    def begin_report(self, tmp_path):
        def begin(epoch, **metrics):
            line = self.line(epoch, metrics)
            append(tmp_path / "log.jsonl", line[:7])
            return lambda: append(tmp_path / "log.jsonl", line[7:])

        return begin

    @pytest.fixture
    def spoil(self, tmp_path):
        return lambda: append(tmp_path / "log.jsonl", "[1]\n{\n")


def test_a_line_with_only_counters_sets_the_epoch_of_those_that_follow(tmp_path):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl", name="val", epoch="n")
    append(tmp_path / "log.jsonl", '{"n": 3}\n{"val": NaN, "text": "a"}\n{"n": 4}\n{"val": 0.5}\n')
    assert str(values_of(source)) == "[(3, nan), (4, 0.5)]"


def test_of_rows_without_the_metric_only_the_last_counts(tmp_path):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl")
    rows = [{"epoch": 1, "loss": number} for number in range(1000)]
    append(tmp_path / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (event,) = source.read()
    assert event.metrics == {"loss": 999.0}


def test_keys_within_an_object_have_its_name_before_them(tmp_path):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl", name="val.acc")
    append(tmp_path / "log.jsonl", '{"epoch": 1, "val": {"acc": 0.5, "by": {"a": 1}}}\n')
    assert values_of(source) == [(1, 0.5)]


def test_a_line_with_two_values_of_a_key_is_named_and_not_read(tmp_path):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl")
    append(tmp_path / "log.jsonl", '{"accuracy": 0.5, "accuracy": 0.95}\n{"accuracy": 0.25}\n')
    assert values_of(source) == [(1, 0.25)]
    assert "has the key 'accuracy' twice" in source.warnings[0]


def test_a_file_of_a_continued_run_has_no_half_line_of_before(tmp_path):
    append(tmp_path / "log.jsonl", '{"accuracy": 0.9}\n{"accu')
    source = open_source(tmp_path, source="jsonl", path="log.jsonl")
    append(tmp_path / "log.jsonl", 'racy": 0.9}\n{"accuracy": 0.25}\n')
    assert values_of(source) == [(1, 0.25)]


@pytest.mark.parametrize("between", ["", " ", "\t "])
def test_several_objects_on_a_line_are_several_rows(tmp_path, between):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl")
    rows = [json.dumps({"epoch": n, "accuracy": n / 10}) for n in (1, 2, 3)]
    append(tmp_path / "log.jsonl", f"{rows[0]}\n{rows[1]}{between}{rows[2]}\n")
    assert values_of(source, final=True) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert list(source.warnings) == []


def test_white_space_before_an_object_and_thousands_of_objects_on_a_line_are_read(tmp_path):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl")
    many = "".join(json.dumps({"epoch": n, "accuracy": 0.5}) for n in range(2, 40_000))
    append(tmp_path / "log.jsonl", '\ufeff \t{"epoch": 1, "accuracy": 0.25} \n' + many + "\n")
    assert len(values_of(source, final=True)) == 39_999


def test_a_line_that_ends_within_an_object_is_told(tmp_path):
    source = open_source(tmp_path, source="jsonl", path="log.jsonl")
    append(tmp_path / "log.jsonl", '{"epoch": 1, "accuracy": 0.1}{"epoch"\n')
    append(tmp_path / "log.jsonl", '{"epoch": 2, "accuracy": 0.2}\n')
    assert values_of(source, final=True) == [(2, 0.2)]
    assert "is not JSON" in "".join(source.warnings)

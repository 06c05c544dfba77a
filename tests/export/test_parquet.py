"""Parquet: typed columns, and lists as lists."""

from __future__ import annotations

import dataclasses
import io
from dataclasses import replace

import pytest

from tests.factories import DONE, REACHED, build_trial
from zeusrun.analysis.amounts import SAVED
from zeusrun.errors import HistoryError, UsageError
from zeusrun.export.parquet import parquet_bytes
from zeusrun.trial import CurvePoint, PowerPoint, SizeChange, Trial


@pytest.fixture
def read():
    parquet = pytest.importorskip("pyarrow.parquet")

    def table(*trials):
        records = [{**trial.to_json(), **dict.fromkeys(SAVED)} for trial in trials]
        return parquet.read_table(io.BytesIO(parquet_bytes(records)))

    return table


def test_every_field_has_a_column_of_its_type(read):
    schema = read(build_trial(1)).schema
    assert schema.names == [*(field.name for field in dataclasses.fields(Trial)), *SAVED]
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    assert kinds["trial"] == kinds["status"] == kinds["energy_source"] == "string"
    assert kinds["recurrence"] == kinds["steps"] == "int64"
    assert kinds["cost_j"] == kinds["saved_low_j"] == "double"
    assert kinds["forgotten"] == kinds["shared"] == "bool"
    assert kinds["started_at"] == kinds["finished_at"] == "timestamp[ms, tz=UTC]"
    assert kinds["warnings"] == "list<element: string>"
    assert kinds["curve"].startswith("list<element: struct<epoch: int64, time_s: double")


def test_values_and_lists_come_back(read):
    outcome = replace(
        REACHED,
        power_profile=(PowerPoint(None, 2.0, 90.0),),
        batch_sizes=(SizeChange(1, 32), SizeChange(2, 64)),
        warnings=("one", "two"),
    )
    first, second = read(build_trial(1).finish(outcome), build_trial(2)).to_pylist()
    assert first["curve"] == [point._asdict() for point in outcome.curve]
    assert first["power_profile"] == [{"power_limit_w": None, "steps_per_s": 2.0, "power_w": 90.0}]
    assert [change["batch_size"] for change in first["batch_sizes"]] == [32, 64]
    assert first["warnings"] == ["one", "two"]
    assert first["finished_at"].isoformat() == "2025-06-01T12:00:09+00:00"
    assert (second["cost_j"], second["finished_at"], second["curve"]) == (None, None, [])


def test_names_that_are_not_utf_8_come_with_a_question_mark(read):
    trial = build_trial(1).finish(replace(DONE, reason="bad \udcff", warnings=("\udcff",)))
    (row,) = read(trial).to_pylist()
    assert (row["reason"], row["warnings"]) == ("bad ?", ["?"])


def test_no_runs_are_a_table_without_rows(read):
    assert read().num_rows == 0


def test_damage_is_empty_or_one_sentence(read):
    damaged = replace(build_trial(1), started_at="yesterday")
    assert read(damaged).to_pylist()[0]["started_at"] is None
    huge = build_trial(1).finish(replace(DONE, curve=(CurvePoint(10**30, 1.0, None, 0.5),)))
    with pytest.raises(HistoryError, match=r"'curve' that no column can hold: .*jsonl"):
        read(huge)


def test_without_pyarrow_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="needs pyarrow; install zeusrun with its extra 'parquet'"):
        parquet_bytes([])

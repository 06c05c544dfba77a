"""The content of a history file: whatever the bytes, trials or a clear refusal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.contracts.history import REACHED, build_trial
from zeusrun.errors import HistoryError
from zeusrun.history.rules import encode_trial
from zeusrun.history.tinydb.storage import (
    VERSION,
    DamagedError,
    decode_trials,
    empty_tables,
    encode_tables,
    find_changed,
    read_tables,
)
from zeusrun.trial import PowerPoint

TABLES = {
    **empty_tables(),
    "trials": {
        "1": encode_trial(build_trial(1).finish(REACHED)),
        "2": encode_trial(build_trial(2)),
    },
}
PATH = Path("digits.json")
CONTENT = encode_tables(TABLES)


def read(content):
    return decode_trials(read_tables(PATH, content)["trials"].values(), "digits")


def test_what_was_encoded_is_decoded():
    assert read(CONTENT) == [build_trial(1).finish(REACHED), build_trial(2)]
    assert read(encode_tables(empty_tables())) == []


@given(st.binary(max_size=200))
@example(b"[" * 100_000)
@example(b'{"meta":{"1":{"version":' + b"9" * 5000 + b"}}}")
@example(b'{"meta":{"' + b"9" * 5000 + b'":{"version":1}}}')
def test_any_bytes_are_refused_as_damaged(content):
    with pytest.raises(DamagedError):
        read(content)


pieces = st.sampled_from(
    [b"", b"\x00", b"\xff", b"}", b'"', b"null", b"1e999", b"NaN", b"[]", b"-"]
)


@given(st.integers(0, len(CONTENT)), st.integers(0, 8), pieces | st.binary(max_size=3))
def test_a_history_with_a_wound_reads_as_trials_or_is_refused(start, length, piece):
    try:
        trials = read(CONTENT[:start] + piece + CONTENT[start + length :])
    except (DamagedError, HistoryError):
        return
    for trial in trials:
        encode_trial(trial)  # whatever was accepted can be written again


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(TABLES["trials"]["1"])), json_values)
@example("curve", [[1, 2.0, None, "high"]])
@example("curve", [[1, None, None, 0.5]])
@example("curve", [[True, 2.0, None, 0.5]])
@example("curve", [[10**400, 2.0, None, 0.5]])
@example("cost_j", 10**400)
@example("warnings", [1])
def test_a_field_of_any_value_reads_as_a_trial_or_is_refused(name, value):
    tables = json.loads(CONTENT)
    tables["trials"]["1"][name] = value
    try:
        trials = read(json.dumps(tables).encode())
    except DamagedError:
        return
    for trial in trials:
        encode_trial(trial)


@pytest.mark.parametrize("point", ["x", [1, 2.0, None], [1, None, None, 0.5], [1, 2.0, [], 0.5]])
def test_a_point_that_is_no_measurement_is_refused(point):
    tables = json.loads(CONTENT)
    tables["trials"]["1"]["curve"][1] = point
    with pytest.raises(DamagedError, match="trial number 1"):
        read(encode_tables(tables))


def test_a_record_without_the_fields_that_came_later_is_read():
    tables = json.loads(CONTENT)
    del tables["trials"]["1"]["power_profile"]
    assert read(encode_tables(tables)) == read(CONTENT)


def test_a_power_profile_is_read_as_it_was_written():
    profile = (PowerPoint(None, 12.5, 143.0), PowerPoint(200.0, 10.0, 120.0))
    trial = build_trial(1).finish(replace(REACHED, power_profile=profile))
    assert decode_trials([json.loads(json.dumps(encode_trial(trial)))], "digits") == [trial]


@pytest.mark.parametrize("point", ["x", [200.0, 1.0], [200.0, None, 1.0], [200.0, 1.0, "high"]])
def test_a_point_of_a_power_profile_that_is_no_measurement_is_refused(point):
    tables = json.loads(CONTENT)
    tables["trials"]["1"]["power_profile"] = [point]
    with pytest.raises(DamagedError, match="trial number 1"):
        read(encode_tables(tables))


@pytest.mark.parametrize("version", [VERSION + 1, 7, 10**20])
def test_a_newer_version_is_not_damage(version):
    with pytest.raises(
        HistoryError, match=rf"newer zeusrun \(format {version}; this one knows 1\)"
    ):
        read_tables(PATH, b'{"meta": {"1": {"version": %d}}}' % version)


def test_tables_of_any_keys_and_records_are_written_and_read():
    tables = {
        **empty_tables(),
        "notes": {'a"b\n': {}, "2": {"text": '{"x",\\"crc\\":1} ä \ud800 ,"crc":', "n": 1e-300}},
        "list": [1, {"crc": 2}],
        "none": {},
    }
    tables["trials"] = {"1": {}, "2": {"nested": {"crc": 5}, "crc ": 1 << 70}}
    content = encode_tables(tables)
    assert find_changed(content) == []
    assert read_tables(PATH, content) == tables
    assert encode_tables(read_tables(PATH, content)) == content

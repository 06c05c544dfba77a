"""Trials read by columns are the trials that ``Trial.from_json`` reads one by one."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.contracts.history import REACHED, build_trial, choices, outcomes
from tests.history.test_schema import json_values
from zeusrun.history.columns import read_columns
from zeusrun.trial import PowerPoint, Trial

PROFILED = replace(REACHED, power_profile=(PowerPoint(None, 12.5, 143.0), PowerPoint(200.0, 1, 2)))
RECORDS = [
    build_trial(1).finish(PROFILED).to_json(),
    build_trial(2).to_json(),
    build_trial(3, gpu_model="A", power_limit_w=150, learning_rate=0.1).finish(REACHED).to_json(),
]


def one_by_one(records):
    return [Trial.from_json(record) for record in records]


def exact(trials):
    """A trial as text, in which 1 and 1.0, and a list and a tuple, are two things."""
    return [repr(trial) for trial in trials]


def test_what_we_write_is_read():
    assert exact(read_columns(RECORDS)) == exact(one_by_one(RECORDS))
    assert read_columns([]) == []


@given(st.lists(st.builds(lambda c, o: build_trial(**c).finish(o), choices, outcomes), max_size=4))
def test_any_trials_are_read(trials):
    text = json.dumps([trial.to_json() for trial in trials])
    read = read_columns(json.loads(text))
    if read is None:
        assert "e+30" in text  # numbers whose sum is not finite are read one by one
    else:
        assert exact(read) == exact(trials)


@given(st.sampled_from(sorted(RECORDS[0])), json_values)
@example("curve", [[1, 2.0, None, "high"]])
@example("curve", [[True, 2.0, None, 0.5]])
@example("curve", [[10**400, 2.0, None, 0.5], [-(10**400), 2.0, None, 0.5]])
@example("curve", [[1, float("inf"), None, 0.5], [1, -float("inf"), None, 0.5]])
@example("curve", [[1, float("nan"), None, 0.5]])
@example("curve", [[1, 2.0, None, 0.5, 7]])
@example("curve", ["abcd"])
@example("curve", None)
@example("cost_j", 10**400)
@example("cost_j", True)
@example("shared", 1)
@example("status", None)
@example("status", "DONE")
@example("status", ["REACHED"])
@example("energy_source", None)
@example("warnings", "text")
@example("warnings", [1])
def test_nothing_is_read_that_one_by_one_is_refused_or_read_otherwise(name, value):
    records = [{**RECORDS[0], name: value}, *RECORDS[1:]]
    trials = read_columns(records)
    if trials is not None:
        assert exact(trials) == exact(one_by_one(records))


@pytest.mark.parametrize("name", RECORDS[0])
def test_a_missing_field_is_read_as_its_default_or_not_at_all(name):
    records = [{key: value for key, value in RECORDS[0].items() if key != name}, *RECORDS[1:]]
    default = next(f.default for f in dataclasses.fields(Trial) if f.name == name)
    if default is dataclasses.MISSING:
        assert read_columns(records) is None
    else:
        assert exact(read_columns(records)) == exact(one_by_one(records))


def test_a_field_that_came_later_is_ignored():
    assert read_columns([{**RECORDS[0], "carbon_g": 1.5}]) == one_by_one(RECORDS[:1])


def test_a_trial_read_so_is_frozen_and_checks_nothing_more_when_it_is_made():
    (trial,) = read_columns(RECORDS[:1])
    with pytest.raises(dataclasses.FrozenInstanceError):
        trial.epochs = 4
    assert hash(trial) == hash(Trial.from_json(RECORDS[0]))
    assert not hasattr(Trial, "__post_init__")  # read_columns would have to call it

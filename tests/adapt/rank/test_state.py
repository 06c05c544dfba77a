"""The state with which a restart continues."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict

import pytest

from zeusrun.adapt.rank.state import AdaptationState, read_state, write_state

STATE = AdaptationState([(1, 32), (3, 64), (5, 128)], 70, 4000, (12.5, 15.0), 1.7)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "adapt.json"
    write_state(path, STATE, first=32)
    return path


def test_a_state_is_read_as_it_was_written(path):
    assert read_state(path, 32, None) == STATE
    assert read_state(path, 32, 9) == STATE


@pytest.mark.parametrize(("epoch", "changes"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_changes_after_the_epoch_of_the_checkpoint_do_not_count(path, epoch, changes):
    assert read_state(path, 32, epoch).changes == STATE.changes[:changes]


def test_a_run_that_resumes_at_its_first_epoch_uses_no_state(path):
    assert read_state(path, 32, 1) is None


def test_the_state_of_another_first_batch_size_is_not_used(path):
    assert read_state(path, 64, 5) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        '{"first": 32, "changes": [[1]]}',
        '{"first": 32, "x": 1}',
        '{"first": 32, "changes": [[1, 32]], "first_noise_scale": 12.5}',
    ],
)
def test_a_damaged_state_is_refused(path, text):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"Error|Expecting"):
        read_state(path, 32, None)


@pytest.mark.parametrize(
    "value",
    [
        {"changes": [[1, 0]]},
        {"changes": [[1, -32]]},
        {"changes": [[1, 32.5]]},
        {"changes": [[1, True]]},
        {"changes": [["1", 32]]},
        {"changes": [[1, 10**400]]},
        {"changes": 3},
        {"step": "7"},
        {"step": -1},
        {"samples": None},
        {"least_noise": [math.nan, 2.0]},
        {"least_noise": [1.0, math.inf]},
        {"least_noise": [-1.0, 2.0]},
        {"least_noise": [1.0]},
        {"least_noise": ["1", 2.0]},
        {"least_noise": 3.0},
        {"factor": math.nan},
        {"factor": 0},
        {"fitting": 0},
        {"fitting": "9"},
        {"changes": [[1, None]]},
    ],
    ids=repr,
)
def test_a_state_with_impossible_values_is_refused(path, value):
    path.write_text(json.dumps({"first": 32, **asdict(STATE), **value}))
    with pytest.raises(ValueError, match=r"impossible values|Error"):
        read_state(path, 32, None)


def test_a_pipe_in_place_of_the_state_does_not_block(path):
    path.unlink()
    os.mkfifo(path)
    assert read_state(path, 32, None) is None


@pytest.mark.parametrize(
    ("epoch", "changes"),
    [(None, STATE.changes[:2]), (4, STATE.changes[:2]), (2, STATE.changes[:1])],
)
def test_after_out_of_memory_it_goes_back_to_the_size_before(path, epoch, changes):
    state = read_state(path, 32, epoch, out_of_memory=True)
    assert (state.changes, state.fitting) == (changes, 64)
    write_state(path, state, first=32)
    assert read_state(path, 32, None).fitting == 64
    assert read_state(path, 32, 1) == AdaptationState(fitting=64)


def test_out_of_memory_with_the_first_batch_size_sets_no_limit(tmp_path):
    write_state(tmp_path / "adapt.json", AdaptationState([(1, 32)]), first=32)
    assert read_state(tmp_path / "adapt.json", 32, None, out_of_memory=True).fitting is None


def test_errors_of_the_disk_are_ignored(tmp_path):
    write_state(tmp_path / "missing" / "adapt.json", STATE, first=32)
    assert read_state(tmp_path / "missing" / "adapt.json", 32, None) is None
    write_state(None, STATE, first=32)
    assert read_state(None, 32, None) is None

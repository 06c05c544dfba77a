"""Splitting a batch into micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import load_job
from zeusrun.errors import JobFileError
from zeusrun.jobfile.sections import can_split, split_batch


@pytest.mark.parametrize(
    ("local", "most", "expected"),
    [
        (64, None, (64, 1)),
        (64, 64, (64, 1)),
        (64, 32, (32, 2)),
        (64, 48, (32, 2)),  # micro-batches are equal
        (60, 16, (15, 4)),
        (7, 4, (1, 7)),
        (4, 1, (1, 4)),
    ],
)
def test_micro_batches_are_equal_and_as_few_as_fit(local, most, expected):
    assert split_batch(local, most) == expected


@given(local=st.integers(1, 4096), most=st.integers(1, 4096))
def test_nothing_is_lost_and_fewer_steps_would_not_fit(local, most):
    micro, steps = split_batch(local, most)
    assert micro * steps == local
    assert micro <= most
    assert all(local % fewer or local // fewer > most for fewer in range(1, steps))


def test_a_batch_that_only_splits_into_single_samples_does_not_count_as_split():
    assert not can_split(7, 4)
    assert can_split(7, 7)
    assert can_split(7, 1)
    assert can_split(1, 4)


def test_a_candidate_that_cannot_be_split_is_an_error_with_its_line(tmp_path):
    sizes = {"default": 32, "candidates": [26, 32], "per_device_max": 8}
    with pytest.raises(
        JobFileError, match=r"job.yaml:\d+: .*micro-batches of 2 to 8 .*2 proces.*26"
    ):
        load_job(tmp_path, batch_size=sizes, launch={"nproc_per_node": 2})
    spec = load_job(tmp_path, batch_size={"per_device_max": 8}, launch={"nproc_per_node": "gpu"})
    spec.check_world_size(2)
    odd = load_job(tmp_path, batch_size=sizes, launch={"nproc_per_node": "gpu"})
    with pytest.raises(JobFileError, match="26"):
        odd.check_world_size(2)


@pytest.mark.parametrize("most", [0, -1, 1.5, "8"])
def test_a_limit_that_is_no_number_of_samples_is_an_error(tmp_path, most):
    with pytest.raises(JobFileError, match="per_device_max"):
        load_job(tmp_path, batch_size={"per_device_max": most})


def test_a_data_loader_cannot_split_batches(tmp_path):
    with pytest.raises(JobFileError, match=r"'batch_size.per_device_max' only goes with apply: sc"):
        load_job(tmp_path, batch_size={"per_device_max": 8, "apply": "dataloader"})

"""Steps, shares and micro-batches: no sample is lost or seen twice, on any number of ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import Lazily

loader = Lazily("zeusrun.worker.batches")


@given(st.data(), st.integers(1, 150), st.integers(1, 9))
def test_the_steps_of_an_epoch_have_every_sample_once_whatever_the_batch_sizes(data, extra, ranks):
    total = rest = extra + ranks - 1
    while rest:
        each = data.draw(st.integers(1, 64))
        micro = data.draw(st.one_of(st.none(), st.integers(1, 20)))
        samples = loader.next_chunk(rest, each * ranks, ranks)
        assert ranks <= samples <= rest
        assert samples < (each + 1) * ranks + (ranks if each == 1 else 0)
        cuts = [loader.cut(samples, ranks, rank, micro) for rank in range(ranks)]
        assert sum(map(sum, cuts)) == samples
        assert [sum(sizes) for sizes in cuts] == [
            loader.share(samples, ranks, r) for r in range(ranks)
        ]
        assert len({len(sizes) for sizes in cuts}) == 1  # as many collectives on every rank
        assert all(min(sizes) > 0 for sizes in cuts)
        if micro is not None and micro > 1:
            assert all(max(sizes) <= micro for sizes in cuts)
        rest -= samples
    assert total >= ranks


@pytest.mark.parametrize(
    ("rest", "size", "ranks", "expected"),
    [
        (100, 32, 2, 32),
        (32, 32, 2, 32),
        (33, 32, 2, 16),
        (34, 32, 2, 32),
        (3, 2, 2, 3),
        (5, 32, 2, 5),
    ],
)
def test_a_rest_that_not_every_rank_could_share_joins_the_step_before(rest, size, ranks, expected):
    assert loader.next_chunk(rest, size, ranks) == expected

"""Which size of buckets is chosen, without models."""

from __future__ import annotations

import random

import pytest

from zeusrun.sync.rank import buckets
from zeusrun.sync.rank.buckets import MB, BucketSearch

OWN = 25 * MB


def search(monkeypatch, seconds, most=100 * MB, others=()):
    """Return the size in the end, the sizes in use, and the reason."""
    now_t = 0.0
    monkeypatch.setattr(buckets.time, "perf_counter", lambda: now_t)
    found = BucketSearch(OWN, most, lambda own: [own, *others])
    size, used = OWN, []
    for _ in range(1000):
        size = found.after_pass() or size
        used.append(size)
        if found.why:
            break
        now_t += seconds(size)
    return size, used, found.why


@pytest.mark.parametrize("best", [4 * MB, MB, MB // 4])
def test_the_size_with_the_shortest_steps_is_kept(monkeypatch, best):
    chance = random.Random(0)
    size, used, why = search(
        monkeypatch, lambda size: (0.1 if size == best else 0.15) * chance.uniform(0.8, 1.3)
    )
    assert size == best
    assert len(used) < 150
    assert why.startswith("steps of")


def test_the_model_keeps_its_own_if_nothing_is_clearly_better(monkeypatch):
    assert search(monkeypatch, lambda size: 0.1 if size == OWN else 0.098)[0] == OWN


def test_a_drift_of_the_machine_favours_no_size(monkeypatch):
    passes = 0

    def slower_and_slower(_size):
        nonlocal passes
        passes += 1
        return 0.1 + 0.0002 * passes

    assert search(monkeypatch, slower_and_slower)[0] == OWN


def test_the_mean_of_all_ranks_decides(monkeypatch):
    others = [[0.1, 0.3, 0.01, 0.3]] * 3
    assert search(monkeypatch, lambda _: 0.1, others=others)[0] == MB


def test_a_model_that_fits_in_the_smallest_bucket_is_left_alone(monkeypatch):
    size, used, why = search(monkeypatch, lambda _: 0.1, most=MB // 4)
    assert (size, set(used), why) == (OWN, {OWN}, None)

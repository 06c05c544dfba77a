"""Votes of ranks on the way in which they agree, without ranks."""

from __future__ import annotations

import random

import pytest

from zeusrun.sync.rank import vote
from zeusrun.sync.rank.vote import CHECK, Seconds, Vote


class Ranks:
    """A few ranks in step; ``seconds`` is what an all-reduce takes, by the way and the rank."""

    def __init__(self, monkeypatch, seconds, ranks=4, ways=3, compute_s=0.1):
        self.now_t, self.seconds, self.compute_s = 0.0, seconds, compute_s
        self.steps = 0
        monkeypatch.setattr(vote.time, "perf_counter", lambda: self.now_t)
        self.votes = []
        self.changes = []  # (step, way, why) of rank 0
        self.members = [Vote(ways, lambda _: self.votes) for _ in range(ranks)]

    def run(self, steps):
        for _ in range(steps):
            self.steps += 1
            ways = {member.way for member in self.members}
            assert len(ways) == 1, "the ranks disagree"
            (way,) = ways
            own = [self.seconds(way, rank) for rank in range(len(self.members))]
            self.now_t += self.compute_s + max(own)
            self.votes = []  # what all would say if they voted now
            for member, s in zip(self.members, own, strict=True):
                began_t = member._began_t
                member._seconds.append(s)
                self.votes.append([*member._look()])
                member._seconds.pop()
                member._began_t = began_t
            found = [m.after_pass(s) for m, s in zip(self.members, own, strict=True)]
            assert len(set(found)) == 1, found
            if found[0] is not None and found[0].why:
                self.changes.append((self.steps, *found[0]))


WAYS = (1.0, 0.5, 0.125)  # of the seconds of an all-reduce: bf16 and every 8th step


def test_a_calm_network_changes_nothing(monkeypatch):
    chance = random.Random(0)
    ranks = Ranks(monkeypatch, lambda way, _: 0.05 * WAYS[way] * chance.uniform(0.7, 1.3))
    ranks.run(200 * CHECK)
    assert ranks.changes == []


def test_a_slow_link_is_answered_within_four_checks_and_a_probe_shows_when_it_is_calm(monkeypatch):
    factor = 1.0
    ranks = Ranks(monkeypatch, lambda way, _: 0.05 * factor * WAYS[way])
    ranks.run(10 * CHECK)
    factor = 8.0
    ranks.run(4 * CHECK)
    assert [change[1] for change in ranks.changes] == [1, 2]
    assert ranks.changes[-1][2] == "4 of 4 ranks were slow"
    ranks.run(20 * CHECK)
    assert ranks.members[0].way in {0, 2}  # 0 while it probes
    assert len(ranks.changes) == 2  # no probe has shown calm
    factor = 1.0
    ranks.run(7 * CHECK)
    assert [change[1] for change in ranks.changes] == [1, 2, 0]
    assert ranks.changes[-1][2] == "4 of 4 ranks were calm"


@pytest.mark.parametrize(("slow", "changes"), [(2, 0), (3, 1)])
def test_most_ranks_must_be_slow(monkeypatch, slow, changes):
    factor = 1.0
    ranks = Ranks(monkeypatch, lambda _, rank: 0.05 * factor if rank < slow else 0.6, ways=2)
    ranks.run(5 * CHECK)
    factor = 10.0
    ranks.run(3 * CHECK)
    assert len(ranks.changes) == changes


def test_a_rank_that_computes_slowly_is_no_slow_network(monkeypatch):
    """The others wait for it in their all-reduces; it waits for nobody."""
    waits_s = 0.0
    ranks = Ranks(monkeypatch, lambda _, rank: 0.05 + (waits_s if rank else 0.0))
    ranks.run(5 * CHECK)
    waits_s = 1.0
    ranks.run(20 * CHECK)
    assert ranks.changes == []


def test_one_slow_check_is_not_enough(monkeypatch):
    factor = 1.0
    ranks = Ranks(monkeypatch, lambda *_: 0.05 * factor)
    for _ in range(10):
        factor = 1.0
        ranks.run(4 * CHECK)
        factor = 8.0
        ranks.run(CHECK)
    assert ranks.changes == []


def test_what_is_longer_but_matters_little_is_not_slow(monkeypatch):
    factor = 1.0
    ranks = Ranks(monkeypatch, lambda *_: 0.001 * factor, compute_s=1.0)
    ranks.run(5 * CHECK)
    factor = 20.0
    ranks.run(5 * CHECK)
    assert ranks.changes == []


def test_a_network_that_drifts_slowly_becomes_the_reference(monkeypatch):
    ranks = Ranks(monkeypatch, lambda *_: 0.05 * (1 + ranks.steps / (200 * CHECK)))
    ranks.run(200 * CHECK)
    assert ranks.changes == []


def test_a_step_is_timed_from_its_first_begin_to_its_last_end(monkeypatch):
    times = iter([1.0, 2.0, 3.0, 7.0])
    monkeypatch.setattr(vote.time, "perf_counter", lambda: next(times))
    seconds = Seconds()
    seconds.begin()
    seconds.begin()  # keeps the first
    seconds.end()
    seconds.end()
    assert seconds.take() == 2.0
    assert seconds.take() is None

"""Which rank of an elastic training hangs, by what the ranks write of themselves."""

from __future__ import annotations

import pytest

from zeusrun.elastic.hang import HangWatch
from zeusrun.elastic.rank.board import BY_EPOCHS, BY_STEPS, ENDED, FIXED, Place

HANG_S, TICK_S = 60.0, 0.5


def member(**changes):
    place = Place()
    given = {"mode": BY_STEPS, "joins": 1, "generation": 1, "collectives": 9, **changes}
    for name, value in given.items():
        setattr(place, name, value)
    return place


def follow(*members, seconds=200.0, each=lambda _members, _t: None):
    """Let members live on, and ``each`` change them at every tick; return which ones hang."""
    watch, hung = HangWatch(HANG_S), set()
    for tick in range(int(seconds / TICK_S)):
        for place in {id(place): place for place in members}.values():
            place.beats += 1
        each(members, tick * TICK_S)
        hung |= {*watch.find(dict(enumerate(members)), 1000.0 + tick * TICK_S)}
    return hung


@pytest.mark.parametrize("mode", [BY_STEPS, BY_EPOCHS])
@pytest.mark.parametrize("is_in_step", [0, 1])
def test_a_rank_that_has_begun_fewer_collectives_hangs_wherever_it_is(mode, is_in_step):
    behind = member(collectives=8, is_in_step=is_in_step, mode=mode)
    assert follow(member(mode=mode), behind, member(mode=mode)) == {1}
    assert follow(member(), behind, seconds=HANG_S) == set()


def compute(members, _t):
    members[1].cpu_ms += 2


def step(members, _t):
    for place in members:
        place.steps += 1
        place.collectives += 1


def compute_ahead(members, _t):
    members[0].cpu_ms += 2


def nothing(_members, _t):
    pass


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, compute),  # it evaluates, or saves
        ({}, step),
        ({}, compute_ahead),  # the other one does not wait
        ({"collectives": 9}, nothing),
        ({"collectives": 0}, nothing),  # it has closed its group, and waits for a file
        ({"mode": 0}, nothing),  # before the first pass
        ({"mode": FIXED}, nothing),
    ],
)
def test_a_rank_that_does_something_or_for_which_nobody_waits_does_not_hang(changes, each):
    assert follow(member(), member(**{"collectives": 8, **changes}), each=each) == set()


def test_within_a_step_a_rank_that_only_computes_hangs():
    assert follow(member(), member(collectives=8, is_in_step=1), each=compute) == {1}


def test_a_rank_that_does_not_join_the_others_hangs():
    assert follow(member(joins=2), member(), member(joins=2)) == {1}


def stop(members, _t):
    members[0].beats -= 1


def stop_beside_one_that_computes(members, t):
    stop(members, t)
    compute(members, t)


def test_a_rank_that_is_stopped_in_the_collective_of_all_hangs_if_all_others_wait():
    assert follow(member(), member(), each=stop) == {0}
    assert follow(member(), member(), each=stop_beside_one_that_computes) == set()
    assert follow(member(), each=stop) == set()  # it is alone


def test_the_time_counts_from_when_the_others_began_to_wait():
    def begin_to_wait(members, t):
        members[0].collectives = 9 + (t > 100)

    slow = member(is_in_step=1)
    assert follow(member(), slow, seconds=155, each=begin_to_wait) == set()
    assert follow(member(), slow, seconds=165, each=begin_to_wait) == {1}


def test_a_process_is_alive_from_its_start_until_its_agent_has_seen_its_end():
    """Its pid says nothing: another process, or a thread, may get the number."""
    place = Place()
    assert not place.is_alive
    place.pid = 1
    assert place.is_alive
    place.ended = ENDED
    assert not place.is_alive


def test_ranks_that_were_stopped_with_their_agent_do_not_hang():
    watch, members = HangWatch(HANG_S), dict(enumerate([member(), member(collectives=8)]))
    assert not any(watch.find(members, 1000.0 + t) for t in range(9))
    assert watch.find(members, 5000.0) == []  # the agent may go on before the ranks do
    assert [t for t in range(60) if watch.find(members, 5001.0 + t)]  # then they must

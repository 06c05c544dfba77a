"""What the launcher knows of the ranks of an elastic training, and what the trial keeps of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import REACHED, build_trial
from tests.launcher.values import after, ended, report, started
from zeusrun.metrics.base import decode_event
from zeusrun.metrics.progress import take_step_clock
from zeusrun.metrics.seen import Ranks, find_batch_size
from zeusrun.metrics.spans import count_spans
from zeusrun.sidecar.events import Observed, Regrouped, encode_event
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import Outcome, Trial, TrialStatus, join_parts
from zeusrun.trial.resizes import join_worlds
from zeusrun.trial.values import WorldChange

CHANGES = (WorldChange(0.0, 0, 2), WorldChange(5.0, 1, 4), WorldChange(9.5, 3, 1))

changes = st.lists(
    st.builds(
        WorldChange,
        st.floats(0, 1e6),
        st.integers(0, 1000),
        st.integers(1, 255),
        st.none() | st.floats(0, 1e6),
        st.none() | st.floats(0, 1e6),
        st.none() | st.integers(0, 2**40),
    ),
    max_size=5,
).map(tuple)


def regrouped(t, *members, number=1, step=0, why="a user wants it"):
    return Regrouped(t, number, members, why)


def observed(rank, samples, replicas=None, **values):
    return Observed(120.0, rank, samples, 1, replicas, **values)


@given(
    st.builds(
        Regrouped,
        st.floats(0, 1e12),
        st.integers(0, 2**40),
        st.lists(st.integers(0, 4095), min_size=1, max_size=40).map(tuple),
        st.text(max_size=100),
        st.none() | st.floats(0, 1e12),
        st.none() | st.floats(0, 1e6),
        st.integers(0, 255),
        st.integers(0, 2**40),
    )
)
def test_the_event_survives_the_wire(event):
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("members", ["[]", "3", '["a"]', "[-1]", "[1.5]", "null"])
def test_members_that_cannot_be_are_no_event(members):
    line = encode_event(regrouped(1.0, 7)).replace(b"[7]", members.encode())
    assert members.encode() in line
    with pytest.raises(ValueError, match="members"):
        decode_event(line)


def test_the_ranks_are_those_that_train_now():
    ranks = Ranks(2).take(regrouped(101.0, 0, 1)).take(regrouped(105.0, 0, 2, 5), 3)
    assert (ranks.world_size, list(ranks), ranks.members) == (3, [0, 2, 5], (0, 2, 5))
    assert [each[:3] for each in ranks.changes] == [(101.0, 0, 2), (105.0, 3, 3)]
    assert ranks.trained_by == 3


def test_without_a_change_the_ranks_are_those_of_the_start():
    assert list(Ranks(3)) == [0, 1, 2]


def test_a_rank_that_has_left_does_not_end_the_run():
    ranks = Ranks(3).take(regrouped(101.0, 0, 1, 2)).take(regrouped(105.0, 0, 1))
    ranks = ranks.take(ended(106.0, 2))
    assert (ranks.exit_codes, ranks.scripts_ended) == ({}, False)
    for rank in (0, 1):
        ranks = ranks.take(ended(107.0, rank))
    assert ranks.scripts_ended
    assert ranks.exit_codes == {0: 0, 1: 0}


@pytest.mark.parametrize("code", [0, 1])
def test_nor_one_that_has_ended_before_the_others_were_regrouped(code):
    ranks = Ranks(3).take(regrouped(101.0, 0, 1, 2)).take(ended(105.0, 1, code))
    assert ranks.exit_codes == {1: code}
    ranks = ranks.take(regrouped(105.1, 0, 2))
    assert (ranks.exit_codes, ranks.world_size) == ({}, 2)


def test_rank_0_may_be_lost_and_the_training_ends_with_the_others():
    ranks = Ranks(2).take(regrouped(101.0, 0, 1)).take(regrouped(103.0, 1, 2))
    for rank in (1, 2):
        ranks = ranks.take(ended(107.0, rank))
    assert ranks.scripts_ended


def test_a_newcomer_is_no_restart():
    ranks = Ranks(1).take(started(100.0)).take(regrouped(101.0, 0))
    ranks = ranks.take(started(102.0, rank=1)).take(regrouped(103.0, 0, 1))
    assert (ranks.restarts, ranks.generation, ranks.started) == ((), 0, frozenset({0, 1}))


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, unique=True).map(tuple), min_size=1))
def test_any_generations_leave_exactly_their_members(generations):
    ranks = Ranks(3)
    for t, members in enumerate(generations):
        ranks = ranks.take(regrouped(float(t), *members))
        for rank in members:
            ranks = ranks.take(ended(t + 0.5, rank))
        assert ranks.scripts_ended
        assert set(ranks.exit_codes) == set(ranks) == set(members)
    assert [each.world_size for each in ranks.changes] == [len(each) for each in generations]


def test_the_batch_size_is_that_of_the_ranks_that_train_now():
    progress = after(regrouped(101.0, 0, 1), observed(0, 16, 2), observed(1, 16, 2))
    assert find_batch_size(progress.observed, progress.ranks) == 32
    progress = after(regrouped(121.0, 1, 5, 6), start=progress)
    assert find_batch_size(progress.observed, progress.ranks) is None  # until all say it again
    assert set(progress.observed) == {1}
    progress = after(observed(1, 11, 3), observed(5, 11, 3), start=progress)
    assert find_batch_size(progress.observed, progress.ranks) is None
    progress = after(observed(6, 10, 3), start=progress)
    assert find_batch_size(progress.observed, progress.ranks) == 32


def test_what_a_rank_says_that_has_left_counts_no_more():
    progress = after(regrouped(101.0, 0, 1), observed(0, 16, 2), observed(1, 16, 2))
    progress = after(regrouped(121.0, 0), observed(1, 16, 2), observed(0, 32, 1), start=progress)
    assert find_batch_size(progress.observed, progress.ranks) == 32


def test_the_size_of_the_data_stays_known_after_rank_0_is_lost():
    progress = after(regrouped(101.0, 0, 1), observed(0, 16, 2, data=640), observed(1, 16, 2))
    progress = after(regrouped(121.0, 1), observed(1, 32, 1, data=640), start=progress)
    progress = replace(progress, samples=320)
    assert count_spans(progress)["progress"] == 0.5


def trained(*events):
    """Return the progress of a training whose first step begins at 103 s."""
    progress = after(started(100.0), regrouped(101.0, 0, 1))
    progress = take_step_clock(progress, StepCount(1, 103.0, 104.0))
    return after(*events, start=progress)


def test_the_numbers_of_ranks_count_from_the_begin_of_the_training():
    begun_t = trained().training_t
    progress = trained(
        report(110.0, 1, 0.1), regrouped(begun_t + 9.0, 0, 1, 2), regrouped(begun_t + 12.0, 0)
    )
    assert [each[:3] for each in progress.world_sizes] == [(0.0, 0, 2), (9.0, 1, 3), (12.0, 1, 1)]


def test_a_change_has_the_seconds_since_its_order_the_pause_and_the_step():
    begun_t = trained().training_t
    now_t = begun_t + 9.0
    event = Regrouped(now_t, 2, (0, 1, 2), "a user wants 3", now_t - 2.9, 0.065, 2, 840)
    (_, change) = trained(event).world_sizes
    assert change[:3] == (9.0, 0, 3)
    assert (change.took_s, change.paused_s, change.step) == (pytest.approx(2.9), 0.065, 840)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e300"])
@pytest.mark.parametrize("name", ["since_t", "paused_s"])
def test_times_that_no_record_can_hold_are_no_event(name, value):
    line = encode_event(Regrouped(1.0, 2, (0,), "", 0.5, 0.5)).decode()
    with pytest.raises(ValueError, match=name):
        decode_event(line.replace(f'"{name}": 0.5', f'"{name}": {value}').encode())


@pytest.mark.parametrize(("since_t", "paused_s"), [(1e9, -5.0), (-1e9, -0.0)])
def test_whatever_times_a_script_writes_the_record_can_be_read(since_t, paused_s):
    event = Regrouped(107.0, 2, (0,), "", since_t, paused_s, 2, 5)
    outcome = replace(REACHED, world_sizes=trained(event).world_sizes)
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_a_training_that_has_not_changed_or_not_begun_has_none():
    assert trained().world_sizes == ()
    assert after(regrouped(101.0, 0), regrouped(102.0, 0, 1)).world_sizes == ()


@given(changes, changes, st.floats(0, 1e6), st.integers(0, 100))
def test_joined_parts_have_each_change_once(before, since, time_s, epochs):
    joined = join_worlds(before, since, time_s, epochs)
    sizes = [each.world_size for each in before + since]
    if len(set(sizes)) > 1 and joined:
        assert all(
            a.world_size != b.world_size for a, b in itertools.pairwise(joined[len(before) :])
        )
        assert joined[-1].world_size == sizes[-1]
    for each in joined[len(before) :]:
        assert each.time_s >= time_s


@given(changes)
def test_a_trial_and_an_outcome_keep_them(found):
    outcome = replace(REACHED, world_sizes=found)
    assert Outcome.from_json(outcome.to_json()) == outcome
    trial = build_trial().finish(outcome)
    assert Trial.from_json(trial.to_json()) == trial
    assert trial.outcome.world_sizes == trial.world_sizes == found


@pytest.mark.parametrize("row", [[1.0, "1", 2], [1.0, 1], [float("nan"), 1, 2], [1.0, 1.5, 2]])
@pytest.mark.parametrize("more", [[], [None] * 3, [-1.0, None, None], [None, float("inf"), None]])
def test_what_is_no_change_is_not_read(row, more):
    with pytest.raises(ValueError, match=r"no measurement|argument"):
        Trial.from_json({**build_trial().to_json(), "world_sizes": [[*row, *more]]})


def test_a_trial_of_an_earlier_version_has_none():
    record = build_trial().to_json()
    del record["world_sizes"]
    assert Trial.from_json(record).world_sizes == ()


def test_an_outcome_joins_those_of_its_parts():
    first = replace(REACHED, status=TrialStatus.PREEMPTED, time_s=10.0, world_sizes=CHANGES[:2])
    trial = replace(build_trial().finish(first), preemptions=1)
    joined = join_parts(trial, replace(REACHED, world_sizes=(WorldChange(0.0, 0, 2), CHANGES[1])))
    again = WorldChange(10.0, trial.epochs, 2, step=trial.whole_steps)
    assert joined.world_sizes == (*CHANGES[:2], again, WorldChange(15.0, 1, 4))

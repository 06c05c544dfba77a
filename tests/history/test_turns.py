"""The turns of a job as they are stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.history.turns import TURN_S, Turn, Turns

NOW = 1_700_000_000.0


def later(turns: Turns, seconds: float) -> Turns:
    """Return the same turns, read again after so long."""
    return Turns(turns.text, NOW + seconds)


def test_a_turn_lasts_until_it_was_not_asked_for_in_time():
    turns = Turns(None, NOW)
    first, second = turns.ask(0).number, turns.ask(0).number
    turns = later(turns, TURN_S - 0.1)
    assert turns.ask(second) == (second, 1, 2)
    turns = later(turns, TURN_S)
    assert turns.ask(second) == (second, 0, 1)
    assert turns.use(first)  # nobody has come before it
    assert turns.use(second)


def test_a_fresh_turn_is_found_without_a_write():
    turns = Turns(None, NOW)
    number = turns.ask(0).number
    assert later(turns, 1.0).find(number) == Turn(number, 0, 1)
    assert later(turns, TURN_S - 1.0).find(number) is None
    assert later(turns, 1.0).find(number + 1) is None
    assert later(turns, 1.0).find(0) is None


def test_a_number_is_never_given_twice():
    turns = Turns(None, NOW)
    numbers = []
    for hour in range(5):
        turns = later(turns, 3600.0 * hour)
        numbers.append(turns.ask(0).number)
        turns.use(numbers[-1])
    assert len(set(numbers)) == 5


def test_turns_from_before_the_clock_was_set_back_block_nobody():
    turns = Turns(None, NOW)
    turns.ask(0)
    assert later(turns, -3600.0).ask(0).ahead == 0


def test_those_at_the_end_of_a_long_queue_need_no_write_for_long():
    turns = Turns(None, NOW)
    numbers = [turns.ask(0).number for _ in range(50)]
    assert later(turns, 30.0).find(numbers[-1]) is None  # the first ones have expired
    turns = later(turns, TURN_S - 1.0)
    for number in numbers[:10]:
        turns.ask(number)
    assert later(turns, TURN_S).find(numbers[-1]) == (numbers[-1], 49, 50)


def test_a_dead_process_holds_up_the_others_for_five_seconds_wherever_it_waited():
    turns = Turns(None, NOW)
    numbers = [turns.ask(0).number for _ in range(50)]
    for number in numbers[:40]:  # number 40 is dead
        assert turns.use(number)
    turns = later(turns, TURN_S + 0.1)
    assert turns.ask(numbers[-1]).ahead == 50 - 40 - 1 - 4  # nobody else at the front has asked


def test_who_has_others_ahead_may_not_choose():
    turns = Turns(None, NOW)
    first, second = turns.ask(0).number, turns.ask(0).number
    assert not turns.use(second)
    assert turns.use(first)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", '{"last": "x"}', '{"ends": {"a": 1}}', '{"ends": [1]}', b"\xff",
     '{"last": -5}', '{"last": 1e400}', '{"ends": {"' + "9" * 40 + '": 1}}', "[" * 100_000],
)  # fmt: skip
def test_what_cannot_be_read_contains_no_turns(text):
    assert Turns(text, NOW).ask(0) == (1, 0, 1)


@given(st.lists(st.tuples(st.sampled_from(["ask", "new", "use"]), st.integers(0, 20))))
def test_one_turn_at_a_time_is_the_first(calls):
    turns = Turns(None, NOW)
    for at, (what, number) in enumerate(calls):
        turns = later(turns, 0.5 * at)
        if what == "use":
            turns.use(number)
        else:
            turn = turns.ask(number if what == "ask" else 0)
            assert 0 <= turn.ahead < turn.waiting
    present = [n for n in range(100) if turns.find(n) is not None]
    assert sum(turns.find(n).ahead == 0 for n in present) <= 1

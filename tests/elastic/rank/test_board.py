"""The board of an elastic training: what one process writes is what another one reads."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.elastic.rank import board as board_module
from zeusrun.elastic.rank.board import MAX_SLOTS, ORDERED_BY, Board, Generation

FIELDS = [name for name, _ in board_module.Place._fields_]
slots = st.integers(0, MAX_SLOTS - 1)
numbers = st.integers(0, 2**64 - 1)


@pytest.fixture
def board(tmp_path):
    with contextlib.closing(Board(tmp_path, create=True)) as board:
        yield board


@pytest.fixture(scope="module")
def any_board(tmp_path_factory):
    """A board that the examples of a property test share."""
    with contextlib.closing(Board(tmp_path_factory.mktemp("run"), create=True)) as board:
        yield board


def run_python(folder, text):
    """Run a program in which ``board`` is the same board."""
    head = "import sys\nfrom pathlib import Path\nfrom zeusrun.elastic.rank.board import *\n"
    program = f"{head}board = Board(Path({str(folder)!r}))\n{textwrap.dedent(text)}"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_a_new_board_has_no_generation_no_order_and_no_process(board):
    assert (board.newest, board.switch, board.wanted[:2]) == (0, (0, 0), (0, 0))
    assert {getattr(board.place(5), name) for name in FIELDS} == {0}


def test_only_the_owner_may_read_it(board):
    for path, mode in ((board.folder, 0o700), (board.folder / "board", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_only_the_agent_creates_it(tmp_path):
    with pytest.raises(FileNotFoundError):
        Board(tmp_path)


def test_a_board_that_is_created_again_keeps_what_it_has(board, tmp_path):
    board.publish(Generation(3, (0, 2)))
    board.order(2, "a user")
    again = Board(tmp_path, create=True)
    assert (again.newest, again.wanted) == (3, (1, 2, "a user"))


@given(
    st.builds(
        Generation,
        st.integers(1, 2**40),
        st.lists(slots, unique=True, max_size=255).map(tuple),
        st.text(max_size=50),
    )
)
def test_a_generation_is_read_as_it_was_published(any_board, generation):
    any_board.publish(generation)
    assert any_board.newest == generation.number
    assert any_board.read_generation(generation.number) == generation


def test_a_generation_of_the_most_ranks_and_processes_can_be_read(board):
    most = Generation(2**40, tuple(range(MAX_SLOTS - 255, MAX_SLOTS)), "é" * 100)
    board.publish(most)
    assert board.read_generation(2**40) == most


def test_the_members_are_written_before_the_number(board, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    board.publish(Generation(1, (0, 1)))
    monkeypatch.setattr(board_module, "replace_file", fail)
    with pytest.raises(OSError, match="No space"):
        board.publish(Generation(2, (0,)))
    assert board.newest == 1
    assert board.read_generation(board.newest).members == (0, 1)


def test_earlier_generations_can_still_be_read(board):
    board.publish(Generation(1, (0, 1), "the training starts"))
    board.publish(Generation(2, (0,), "a user wants 1"))
    assert board.read_generation(1) == Generation(1, (0, 1), "the training starts")


@given(slots, st.fixed_dictionaries(dict.fromkeys(FIELDS, numbers)), slots)
def test_a_place_holds_its_numbers_and_changes_no_other(any_board, slot, values, other):
    places = any_board.place(slot), any_board.place(other)
    for place in places:
        place.clear()
    for name, value in values.items():
        setattr(places[0], name, value)
    assert {name: getattr(any_board.place(slot), name) for name in FIELDS} == values
    if other != slot:
        assert {getattr(places[1], name) for name in FIELDS} == {0}
    places[0].clear()
    assert {getattr(places[0], name) for name in FIELDS} == {0}


def test_the_last_place_is_apart_from_the_generations_and_orders(board):
    board.publish(Generation(7, (0,)))
    board.announce(7, 30)
    board.order(3, "the schedule")
    for slot in (0, MAX_SLOTS - 1):
        for name in FIELDS:
            setattr(board.place(slot), name, 2**64 - 1)
    assert (board.newest, board.switch) == (7, (7, 30))
    assert board.wanted == (1, 3, "the schedule")


def test_there_is_no_place_after_the_last(board):
    with pytest.raises(ValueError, match="too small"):
        board.place(MAX_SLOTS).steps = 1


@pytest.mark.parametrize("by", ORDERED_BY)
def test_an_order_says_who_has_given_it(board, by):
    board.order(0, by)
    assert board.wanted == (1, 0, by)


def test_the_same_order_again_is_another_order(board):
    board.order(2, "a user")
    board.order(2, "provisioning")
    assert board.wanted == (2, 2, "provisioning")


def test_orders_at_the_same_time_are_all_counted(board, tmp_path):
    text = "for _ in range(2000): board.order(1, 'a user')"
    children = [run_python(tmp_path, text) for _ in range(2)]
    own = [
        threading.Thread(target=lambda: [board.order(1, "the endpoint") for _ in range(2000)])
        for _ in range(2)
    ]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()
    for child in children:
        child.communicate()
    assert board.wanted[0] == 8000


def test_a_reader_never_sees_a_generation_without_its_members(board, tmp_path):
    reader = run_python(
        tmp_path,
        """
        print("ready", flush=True)
        seen, last = 0, 0
        while last < 500:
            number = board.newest
            assert number >= last, "the number has decreased"
            if number and number != last:
                generation = board.read_generation(number)
                assert generation.number == number
                assert generation.members == tuple(range(number % 255 + 1))
                seen += 1
            last = number
        print(seen)
        """,
    )
    assert reader.stdout.readline() == "ready\n"
    for number in range(1, 501):
        board.publish(Generation(number, tuple(range(number % 255 + 1))))
    seen, _ = reader.communicate()
    assert reader.returncode == 0
    assert int(seen) > 0


def test_two_processes_see_each_others_places(board, tmp_path):
    child = run_python(
        tmp_path,
        """
        import os, time
        place = board.place(1)
        place.pid, place.steps = os.getpid(), 3
        while board.switch != (2, 9): time.sleep(0.001)
        place.is_ready = 1
        """,
    )
    place = board.place(1)
    while not place.steps:
        assert child.poll() is None
        os.sched_yield()
    assert (place.pid, place.is_ready) == (child.pid, 0)
    board.announce(2, 9)
    assert child.wait() == 0
    assert place.is_ready == 1

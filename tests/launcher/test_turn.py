"""The turn of a submit to choose: in order, shown, renewed, given back."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tests.factories import build_trial
from tests.history.memory import MemoryHistory
from zeusrun.errors import BusyError
from zeusrun.history import turns
from zeusrun.history.base import Conflict, UnavailableError
from zeusrun.history.turns import Turn
from zeusrun.launcher import begin as module
from zeusrun.launcher.begin import HeldTurn


class Watched(MemoryHistory):
    """A history that notes what it is asked, and does something first."""

    def __init__(self, first=lambda _count: None):
        super().__init__()
        self.first, self.asked, self.left = first, [], []
        self.twice = threading.Event()  # it was asked to renew a turn that nobody is ahead of

    def ask_turn(self, job, number=0):
        self.asked.append(number)
        self.first(len(self.asked))
        turn = super().ask_turn(job, number)
        if number and not turn.ahead:
            self.twice.set()
        return turn

    def leave_turn(self, job, number):
        self.left.append(number)
        super().leave_turn(job, number)


def held(history, shown=None, check=lambda: None):
    return HeldTurn(history, "job", (shown if shown is not None else []).append, check)


def test_who_begins_gives_the_turn_to_the_next_one():
    history = Watched()
    with held(history) as turn:
        turn.wait()
        turn.begin(build_trial(1), history.snapshot("job").version)
        assert history.ask_turn("job").ahead == 0
    assert history.left == []


def test_who_begins_nothing_gives_the_turn_to_the_next_one():
    history = Watched()
    with held(history) as turn:
        for leave in (turn.leave, list):
            turn.wait()
            leave()
    assert (history.asked, history.left) == ([0, 0], [1, 2])
    assert history.ask_turn("job") == (3, 0, 1)


def test_a_dead_process_holds_up_the_others_until_its_turn_expires(monkeypatch):
    history = Watched()
    with monkeypatch.context() as patch:
        patch.setattr(turns, "TURN_S", 0.3)
        history.ask_turn("job")
        with held(history) as turn:
            turn.wait()
    assert len(history.asked) > 2


def test_the_place_of_a_submit_that_waits_is_shown(monkeypatch):
    monkeypatch.setattr(module, "_SHOWN_AFTER_S", 0.0)
    shown, history = [], Watched()
    for _ in range(2):
        MemoryHistory.ask_turn(history, "job")
    history.first = lambda count: count > 1 and history.leave_turn("job", count - 1)
    with held(history, shown) as turn:
        turn.wait()
    assert shown == ["waits for its turn to choose a batch size: 3 of 3"]


@pytest.mark.parametrize(
    ("ahead", "answer_s", "pause_s", "shown"),
    [(1, 0.0, 0.02, 0), (3, 0.0, 0.06, 0), (3, 0.25, 1.5, 1), (3, 9.0, turns.TURN_S / 2, 2)],
)
def test_who_waits_asks_less_often_the_more_are_ahead_and_the_slower_the_answers(
    monkeypatch, ahead, answer_s, pause_s, shown
):
    history, said, pauses, now_s = Watched(), [], [], [0.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=pauses.append)
    monkeypatch.setattr(module, "time", clock)
    for _ in range(ahead):
        MemoryHistory.ask_turn(history, "job")

    def answer(count):
        now_s[0] += answer_s
        for number in range(1, ahead + 1) if count == 5 else ():
            history.leave_turn("job", number)

    history.first = answer
    with held(history, said) as turn:
        turn.wait()
    assert pauses == pytest.approx([0.02 * ahead, *[pause_s] * 3])
    assert len(said) == shown  # after 1 s, then every 10 s


def test_what_has_begun_or_was_given_back_is_not_renewed():
    for number, over in ((1, True), (0, False)):
        turn, waits = held(Watched()), iter([False, True])
        turn._turn = Turn(number)
        turn._over = SimpleNamespace(wait=lambda _s, w=waits: next(w), is_set=lambda o=over: o)
        turn._renew()
        assert turn._history.asked == []
    assert module._RENEW_S * 5 == turns.TURN_S  # some may fail


def test_a_signal_ends_the_wait_and_gives_the_turn_back():
    history = Watched()
    history.ask_turn("job")

    def check():
        raise BusyError("ended by SIGTERM before it began")

    with pytest.raises(BusyError), held(history, check=check) as turn:
        turn.wait()
    assert history.left == [2]


def test_the_turn_is_renewed_while_a_trial_is_chosen(monkeypatch):
    monkeypatch.setattr(module, "_RENEW_S", 0.01)
    history = Watched()
    with held(history) as turn:
        turn.wait()
        assert history.twice.wait(300)  # the policy takes long
        assert (turn._renewing.name, turn._renewing.daemon) == ("zeusrun-turn", True)
        turn.begin(build_trial(1), history.snapshot("job").version)
    assert set(history.asked) == {0, 1}
    assert "zeusrun-turn" not in [thread.name for thread in threading.enumerate()]


def test_who_was_overtaken_begins_nothing_and_waits_for_another_turn(monkeypatch):
    monkeypatch.setattr(module, "_RENEW_S", 30.0)  # as if the process had been stopped
    history = Watched()
    with held(history) as turn:
        turn.wait()
        history.leave_turn("job", 1)  # its time is over
        version = history.snapshot("job").version
        history.begin(build_trial(1), after=version)
        with pytest.raises(Conflict, match="has changed"):
            turn.begin(build_trial(2), version)
        turn.wait()
        turn.begin(build_trial(2), history.snapshot("job").version)
    assert history.asked == [0, 1]


def test_after_an_outage_a_submit_takes_another_turn():
    history = Watched()
    MemoryHistory.ask_turn(history, "job")

    def fail(count):
        if count == 2:
            for expired in (1, 2):
                history.leave_turn("job", expired)
            raise UnavailableError("the server does not respond")

    history.first = fail
    with held(history) as turn:
        turn.wait()
    assert history.asked == [0, 2, 0]
    assert history.left[-1] == 3


@pytest.mark.parametrize("since", [1, 2])
def test_an_outage_that_lasts_is_raised(since):
    def fail(count):
        if count >= since:
            raise UnavailableError("the server does not respond")

    history = Watched(fail)
    MemoryHistory.ask_turn(history, "job")
    with pytest.raises(UnavailableError), held(history) as turn:
        turn.wait()
    assert (history.asked, history.left) == ([0, 2, 0][: 2 * since - 1], [])


def test_without_a_queue_nobody_waits():
    class Offline(MemoryHistory):
        def ask_turn(self, job, number=0):
            del job, number
            return Turn(0)

    history = Offline()
    with held(history) as turn:
        turn.wait()
        turn.begin(build_trial(1), history.snapshot("job").version)
    assert history.trials("job") == [build_trial(1)]

"""The turn of a submit to choose: waits for it in order, and holds it until a trial has begun."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.history.base import UnavailableError
from zeusrun.history.turns import TURN_S, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from zeusrun.history.base import History
    from zeusrun.trial import Trial

# The pause between two requests, for each submit that is ahead: _A_PLACE_S, or _ANSWERS times what
# the last answer took if that is longer. On a busy server, requests would else delay the choices.
_A_PLACE_S, _ANSWERS = 0.02, 2.0
_LONGEST_S = TURN_S / 2
_RENEW_S = TURN_S / 5  # while a trial is chosen
_SHOWN_AFTER_S = 1.0
_SHOWN_EVERY_S = 10.0


class HeldTurn:
    """A turn of a job. A context manager: at its end, others may choose.

    While a trial is chosen, a thread renews the turn.
    """

    def __init__(
        self,
        history: History,
        job: str,
        show: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """Prepare; nothing is asked for yet.

        Args:
            history: Stores the turns.
            job: The job.
            show: Shows the user the place in the queue.
            check: Called before each pause; it may raise to give up.
        """
        self._history, self._job, self._show, self._check = history, job, show, check
        self._turn = Turn(0)
        self._lock = threading.Lock()  # one thread at a time asks for the turn or uses it
        self._over = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        began = self._over.is_set()
        self._over.set()
        if self._renewing is not None:
            self._renewing.join()
        if not began:
            self.leave()

    def leave(self) -> None:
        """Let the others choose; the next ``wait`` is for another turn."""
        with self._lock:
            left, self._turn = self._turn, Turn(0)
            self._leave(left)

    def _leave(self, turn: Turn) -> None:
        if turn.number:
            with contextlib.suppress(HistoryError):  # it expires
                self._history.leave_turn(self._job, turn.number)

    def wait(self) -> None:
        """Wait until nobody is ahead.

        Call it before each choice: if the turn has expired, this waits for another one. It raises
        what ``History.ask_turn`` and the check raise.
        """
        shown_t = time.monotonic() + _SHOWN_AFTER_S
        was_asked = False
        while True:
            asked_t = time.monotonic()
            turn = self._ask()
            took_s = time.monotonic() - asked_t if was_asked else 0.0  # a new turn is a write
            was_asked = True
            if not turn.ahead:
                break
            self._check()
            if time.monotonic() >= shown_t:
                shown_t = time.monotonic() + _SHOWN_EVERY_S
                self._show(
                    f"waits for its turn to choose a batch size: {turn.ahead + 1} of {turn.waiting}"
                )
            time.sleep(min(_LONGEST_S, max(_A_PLACE_S, _ANSWERS * took_s) * turn.ahead))
        if self._renewing is None:
            renewing = threading.Thread(target=self._renew, name="zeusrun-turn", daemon=True)
            renewing.start()
            self._renewing = renewing

    def begin(self, trial: Trial, version: str) -> None:
        """Store a trial, as ``History.begin`` does; the turn then ends."""
        with self._lock:
            self._history.begin(trial, after=version, turn=self._turn.number)
            self._over.set()

    def _ask(self) -> Turn:
        with self._lock:
            try:
                self._turn = self._history.ask_turn(self._job, self._turn.number)
            except UnavailableError:
                if not self._turn.number:
                    raise
                before, self._turn = self._turn, Turn(0)
                self._turn = self._history.ask_turn(self._job)  # this waits for the history
                self._leave(before)
            return self._turn

    def _renew(self) -> None:
        """Renew the turn while a trial is chosen. If that fails, ``begin`` finds it expired."""
        while not self._over.wait(_RENEW_S):
            with self._lock, contextlib.suppress(HistoryError):
                if self._turn.number and not self._over.is_set():
                    self._turn = self._history.ask_turn(self._job, self._turn.number)

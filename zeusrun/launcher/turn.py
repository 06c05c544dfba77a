"""Whether a submit may begin now: what other submits of its job mean for it."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Literal

from zeusrun.errors import BusyError
from zeusrun.launcher.cancel import ask_to_cancel
from zeusrun.launcher.live import read_live
from zeusrun.launcher.paths import find_run
from zeusrun.launcher.tickets import Tickets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.tickets import HeldTicket, Ticket

Overlap = Literal["forbid", "allow", "replace", "queue"]
"""What to do when the job runs already: not begin, run beside it, end it first, or wait for it."""

_PERIOD_S = 0.5  # files of other processes know no events


def take_turn(
    home: Path,
    job: str,
    overlap: Overlap,
    history: History,
    *,
    until_t: float | None,
    interrupted: Callable[[], bool],
    tell: Callable[[str], None],
) -> HeldTicket | None:
    """Take a ticket, and wait until its turn has come.

    It is decided once, when it comes, under the lock of all submits: of two that start at once,
    one is first.

    Args:
        home: Zeusrun's.
        job: Whose turn.
        overlap: What to do about other submits of the job.
        history: Where their trials are.
        until_t: Monotonic second to give up at; ``None`` to wait for as long as it takes.
        interrupted: Whether to give up.
        tell: Takes a sentence for people.

    Returns:
        The ticket; ``None`` if it was interrupted while it waited.

    Raises:
        BusyError: If another submit is in the way.
        HistoryError: If the home cannot be written.
    """
    tickets = Tickets(home)
    with tickets:
        others = [ticket for ticket in tickets.present() if ticket.job == job]
        turn = decide_turn(overlap, [ticket.state for ticket in others])
        if turn == "skip":
            raise BusyError(_skipped(job, others))
        state: Literal["waiting", "running"] = "running" if turn == "begin" else "waiting"
        held = tickets.take(job, state, replaces=overlap == "replace")
    try:
        if turn == "wait":
            tell(_sentence(job, overlap, others))
            end = partial(_end, home, job, history) if overlap == "replace" else None
            if not _wait(tickets, held, until_t, interrupted, end):
                held.release()
                return None
            held.show(state="running")
    except BaseException:
        held.release()
        raise
    return held


def decide_turn(overlap: Overlap, others: Sequence[str]) -> Literal["begin", "skip", "wait"]:
    """Return what a submit does that finds others of its job. Pure.

    Args:
        overlap: What was asked for.
        others: The states of the others, ``waiting`` or ``running``.
    """
    if not others or overlap == "allow":
        return "begin"
    if overlap == "forbid" or (overlap == "queue" and "waiting" in others):
        return "skip"
    return "wait"


def _skipped(job: str, others: Sequence[Ticket]) -> str:
    waits = [ticket for ticket in others if ticket.state == "waiting"]
    queue = f", and another run waits for its turn ({_names(waits)})" if waits else ""
    return f"{job} runs already ({_names(others)}){queue}; this run is skipped"


def _names(tickets: Sequence[Ticket]) -> str:
    return ", ".join(f"process {ticket.pid} since {ticket.since}" for ticket in tickets)


def _sentence(job: str, overlap: Overlap, others: Sequence[Ticket]) -> str:
    does = "is told to end, and waited for" if overlap == "replace" else "is waited for"
    return f"{job} runs already: {_names(others)} {does}"


def _end(home: Path, job: str, history: History, before: Sequence[Ticket]) -> None:
    """Ask the trials of earlier submits to stop, as ``zeusrun cancel`` does."""
    launchers = {ticket.pid for ticket in before}
    for trial in history.unfinished(job):
        paths = find_run(home, trial)
        live = None if paths is None else read_live(paths)  # there from a trial's first second on
        if paths is not None and live is not None and live.pid in launchers:
            with contextlib.suppress(OSError):
                ask_to_cancel(paths, replaced=True)


def check_replaced(own: Ticket, present: Sequence[Ticket]) -> None:
    """Check that no newer run of the job came that is to replace one that waits.

    Raises:
        BusyError: If one did.
    """
    newer = [t for t in present if t.job == own.job and t.number > own.number and t.replaces]
    if newer:
        raise BusyError(f"{own.job}: this run is replaced by a newer one ({_names(newer)})")


def _wait(
    tickets: Tickets,
    held: HeldTicket,
    until_t: float | None,
    interrupted: Callable[[], bool],
    end: Callable[[Sequence[Ticket]], None] | None,
) -> bool:
    """Wait until nobody of the job is before us; return whether that is so.

    Raises:
        BusyError: If it takes too long, or a newer one came that is to replace all.
    """
    own = held.ticket
    began_t = time.monotonic()
    while not interrupted():
        with tickets:
            present = [ticket for ticket in tickets.present() if ticket.job == own.job]
        before = [ticket for ticket in present if ticket.number < own.number]
        check_replaced(own, present)
        if not before:
            return True
        if end is not None:
            end(before)  # again and again: one may be about to start its next trial
        if until_t is not None and time.monotonic() > until_t:
            waited_s = time.monotonic() - began_t
            raise BusyError(
                f"{own.job} runs still after {waited_s:.0f} s ({_names(before)}); this run is "
                "skipped"
            )
        time.sleep(_PERIOD_S)
    return False

"""Whether a submit may begin now: what other submits of its job mean for it."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from zeusrun.errors import BusyError, ZeusrunError
from zeusrun.launcher.rundir.cancel import ask_to_cancel
from zeusrun.launcher.rundir.layout import find_run
from zeusrun.launcher.rundir.live import read_live

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.jobfile.validators import Overlap
    from zeusrun.launcher.queue.tickets import HeldTicket, Ticket, Tickets
    from zeusrun.launcher.queue.waiting import Patience
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial


class Others:
    """The submits that are in the way, by what people know of them: their trials."""

    def __init__(self, home: Path, history: History) -> None:
        """Remember where; nothing is read yet."""
        self._home = home
        self._history = history

    def name(self, tickets: Sequence[Ticket]) -> str:
        """Name each: by its trial while it runs one, else by its process."""
        names = []
        for ticket in tickets:
            who = f"process {ticket.pid} of {ticket.job}"
            with contextlib.suppress(ZeusrunError):  # another job's history is not ours to judge
                who = next((trial.trial for trial, _ in self._running([ticket])), who)
            since = datetime.fromisoformat(ticket.since).astimezone()
            names.append(f"{who} since {since:%Y-%m-%d %H:%M}")
        return " and ".join(names)

    def end(self, tickets: Sequence[Ticket]) -> None:
        """Ask the trials of submits to stop, as ``zeusrun cancel`` does."""
        for _, paths in self._running(tickets):
            with contextlib.suppress(OSError):
                ask_to_cancel(paths, replaced=True)

    def _running(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Trial, RunPaths]]:
        for job in sorted({ticket.job for ticket in tickets}):
            launchers = {ticket.pid for ticket in tickets if ticket.job == job}
            for trial in self._history.unfinished(job):
                paths = find_run(self._home, trial)
                live = None if paths is None else read_live(paths)  # there within a second
                if paths is not None and live is not None and live.pid in launchers:
                    yield trial, paths


def take_turn(
    tickets: Tickets,
    job: str,
    overlap: Overlap,
    others: Others,
    patience: Patience,
    *,
    gpus: tuple[str, ...] = (),
) -> HeldTicket:
    """Take a ticket, and wait until its turn has come.

    It is decided once, when it comes, under the lock of all submits: of two that start at once,
    one is first.

    Args:
        tickets: All.
        job: Whose turn.
        overlap: What to do about other submits of the job.
        others: Who they are.
        patience: How to wait.
        gpus: UUIDs of those that it will want.

    Raises:
        BusyError: If another submit is in the way, or it has waited long enough.
        HistoryError: If the home cannot be written.
    """
    with tickets:
        present = [ticket for ticket in tickets.present() if ticket.job == job]
        turn = decide_turn(overlap, [ticket.state for ticket in present])
        if turn == "skip":
            raise BusyError(_skipped(job, present, others))
        state: Literal["waiting", "running"] = "running" if turn == "begin" else "waiting"
        held = tickets.take(job, state, gpus, replaces=overlap == "replace")
    try:
        before = present if turn == "wait" else []
        while before:
            if overlap == "replace":
                others.end(before)  # again and again: one may be about to start its next trial
            patience.wait(f"{job} runs already ({others.name(before)})", _ADVICE[overlap])
            with tickets:
                present = [ticket for ticket in tickets.present() if ticket.job == job]
            check_replaced(held.ticket, present)
            before = [ticket for ticket in present if ticket.number < held.ticket.number]
    except BaseException:
        held.release()
        raise
    return held


_ADVICE = {
    "replace": "it is told to end, and waited for",
    "queue": "it is waited for",
}


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


def _skipped(job: str, present: Sequence[Ticket], others: Others) -> str:
    waits = [ticket for ticket in present if ticket.state == "waiting"]
    queue = f", and another run waits for its turn ({others.name(waits)})" if waits else ""
    runs = [ticket for ticket in present if ticket.state == "running"] or present
    return f"{job} runs already ({others.name(runs)}){queue}; this run is skipped"


def check_replaced(own: Ticket, present: Sequence[Ticket]) -> None:
    """Check that no newer run of the job came that is to replace one that waits.

    Raises:
        BusyError: If one did.
    """
    newer = [t for t in present if t.job == own.job and t.number > own.number and t.replaces]
    if newer:
        who = ", ".join(f"process {ticket.pid}" for ticket in newer)
        raise BusyError(f"{own.job}: this run is replaced by a newer one ({who})")

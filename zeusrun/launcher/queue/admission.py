"""Lets a submit begin: it waits for other submits of its job, then for its GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from zeusrun.choice.problem import Forced
from zeusrun.clock import read_clock
from zeusrun.errors import BusyError, ExitCode, ZeusrunError
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.launcher.processes.signals import PREEMPTING
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.rundir.layout import ask_to_cancel, read_live
from zeusrun.launcher.rundir.ownership import find_own
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.registry import cancel_job, interrupt_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.jobfile.validators import Overlap
    from zeusrun.launcher.queue.tickets import HeldTicket, State, Ticket
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a submit; one that is queued in Slurm keeps them as JSON."""

    overrides: tuple[str, ...] = ()  # of the job file
    batch_size: int | None = None  # the user's own choice; ``None`` to ask the policy
    why: str = "chosen by --batch-size"
    overlap: Overlap = "allow"
    until: float | None = None  # Unix seconds: it gives up if it cannot begin by then
    wait: bool = False  # for GPUs of other jobs
    quiet: bool = False
    job_file: str = ""  # of a queued one, as the next two
    ticket: int = 0  # its number
    allocation: str = ""  # its job, such as slurm:1234, once it is known

    @property
    def forced(self) -> Forced | None:
        """The user's own choice."""
        return None if self.batch_size is None else Forced(self.batch_size, self.why)


_POLL_S = 0.5
_PLAIN = Request()
_REPLACED = ReasonCode.REPLACED, "a newer run of the job took its place"
_ADVICE = {"replace": "zeusrun stops it and waits for its end", "queue": "waiting for its end"}


@contextlib.contextmanager
def admitted(
    spec: JobSpec,
    home: Path,
    history: History,
    *,
    signals: Sequence[int],
    show: Callable[[str], None],
    request: Request = _PLAIN,
    ticket: HeldTicket | None = None,
) -> Iterator[tuple[str, ...] | None]:
    """Wait until a submit may begin, and hold its GPUs while it runs.

    Yields the UUIDs of the GPUs chosen for it; ``None`` if it has all that are visible.

    Args:
        spec: The job.
        home: The home of zeusrun.
        history: The trials of all jobs.
        signals: The signals that have come, in order.
        show: Shows a sentence to the user.
        request: What the user wants: what to do about other submits, and how long to wait.
        ticket: The caller's, who also releases it; ``None`` to take one.

    Raises:
        BusyError: If another submit is in the way, or a signal came meanwhile.
        DeviceError: If a visible GPU is absent.
        HistoryError: If the home cannot be written.
    """
    wish = read_wish(spec, {**os.environ, **spec.env})
    queue = Queue(spec.name, home, history, request.until, signals, show)
    # A later submit cannot get GPUs that this one names. GPUs that zeusrun chooses are not
    # claimed yet: others may have the free ones while this submit waits.
    held = ticket or queue.take_ticket(request.overlap, wish.pool if wish.count is None else ())
    try:
        queue.wait_for_turn(held, request.overlap)
        gpus = queue.take_gpus(held, wish, wait=request.wait)
        yield None if wish.count is None else gpus
    finally:
        if ticket is None:
            held.release()


def end_allocated(tickets: Sequence[Ticket]) -> None:
    """End submits in a scheduler, of which many have no trial that could be asked to end."""
    for each in tickets:
        if each.allocation:
            (interrupt_job if each.state == "running" else cancel_job)(each.allocation)


def decide_overlap(overlap: Overlap, others: Sequence[str]) -> Literal["begin", "skip", "wait"]:
    """Return what a submit does about others of its job, given their states. Pure."""
    if not others or overlap == "allow":
        return "begin"
    if overlap == "forbid" or (overlap == "queue" and "waiting" in others):
        return "skip"
    return "wait"


def check_not_ended(job: str, signals: Sequence[int], what: str = "it") -> None:
    """Raise ``BusyError`` if a signal came, with the exit code of a training that it ended.

    ``what`` did not begin.
    """
    if not signals:
        return
    error = BusyError(f"{job}: ended by {signal.Signals(signals[0]).name} before {what} began")
    if signals[0] not in PREEMPTING:
        error.exit_code = ExitCode.SIGNAL_BASE + signals[0]
    raise error


@dataclass(frozen=True)
class GpuWish:
    """The GPUs that a submit wants for itself."""

    pool: tuple[str, ...] = ()  # UUIDs of those that it may have; empty if it wants none for itself
    count: int | None = None  # how many of them; ``None`` for all
    shares: bool = False  # it runs on GPUs that others may use, too


def read_wish(spec: JobSpec, environment: Mapping[str, str]) -> GpuWish:
    """Return the GPUs that a job wants; raises ``DeviceError`` if a visible one is absent."""
    launch = spec.launch
    if launch.gpus == "shared" or launch.nproc_per_node == "cpu":
        return GpuWish(shares=launch.nproc_per_node != "cpu")
    # With hosts, the slots of this one may be others: it takes all GPUs.
    most = spec.most_ranks or launch.nproc_per_node
    ranks = most if isinstance(most, int) and spec.run_on is None else None
    chooses = launch.gpus == "auto"
    gpus = gpus_of_job(environment, None if chooses else ranks)
    pool = tuple(gpu.uuid for gpu in gpus)
    for gpu in gpus:
        gpu.close()
    return GpuWish(pool, len(pool[:ranks]) if chooses else None)


def choose_gpus(wish: GpuWish, this: Ticket, present: Sequence[Ticket]) -> tuple[str, ...] | None:
    """Return the GPUs that a submit gets now; ``None`` while it has to wait. Pure.

    The first to come is the first served: no submit overtakes one that waits for the same GPU.
    Submits of one job share the GPUs that they name; those that let zeusrun choose share nothing.
    """
    taken = {
        uuid
        for ticket in present
        if ticket.number != this.number
        and (ticket.holds or ticket.number < this.number)
        and (wish.count is not None or ticket.job != this.job)
        for uuid in ticket.gpus
    }
    if wish.count is None:
        return None if taken & set(wish.pool) else wish.pool
    free = [uuid for uuid in wish.pool if uuid not in taken]
    return tuple(free[: wish.count]) if len(free) >= wish.count else None


@dataclass
class Queue:
    """The other submits as one submit sees them; the attributes are those of ``admitted``."""

    job: str
    home: Path
    history: History
    until: float | None
    signals: Sequence[int]
    show: Callable[[str], None]
    _shown: set[str] = field(default_factory=set)

    def take_ticket(self, overlap: Overlap, gpus: tuple[str, ...]) -> HeldTicket:
        """Take a ticket; it waits if the job already runs and the policy says so.

        The lock of all submits is held for the decision: of two that start at once, one is first.
        """
        with Tickets(self.home) as tickets:
            present = self._of_job(tickets)
            decision = decide_overlap(overlap, [ticket.state for ticket in present])
            if decision == "skip":
                waits = ", and another run waits for its end" if overlap == "queue" else ""
                names = self._name(present)
                raise BusyError(
                    f"{self.job} is already running ({names}){waits}; this run is skipped"
                )
            state: State = "running" if decision == "begin" else "waiting"
            return tickets.take(self.job, state, gpus, replaces=overlap == "replace")

    @contextlib.contextmanager
    def hold_elsewhere(
        self, overlap: Overlap, *, waits: bool
    ) -> Iterator[tuple[HeldTicket, Sequence[Ticket], contextlib.ExitStack]]:
        """Hold a ticket until a job in a scheduler is created, and leave it to that.

        With ``waits``, wait first until its turn has come: in some schedulers no job waits for
        another. Yields the ticket, the submits that the job has to wait for, which are asked to end
        if it replaces them, and what is called if it cannot be created.
        """
        held = self.take_ticket(overlap, ())
        before: list[Ticket] = []
        with contextlib.ExitStack() as undo:
            undo.callback(held.release)
            if waits:
                self.wait_for_turn(held, overlap)
            elif held.ticket.state == "waiting":
                before = self.find_earlier(held.ticket)
                if overlap == "replace":
                    self.ask_to_end(before)
            yield held, before, undo
            held.leave()
            undo.pop_all()

    def wait_for_turn(self, held: HeldTicket, overlap: Overlap) -> None:
        """Wait for older submits of the job while the ticket says so."""
        while held.ticket.state == "waiting":
            before = self.find_earlier(held.ticket)
            if not before:
                return
            if overlap == "replace":
                if not self._shown:  # once
                    end_allocated(before)
                self.ask_to_end(before)  # each time: it may be about to start its next trial
            self._wait(f"{self.job} is already running ({self._name(before)})", _ADVICE[overlap])

    def find_earlier(self, this: Ticket) -> list[Ticket]:
        """Return the submits of the job before this; ``BusyError`` if a newer one replaces it."""
        with Tickets(self.home) as tickets:
            present = self._of_job(tickets)
        self._check_replaced(this, present)
        return [ticket for ticket in present if ticket.number < this.number]

    def ask_to_end(self, tickets: Sequence[Ticket]) -> None:
        """Ask for the end of the trials that some submits run now."""
        for _, paths in self._running(tickets):
            with contextlib.suppress(OSError):
                ask_to_cancel(paths, _REPLACED)

    def take_gpus(self, held: HeldTicket, wish: GpuWish, *, wait: bool) -> tuple[str, ...]:
        """Take the GPUs that a submit wants, and mark it as running; return their UUIDs."""
        tickets = Tickets(self.home)
        while True:
            with tickets:
                present = tickets.present()
                gpus = choose_gpus(wish, held.ticket, present)
                if gpus is not None:
                    on_cpu = not (wish.pool or wish.shares)
                    held.write(state="running", gpus=gpus, holds=True, on_cpu=on_cpu)
                    return gpus
                if wait and (held.ticket.state, held.ticket.gpus) != ("waiting", wish.pool):
                    held.write(state="waiting", gpus=wish.pool)
            self._check_replaced(held.ticket, present)
            others = [each for each in present if each.number != held.ticket.number]
            names = self._name([each for each in others if set(each.gpus) & set(wish.pool)])
            why = f"its GPUs are taken by {names}"
            if wish.count is not None:
                why = f"{wish.count} of {len(wish.pool)} GPUs are not free: {names}"
            if not wait:
                raise BusyError(
                    f"{self.job}: {why}; `zeusrun submit --wait` waits for them, "
                    "launch.gpus: auto takes free ones, and shared shares them"
                )
            self._wait(why, "waiting for them")

    def _wait(self, why: str, advice: str) -> None:
        """Wait for a moment; show the reason once for each kind of advice.

        Raises ``BusyError`` if a signal came, or the deadline has passed.
        """
        check_not_ended(self.job, self.signals)
        # By the clock, as the deadline is: the machine may sleep meanwhile.
        if self.until is not None and read_clock() > self.until:
            raise BusyError(f"{self.job}: {why}, and its deadline has passed; this run is skipped")
        if advice not in self._shown:
            self._shown.add(advice)
            self.show(f"{why}; {advice}")
        time.sleep(_POLL_S)

    def _of_job(self, tickets: Tickets) -> list[Ticket]:
        return [ticket for ticket in tickets.present() if ticket.job == self.job]

    def _check_replaced(self, this: Ticket, present: Sequence[Ticket]) -> None:
        """Raise ``BusyError`` if a newer submit of the job replaces this one."""
        newer = [t for t in present if t.job == this.job and t.number > this.number and t.replaces]
        if newer:
            who = ", ".join(f"process {ticket.pid}" for ticket in newer)
            raise BusyError(f"{self.job}: this run is replaced by a newer one ({who})")

    def _name(self, tickets: Sequence[Ticket]) -> str:
        """Name each submit: by the trial that it runs, or else by its process."""
        names = []
        for ticket in tickets:
            who = ticket.allocation or f"process {ticket.pid} of {ticket.job}"
            with contextlib.suppress(ZeusrunError):  # the history of another job may be unreadable
                who = next((trial.trial for trial, _ in self._running([ticket])), who)
            since = datetime.fromisoformat(ticket.since).astimezone()
            names.append(f"{who} since {since:%Y-%m-%d %H:%M}")
        return " and ".join(names)

    def _running(self, tickets: Sequence[Ticket]) -> Iterator[tuple[Trial, RunPaths]]:
        for job in sorted({ticket.job for ticket in tickets}):
            launchers = {ticket.pid for ticket in tickets if ticket.job == job}
            for trial in self.history.unfinished(job):
                paths = find_own(self.home, trial)
                live = None if paths is None else read_live(paths)  # written every second
                if paths is not None and live is not None and live.pid in launchers:
                    yield trial, paths

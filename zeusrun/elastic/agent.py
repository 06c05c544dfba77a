"""Starts the ranks of an elastic training, as torchrun's agent does, and changes their number.

torchrun ends all ranks if one fails, and adds none without a restart. This agent starts and loses
them one by one. What it writes to its log is what torchrun would write there. It decides alone who
is a member of which generation; the ranks decide after which step that begins.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from zeusrun.elastic.hang import HangWatch
from zeusrun.elastic.placement import Placement
from zeusrun.elastic.plan import End, Plan, log
from zeusrun.elastic.processes import PASSED_ON, SIGNALS, begin
from zeusrun.elastic.rank.board import (
    BY_EPOCHS,
    BY_STEPS,
    ENDED,
    FIXED,
    MAX_SLOTS,
    Board,
    Generation,
)
from zeusrun.launcher.rundir.failure import describe_exit
from zeusrun.sidecar.events import SIDECAR_NAME, Adapted, append_event

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.elastic.processes import Exit, LocalHost, RankProcess

_GRACE_S = 30.0  # after a failure, as torchrun
_CHANGE = (BY_STEPS, BY_EPOCHS)  # modes in which the ranks can change


class Agent:
    """The agent of one run.

    Args:
        plan: What it may do.
        host: This host.
        run_dir: Of the run.
    """

    _tick_s = 0.02

    def __init__(self, plan: Plan, host: LocalHost, run_dir: Path) -> None:
        self._plan, self._run_dir = plan, run_dir
        self._board = Board(run_dir, create=True)
        self._board.share(several=plan.hosts > 1)
        self._placement = Placement(host)
        self._processes: dict[int, RankProcess] = {}
        self._finished: set[int] = set()  # members whose script has ended
        self._waiting: set[int] = set()  # newcomers that are no members yet
        self._members: tuple[int, ...] = ()
        self._trained: tuple[int, ...] = ()  # the last ones that have all trained together
        self._number = self._board.newest  # of an earlier start of this run
        self._restart = self._lost = 0
        self._wanted, self._order, self._why = plan.ranks, 0, ""
        self._since_t = time.monotonic()  # when that was ordered, or a rank was lost
        self._shown = 0  # the last generation of which the log says that it trains
        # How one was lost, until all others have noticed: without it, they may fail, too.
        self._loss: End | None = None
        self._hung: set[int] = set()  # those that were killed because they hung
        self._next = 0  # the number of the next process
        self._trouble = ""  # the last error while the ranks changed
        self._hangs = HangWatch(plan.hang_s)
        self._port = _free_port()

    def run(self) -> int:
        """Return the exit code: 0 if every rank has ended so."""
        self._start_all()
        while True:
            got = self._wait()
            # After a SIGCONT, CPython may return something that is no signal.
            if got is not None and got.si_signo in PASSED_ON:
                name = signal.Signals(got.si_signo).name
                log(f"SignalException: the agent got {name}")
                self._end(got.si_signo, float(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]))
                return 1
            try:
                code = self._reap()
            except OSError as error:  # a full disk
                log(f"the ranks cannot go on without the lost one: {error}")
                self._end(signal.SIGTERM, _GRACE_S)
                return 1
            if code is not None:
                return code
            try:
                self._take_order()
                self._admit()
            except OSError as error:  # a full disk, or no process more: again at the next tick
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    log(f"the number of ranks cannot change yet: {error}")
            self._kill_hung()

    def _wait(self, *, also: bool = True) -> signal.struct_siginfo | None:
        """Wait for SIGCHLD, or ``also`` for a signal that is passed on, for a tick at most."""
        return signal.sigtimedwait(SIGNALS if also else {signal.SIGCHLD}, self._tick_s)

    # Processes

    def _start_all(self, end: End | None = None) -> None:
        self._finished, self._waiting = set(), set()
        self._hangs = HangWatch(self._plan.hang_s)
        slots = tuple(range(self._placement.share_out(self._aim)))
        self._next, self._trained = len(slots), slots
        self._port = _free_port()
        for slot in slots:
            self._board.place(slot).clear()
        self._board.clear(orders=False)
        why = "the training starts" if end is None else f"all ranks start again: {end.text}"
        self._publish(slots, why)
        self._loss, self._hung = None, set()
        for slot in slots:
            self._start(slot, slot, len(slots), 0)
        log(f"{len(slots)} processes have started")

    def _start(self, slot: int, rank: int, size: int, since: int) -> None:
        variables: dict[str, object] = {"ZEUSRUN_SLOT": slot, "ZEUSRUN_SINCE": since}
        variables |= {"RANK": rank, "ROLE_RANK": rank, "ROLE_NAME": "default"}
        variables |= {"WORLD_SIZE": size, "ROLE_WORLD_SIZE": size}
        variables |= self._placement.describe(slot, size, self._plan.hosts)
        variables |= {"MASTER_ADDR": self._plan.address, "MASTER_PORT": self._port}
        elastic = {"RUN_ID": self._plan.run_id, "USE_AGENT_STORE": False}
        elastic |= {"RESTART_COUNT": self._restart, "MAX_RESTARTS": self._plan.max_restarts}
        variables |= {f"TORCHELASTIC_{name}": each for name, each in elastic.items()}
        host = self._placement.host_of(slot)
        self._processes[slot] = process = host.start(slot, self._restart, variables)
        self._board.place(slot).pid = process.pid

    def _reap(self) -> int | None:
        """Take in the processes that have ended; return the exit code of the run, if it is over."""
        self._settle()
        for slot, pid, exit_ in self._take_ended():
            code = exit_.code
            if slot in self._waiting:
                self._waiting.discard(slot)
                self._wanted = min(self._wanted, len(self._members) + len(self._waiting))
                self._forget_error()
                log(f"process {slot} (pid {pid}) ended with {code} before it joined")
                self._warn(
                    f"a new rank ended before it joined, and no other one replaces it: see "
                    f"zeusrun logs {self._plan.run_id} --rank {slot}"
                )
            elif slot not in self._members and not (code and self._is_needed(slot)):
                log(f"process {slot} (pid {pid}) has left, with {code}")
            elif code == 0:
                self._finished.add(slot)
            elif slot not in self._members or not self._go_on_without(slot, exit_):
                return None if self._start_again(slot, exit_) else 1
        if not self._settle() and self._finished:  # the others end: nobody joins them any more
            self._dismiss(set(self._members) - set(self._trained))
        left = self._members or self._trained  # without members, all leave after a step
        if self._finished.issuperset(self._members) and not self._processes.keys() & set(left):
            self._dismiss(set(self._waiting))
            self._end(signal.SIGTERM, _GRACE_S)
            return 0
        return None

    def _take_ended(self) -> list[tuple[int, int, Exit]]:
        """Take out the processes that have ended, with their pids; first those that were killed.

        The others may have failed because of them. So all are looked at twice: the second time
        shows whoever was killed before the last one of the first time failed.
        """
        ended = []
        for _ in range(2):
            for slot, process in list(self._processes.items()):
                if (exit_ := process.read_exit()) is not None:
                    ended.append((slot, self._processes.pop(slot).pid, exit_))
                    place = self._board.place(slot)
                    place.ended = place.ended or ENDED
            if not ended:
                break
        return sorted(ended, key=lambda each: each[2].code >= 0)

    def _settle(self) -> bool:
        """Whether all members train together; then they are those that have the state."""
        if settled := self._is_settled:
            self._trained, self._loss = self._members, None
            if self._shown != self._number:
                self._shown, took_s = self._number, time.monotonic() - self._since_t
                log(f"generation {self._number} trains after {took_s:.2f} s")
        return settled

    def _is_needed(self, slot: int) -> bool:
        """Whether the others still train with a process that is to leave after the epoch."""
        return slot in self._trained and self._by_epochs and not self._is_settled

    def _dismiss(self, newcomers: set[int]) -> None:
        """Kill newcomers that are not needed."""
        self._members = tuple(slot for slot in self._members if slot not in newcomers)
        self._waiting -= newcomers
        for slot in newcomers & self._processes.keys():
            self._processes[slot].signal()

    def _go_on_without(self, slot: int, exit_: Exit) -> bool:
        """Go on with the other members, if the training may and can."""
        rest = tuple(each for each in self._members if each != slot)
        trained = self._trained
        is_new = slot not in trained  # then the others may not have met it
        able = all(self._board.place(each).mode == BY_STEPS for each in rest)
        # Without one of those that have trained, nobody has the state of the training.
        enough = len(rest) >= self._plan.min and not set(rest).isdisjoint(trained)
        if self._finished or not enough or not (is_new or (able and self._may_lose(exit_))):
            return False
        if is_new:
            while self._by_epochs and self._plan.batch_size % len(rest) and rest[-1] not in trained:
                rest = rest[:-1]
            self._dismiss(set(self._members) - {*rest, slot})
            self._wanted = min(self._wanted, len(rest) + len(self._waiting))
        self._forget_error()
        self._why, self._since_t = "a lost rank is replaced", time.monotonic()
        end = self._describe_end(slot, exit_)
        if not is_new or any(self._board.place(each).joins >= self._number for each in rest):
            self._loss = end  # the others have met it
            self._lost += is_new
        self._publish(rest, end.text)
        return True

    def _is_loss(self, exit_: Exit) -> bool:
        return exit_.code < 0 or exit_.out_of_memory or self._plan.lost_by == "any"

    def _may_lose(self, exit_: Exit) -> bool:
        if not self._is_loss(exit_) or self._lost >= self._plan.losses:
            return False
        self._lost += 1
        return True

    def _forget_error(self) -> None:
        for host in self._placement.hosts:
            host.forget_error()

    def _start_again(self, slot: int, exit_: Exit) -> bool:
        """End all ranks after a failure, and start them again if that is allowed."""
        self._since_t = time.monotonic()
        if exit_.error:
            log(exit_.error)
        end = self._loss or self._describe_end(slot, exit_)
        allowed = self._may_lose(exit_) if self._loss is None else self._lost <= self._plan.losses
        again = allowed or self._restart < self._plan.max_restarts
        with contextlib.suppress(OSError):
            self._publish((), end.text)  # nobody waits for the others any more
        self._end(signal.SIGTERM, _GRACE_S)
        fits = self._placement.most >= self._plan.min
        if again and fits:
            self._restart += 1
            self._start_all(end)
        else:
            why = "" if fits else f": no room for {self._plan.min} ranks (elastic.min)"
            if self._lost >= self._plan.losses and (self._loss or self._is_loss(exit_)):
                why = f": elastic.losses allows {self._plan.losses}"
                self._warn(f"another rank was lost, but elastic.losses allows {self._plan.losses}")
            log(  # as torchrun's table
                f"{end.text}, and the ranks may not start again{why}\n"
                "FAILED\nRoot Cause (first observed failure):\n"
                f"  rank      : {end.rank} (local_rank: {end.rank})\n"
                f"  exitcode  : {end.code} (pid: {end.pid})"
            )
        return again and fits

    def _warn(self, problem: str) -> None:
        """Let the launcher show and record a warning."""
        event = Adapted(time.monotonic(), 0, 1, max(1, self._plan.batch_size), None, "", problem)
        with contextlib.suppress(OSError):
            append_event(self._run_dir / SIDECAR_NAME, event)

    def _describe_end(self, slot: int, exit_: Exit) -> End:
        rank = (self._members if slot in self._members else self._trained).index(slot)
        how = "hung, and was killed" if slot in self._hung else describe_exit(exit_.code)
        text = f"rank {rank} {exit_.how or how}"
        return End(text, rank, exit_.code, self._board.place(slot).pid)

    def _end(self, number: int, grace_s: float) -> None:
        """End all processes, with a signal first."""
        deadline_t, killed = time.monotonic() + grace_s, False
        for process in self._processes.values():
            process.signal(number)
        while self._processes:
            self._wait(also=False)
            for slot, process in list(self._processes.items()):
                if process.read_exit() is not None:
                    del self._processes[slot]
            if not killed and time.monotonic() > deadline_t:
                killed = True
                for process in self._processes.values():
                    log(f"Unable to shutdown process {process.pid} via {number}, killing it")
                    process.signal()

    # Members

    def _publish(self, members: tuple[int, ...], why: str) -> None:
        address = self._placement.host_of(members[0]).address if members else ""
        self._announce(Generation(self._number + 1, members, why, address, self._since_t))
        self._number += 1
        self._members = members
        self._waiting -= set(members)
        log(f"generation {self._number}: processes {list(members)}: {why}")

    def _announce(self, generation: Generation) -> None:
        self._board.publish(generation)

    @property
    def _is_settled(self) -> bool:
        """Whether all members train in the newest generation."""
        places = [self._board.place(slot) for slot in self._members]
        settled = all(each.generation == self._number and each.mode in _CHANGE for each in places)
        return settled and bool(places)

    @property
    def _by_epochs(self) -> bool:
        return any(self._board.place(slot).mode == BY_EPOCHS for slot in self._trained)

    @property
    def _aim(self) -> int:
        """The number of ranks that is wanted, or the next that shares the batch size evenly."""
        if any(self._board.place(slot).mode == FIXED for slot in self._trained):
            return len(self._trained)
        ranks = min(self._wanted, self._placement.most)
        while self._by_epochs and ranks and self._plan.batch_size % ranks:
            ranks -= 1
        return len(self._members or self._trained) if 0 < ranks < self._plan.min else ranks

    def _take_order(self) -> None:
        """Start newcomers or let members go, until there are as many as wanted."""
        number, size, by = self._board.wanted
        if number != self._order:
            self._order = number
            self._wanted = size and min(max(size, self._plan.min), self._plan.max)
            self._why, self._since_t = f"{by} wants {size}", time.monotonic()
            log(f"{self._why}: it aims at {self._aim}")
        self._board.accept(number, self._aim)
        if self._finished or not self._members or not self._is_settled:
            return
        aim = self._aim
        if (excess := len(self._members) + len(self._waiting) - aim) > 0:
            self._dismiss(set(sorted(self._waiting)[-excess:]))
        if aim < len(self._members):
            self._publish(self._members[:aim], self._why)
        while self._members and len(self._members) + len(self._waiting) < aim:
            slot, rank = self._next, len(self._members) + len(self._waiting)
            if slot == MAX_SLOTS:
                log(f"no process is left: {MAX_SLOTS} have been started")
                self._wanted = len(self._members)
                return
            if not self._placement.add(slot, (*self._members, *self._waiting)):
                return  # the hosts that are left have no place for more
            self._board.place(slot).clear()
            self._start(slot, rank, aim, self._number)
            self._next += 1
            self._waiting.add(slot)

    def _admit(self) -> None:
        """Make newcomers members, once they are ready."""
        ready = [slot for slot in sorted(self._waiting) if self._board.place(slot).is_ready]
        if not ready or self._finished or not self._members or not self._is_settled:
            return
        members = (*self._members, *ready)
        if not (self._by_epochs and self._plan.batch_size % len(members)):
            self._publish(members, self._why)

    def _kill_hung(self) -> None:
        """Kill a member that does nothing while others wait for it; it is lost as any other."""
        places = {slot: self._board.place(slot) for slot in self._members}
        for slot in self._hangs.find(places, time.monotonic()):
            if slot in self._processes.keys() - self._hung:
                log(f"process {slot} (pid {places[slot].pid}) hangs: killing it")
                self._hung.add(slot)
                self._processes[slot].signal()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def main() -> NoReturn:
    """Run the agent: ``argv`` is its plan, then the command of a rank."""
    plan, host, run_dir = begin()
    sys.exit(Agent(plan, host, run_dir).run())

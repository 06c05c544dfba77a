"""The agent of another host: starts, signals and reaps its ranks as the agent of host 0 says."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from zeusrun.elastic.nodes.link import TICK_S, Link, Replica, sign, verify
from zeusrun.elastic.plan import log
from zeusrun.elastic.processes import PASSED_ON, SIGNALS
from zeusrun.elastic.rank.board import ENDED, Board, Generation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zeusrun.elastic.plan import Plan
    from zeusrun.elastic.processes import LocalHost, LocalProcess

_CONNECT_S = 60.0
_RETRY_S = 0.1
_ANSWER_S = 5.0
_MAX_ERROR = 1 << 16  # characters: a message that is too long would end the connection


def connect(plan: Plan, host: LocalHost, token: str) -> Link | None:
    """Connect to the agent of host 0, which may not listen yet.

    ``None`` if it does not answer in time, or a signal ends this agent.
    """
    address, _, port = plan.endpoint.rpartition(":")
    until_t = time.monotonic() + _CONNECT_S
    while time.monotonic() < until_t:
        with contextlib.suppress(OSError):
            sock = socket.create_connection((address.strip("[]"), int(port)), _ANSWER_S)
            link = Link(sock)
            if _greet(link, host, token):
                return link
            link.close()
        got = signal.sigtimedwait(PASSED_ON, _RETRY_S)
        if got is not None and got.si_signo in PASSED_ON:  # see ``Agent.run``
            return None
    log(f"the agent of host 0 does not answer at {plan.endpoint}")
    return None


def _greet(link: Link, host: LocalHost, token: str) -> bool:
    """Prove that this agent belongs to the run; return whether the other end does, too."""
    hello = link.wait_for_one(_ANSWER_S)
    if hello is None or hello["kind"] != "hello":
        return False
    link.send(
        "hello",
        proof=sign(token, str(hello.get("nonce"))),
        nonce=link.nonce,
        number=host.number,
        name=socket.gethostname(),
        ranks=host.ranks,
        most=host.most,
        address=host.address,
    )
    welcome = link.wait_for_one(_ANSWER_S)
    return welcome is not None and verify(token, link.nonce, str(welcome.get("proof")))


class NodeAgent:
    """The agent of another host.

    Args:
        plan: What it may do.
        host: This host.
        run_dir: With the files of its ranks.
        link: To the agent of host 0.
    """

    def __init__(self, plan: Plan, host: LocalHost, run_dir: Path, link: Link) -> None:
        self._plan, self._host, self._link = plan, host, link
        self._board = Board(run_dir, create=True)
        self._board.share(several=True)
        self._replica = Replica(self._board)
        self._processes: dict[int, LocalProcess] = {}
        self._own: set[int] = set()  # slots of this start of all ranks
        self._orders = self._known = 0
        self._code: int | None = None

    def run(self) -> int:
        """Return the exit code: that of the agent of host 0, or 1 if that agent is lost."""
        while self._code is None:
            got = signal.sigtimedwait(SIGNALS, TICK_S)
            if got is not None and got.si_signo in PASSED_ON:
                self._code = 1
                self._end(got.si_signo, float(os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]))
                return 1
            try:
                self._exchange()
            except OSError as error:  # a full disk
                log(f"this host cannot go on: {error}")
                self._code = 1
            is_gone = not self._link.is_open or self._link.silent_s > self._plan.silent_s
            if is_gone and self._code is None:  # after its exit code, it may close the link
                log("the agent of host 0 is lost: it has ended, or the connection is cut")
                self._code = 1
        self._end(signal.SIGKILL, 0.0)
        return self._code

    def _exchange(self) -> None:
        for message in self._link.exchange():
            self._take(message)
        self._report()
        for slot, process in list(self._processes.items()):
            if (exit_ := process.read_exit()) is not None:
                del self._processes[slot]
                self._board.place(slot).ended = ENDED
                self._report()  # the head must get what it wrote last before its end
                exit_ = exit_._replace(error=exit_.error[:_MAX_ERROR])
                self._link.send("exit", slot=slot, exit=exit_)

    def _report(self) -> None:
        """Send what has changed on the board of this host."""
        if (number := self._board.switch[0]) != self._known:
            self._known = number
            self._link.send("knows", number=number)
        number, size, by = self._board.wanted
        if number != self._orders:
            self._orders = number
            self._link.send("order", size=size, by=by)
        if changes := self._replica.find_changes(self._own):
            self._link.send("board", **changes)

    def _take(self, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "board":
            self._replica.take(message)
        elif kind == "generation":
            fields = {**message, "members": tuple(message["members"])}
            del fields["kind"]
            self._board.publish(Generation(**fields))
        elif kind == "begin":
            self._own.clear()
            slots = range(message["slots"])
            self._replica.forget(slots)
            for slot in slots:
                self._board.place(slot).clear()
        elif kind == "start" and self._code is None:  # else it ends, and the head will see that
            self._start(message["slot"], message["restart"], message["variables"])
        elif kind == "signal" and message["slot"] in self._processes:
            self._processes[message["slot"]].signal(message["number"])
        elif kind == "forget":
            self._host.forget_error()
        elif kind == "bye":
            self._code = message["code"]

    def _start(self, slot: int, restart: int, variables: Mapping[str, object]) -> None:
        place = self._board.place(slot)
        place.clear()
        try:
            self._processes[slot] = process = self._host.start(slot, restart, variables)
        except OSError as error:
            how = f"could not start: {error}"
            self._link.send("exit", slot=slot, exit=[1, False, "", how])
            return
        place.pid = process.pid
        self._own.add(slot)
        self._link.send("started", slot=slot, pid=process.pid)

    def _end(self, number: int, grace_s: float) -> None:
        """End all ranks of this host: by a signal, and by SIGKILL after ``grace_s``."""
        until_t = time.monotonic() + grace_s
        for process in self._processes.values():
            process.signal(number)
        while self._processes:
            if time.monotonic() > until_t:
                for process in self._processes.values():
                    process.signal()
            signal.sigtimedwait({signal.SIGCHLD}, TICK_S)
            with contextlib.suppress(OSError):  # a full disk
                self._exchange()
        self._link.flush(1.0)

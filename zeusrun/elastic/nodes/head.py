"""The agent of host 0: decides on the ranks of all hosts, as that of one host does.

Agents of the other hosts connect to it before the training starts. Ranks there are processes that
it starts, signals and reaps by messages; their boards are copies of its own. If a connection ends
or is silent for too long, the ranks of that host are lost, each as one that was killed.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zeusrun.elastic.agent import Agent
from zeusrun.elastic.nodes.link import TICK_S, Link, Replica, sign, verify
from zeusrun.elastic.plan import log
from zeusrun.elastic.processes import PASSED_ON, Exit
from zeusrun.elastic.rank.board import HOST_LOST

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zeusrun.elastic.plan import End, Plan
    from zeusrun.elastic.processes import LocalHost
    from zeusrun.elastic.rank.board import Generation

_GATHER_S = 60.0  # in which the agents of all hosts connect
_GREET_S = 5.0
_FLUSH_S = 5.0


class RemoteProcess:
    """A process of a rank on another host. See ``RankProcess``.

    Attributes:
        pid: On its host; 0 before it has started.
        exit: How it has ended; ``None`` as long as it runs.
    """

    def __init__(self, link: Link, slot: int) -> None:
        self._link, self._slot = link, slot
        self.pid = 0
        self.exit: Exit | None = None

    def signal(self, number: int = signal.SIGKILL) -> None:
        """See ``RankProcess.signal``."""
        self._link.send("signal", slot=self._slot, number=int(number))

    def read_exit(self) -> Exit | None:
        """See ``RankProcess.read_exit``."""
        return self.exit


class RemoteHost:
    """Another host. See ``Host``.

    Attributes:
        name: Its hostname.
        link: The connection to its agent.
        replica: What its board has.
        processes: Those that were started there, by slot.
        knows: The newest generation of which it knows when that begins.
    """

    def __init__(self, link: Link, replica: Replica, hello: Mapping[str, Any]) -> None:
        self.link, self.replica = link, replica
        self.number, self.name = int(hello["number"]), str(hello["name"])
        self.ranks, self.most = int(hello["ranks"]), int(hello["most"])
        self.address = str(hello["address"])
        self.processes: dict[int, RemoteProcess] = {}
        self.knows = 0

    def start(self, slot: int, restart: int, variables: Mapping[str, object]) -> RemoteProcess:
        """See ``Host.start``."""
        self.processes[slot] = RemoteProcess(self.link, slot)
        self.link.send("start", slot=slot, restart=restart, variables=variables)
        return self.processes[slot]

    def forget_error(self) -> None:
        """See ``Host.forget_error``."""
        self.link.send("forget")


class HeadAgent(Agent):
    """The agent of host 0.

    Args:
        plan: What it may do.
        host: This host.
        run_dir: Of the run.
        token: Of the run.
    """

    _tick_s = TICK_S

    def __init__(self, plan: Plan, host: LocalHost, run_dir: Path, token: str) -> None:
        super().__init__(plan, host, run_dir)
        self._token = token
        self._others: dict[int, RemoteHost] = {}
        self._greeted: list[tuple[Link, float]] = []  # connections that have proved nothing yet

    def run(self) -> int:
        """See ``Agent.run``. The others end with it."""
        code = 1
        try:
            if self._gather():
                code = super().run()
        finally:
            for each in self._others.values():
                each.link.send("bye", code=code)
                each.link.flush(_FLUSH_S)
                each.link.close()
        return code

    def _gather(self) -> bool:
        """Wait for the agents of the other hosts; return whether all are there."""
        address, _, port = self._plan.endpoint.rpartition(":")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        until_t = time.monotonic() + _GATHER_S
        try:
            server = socket.create_server((address.strip("[]"), int(port)), family=family)
        except OSError as error:
            log(f"the other hosts cannot connect to {self._plan.endpoint}: {error}")
            return False
        with server:
            server.setblocking(False)
            while len(self._others) < self._plan.hosts - 1:
                got = self._wait()
                self._accept(server)
                ended = got is not None and got.si_signo in PASSED_ON  # see ``Agent.run``
                if ended or time.monotonic() > until_t:
                    missing = set(range(1, self._plan.hosts)) - self._others.keys()
                    log(f"no agent of host {', '.join(map(str, sorted(missing)))} has connected")
                    return False
        for link, _ in self._greeted:
            link.close()
        return True

    def _wait(self, *, also: bool = True) -> signal.struct_siginfo | None:
        got = super()._wait(also=also)
        for host in list(self._others.values()):
            for message in host.link.exchange():
                self._take(host, message)
            if not host.link.is_open or host.link.silent_s > self._plan.silent_s:
                self._lose(host)
        self._board.confirm(
            min([self._board.switch[0], *(each.knows for each in self._others.values())])
        )
        self._copy()
        return got

    def _copy(self) -> None:
        """Send to each host what has changed on the board."""
        matter = {*self._members, *self._trained, *self._waiting, *self._processes}
        for host in self._others.values():
            slots = matter - host.processes.keys()
            if changes := host.replica.find_changes(slots):
                host.link.send("board", **changes)

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # nobody connects
            link = Link(server.accept()[0])
            link.send("hello", nonce=link.nonce)
            self._greeted.append((link, time.monotonic() + _GREET_S))
        for greeted in list(self._greeted):
            link, until_t = greeted
            hello = next(iter(link.exchange()), None)
            if hello is not None or not link.is_open or time.monotonic() > until_t:
                self._greeted.remove(greeted)
                if hello is None or not self._admit_host(link, hello):
                    link.close()

    def _admit_host(self, link: Link, hello: Mapping[str, Any]) -> bool:
        """Take in the agent of a host, if it knows the token, and the host has no other one."""
        try:
            host = RemoteHost(link, Replica(self._board), hello)
            known = verify(self._token, link.nonce, str(hello["proof"]))
            proof = sign(self._token, str(hello["nonce"]))
        except (LookupError, TypeError, ValueError):
            return False
        if not known or not 0 < host.number < self._plan.hosts or host.number in self._others:
            return False
        link.send("welcome", proof=proof)
        self._others[host.number] = host
        self._placement.hosts.append(host)
        self._placement.hosts.sort(key=lambda each: each.number)
        log(f"host {host.name} has connected")
        return True

    def _take(self, host: RemoteHost, message: Mapping[str, Any]) -> None:
        kind = message["kind"]
        if kind == "board":
            host.replica.take(message, host.processes)
        elif kind == "knows":
            host.knows = message["number"]
        elif kind == "order":
            self._board.order(message["size"], message["by"])
        elif kind == "started":
            process = host.processes[message["slot"]]
            process.pid = self._board.place(message["slot"]).pid = message["pid"]
        elif kind == "exit":
            host.processes[message["slot"]].exit = Exit(*message["exit"])

    def _lose(self, host: RemoteHost) -> None:
        """Give a host up: all of its ranks are lost."""
        why = "its agent has ended, or the connection was lost"
        if host.link.is_open:
            why = f"it was silent for {host.link.silent_s:.0f} s (run_on.heartbeat_s)"
        host.link.close()
        del self._others[host.number]
        self._placement.hosts.remove(host)
        log(f"host {host.name} is lost: {why}")
        self._warn(f"host {host.name} is lost: {why}")
        for slot, process in host.processes.items():
            if process.exit is None:
                process.exit = Exit(-signal.SIGKILL, how=f"is lost with host {host.name}")
                self._board.place(slot).ended = HOST_LOST

    def _start_all(self, end: End | None = None) -> None:
        for host in self._others.values():
            host.processes.clear()
            host.replica.forget(range(self._next))
            host.link.send("begin", slots=self._next)
        super()._start_all(end)

    def _announce(self, generation: Generation) -> None:
        # A newcomer takes the last announcement for its own until it knows that it was followed.
        self._copy()
        super()._announce(generation)
        for host in self._others.values():
            host.link.send("generation", **asdict(generation))

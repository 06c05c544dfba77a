"""The hosts of one submit: starts a node launcher on each of the others, and compares the hosts."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.errors import LaunchError, UsageError
from zeusrun.jobfile.hosts import Host
from zeusrun.launcher.events import Noted, Warned
from zeusrun.launcher.processes.command import Place
from zeusrun.launcher.processes.fan_out import FanOutProcess
from zeusrun.launcher.queue.admission import check_not_ended
from zeusrun.run_on.hosts.channel import Channel, ChannelError, authenticate
from zeusrun.run_on.hosts.devices import JoinedLimits
from zeusrun.run_on.hosts.network import Endpoint, find_endpoint, is_own_name, resolve
from zeusrun.run_on.hosts.node_launcher import versions
from zeusrun.run_on.hosts.remote_node import RemoteNode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.jobfile.run_on_section import RunOn
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Emit

TOKEN_VARIABLE = "ZEUSRUN_JOIN_TOKEN"  # noqa: S105 - its name
_HELLO_S = 60.0  # an ssh that has to start a file system on its way
_PERSON_S = 600.0
_HANDSHAKE_S = 5.0
_POLL_S = 0.2
_PINGS = 5  # within a heartbeat
_FORWARDED = ("ZEUSRUN_CPU_WATTS_PER_CORE",)  # settings of zeusrun itself that hosts share


@dataclass
class Cluster:
    """The other hosts of a submit, and where this one is reached. A context manager."""

    run_on: RunOn
    nodes: tuple[RemoteNode, ...] = ()
    processes: Sequence[FanOutProcess] = ()
    parts: Sequence[tuple[int, Endpoint]] = ()  # the ranks of each host, this one first, and where
    remarks: list[str] = field(default_factory=list)  # on how the hosts differ
    slots: Mapping[str, int | str] = field(default_factory=dict)  # by host, as nproc_per_node
    _ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Start to send heartbeats, and to watch for those of the nodes."""
        threading.Thread(target=self._beat, name="zeusrun-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        beat_t = since_t = time.monotonic()
        while not self._ended.wait(min(1.0, self.run_on.heartbeat_s / _PINGS)):
            now_t = time.monotonic()
            if now_t - beat_t > self.run_on.heartbeat_s / 2:
                since_t = now_t  # this process was stopped, and has to read what the nodes said
            beat_t = now_t
            for node in (each for each in self.nodes if each.lost is None):
                silent_s = now_t - max(node.heard_t, since_t)
                if node.hello is not None and silent_s > self.run_on.heartbeat_s:
                    node.mark_lost(
                        f"host {node.name} is lost: it has not answered for {silent_s:.0f} s "
                        "(run_on.heartbeat_s)"
                    )
                node.ping()

    def join_limits(self, local: LimitHolder | None, mode: str) -> JoinedLimits:
        """Return the power limits of all hosts as one; ``local`` are those of this one."""
        return JoinedLimits(local, [node.limits for node in self.nodes], mode)

    def close(self) -> None:
        """End the node launchers, and wait for them."""
        self._ended.set()
        for node in self.nodes:
            node.close()
        for node, process in zip(self.nodes, self.processes, strict=False):  # none for joins
            process.end(at_once=node.lost is not None)

    def places(self) -> list[Place]:
        """Return where the torchrun of each host is, with a port that is free now."""
        address = self.parts[0][1].address
        with listen(address, self.run_on.ports) as sock:
            port = sock.getsockname()[1]
        endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        token, silent_s = secrets.token_hex(16), self.run_on.heartbeat_s
        return [
            Place(ranks, n, len(self.parts), endpoint, own.nic, own.address, token, silent_s)
            for n, (ranks, own) in enumerate(self.parts)
        ]


def open_cluster(
    spec: JobSpec, run_on: RunOn, signals: Sequence[int], emit: Emit | None
) -> tuple[Cluster, int | str]:
    """Connect to the other hosts of a job, and check that each can take part.

    Args:
        spec: The job.
        run_on: Its section.
        signals: Those that have come; they end the wait.
        emit: Gets what happens meanwhile; ``None``: nobody can be asked to join.

    Returns:
        The hosts, not prepared yet, and the number of processes on this one as in
        ``launch.nproc_per_node``.

    Raises:
        LaunchError: If a host cannot be reached, or has another version.
        UsageError: If this host is none of them.
    """
    hosts = run_on.host_list(spec.source.parent, spec.launch.nnodes)
    # A node of Slurm may have another hostname, and names may resolve to loopback, also of others.
    named = os.environ.get("SLURMD_NODENAME")
    mine = [host for host in hosts if host.address == named]
    mine = mine or [host for host in hosts if is_own_name(host.address)]
    if len(mine) > 1:
        raise UsageError(
            f"{mine[0].name} and {mine[1].name} are both this host; name it once, with its slots"
        )
    if not mine:
        raise UsageError(
            f"this host, {socket.gethostname()}, is not one of the job's hosts: "
            f"{', '.join(host.name for host in hosts)}. Submit on one of them, or add it to run_on"
        )
    (this,) = mine
    others = [host for host in hosts if host is not this]
    joins = run_on.fan_out_command(this) is None
    if joins and any(section == "args" for section, _ in spec.secrets):
        raise UsageError(
            f"{spec.source}: args contain a secret, and fan_out: join has no encryption. Put the "
            "secret into env, and set it on each host"
        )
    if joins and emit is None:
        raise UsageError(
            f"{spec.source}: with fan_out: join, only `zeusrun submit` waits for other hosts"
        )
    per_node = spec.launch.nproc_per_node
    slots = {host.address: host.slots or per_node for host in hosts}
    cluster = Cluster(run_on, slots=slots)
    try:
        if joins and others and emit:
            _wait_for_joins(cluster, spec, others, signals, emit)
        else:
            _start_all(cluster, others)
        cluster.watch()
        for node in cluster.nodes:
            _check_hello(node, spec.name, signals)
    except BaseException:
        cluster.close()
        raise
    return cluster, slots[this.address]


def prepare(
    cluster: Cluster, spec: JobSpec, home: Path, own_devices: Sequence[Device], own_ranks: int
) -> None:
    """Open the devices of all hosts, number the ranks, and note how the hosts differ.

    Raises ``ZeusrunError`` with the name of the host that cannot take part.
    """
    run_on, nodes = cluster.run_on, cluster.nodes
    head = _find_own(run_on, nodes[0].name)
    env = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
    private = {name for section, name in spec.secrets if section == "env"}
    env |= {name: text for name, text in spec.env.items() if name not in private}
    calls = [
        node.ask(
            "prepare",
            host=node.name,
            nic=run_on.nic,
            head=head.address,
            heartbeat_s=run_on.heartbeat_s,
            home=str(home),
            env=env,
            nproc_per_node=cluster.slots[node.name],
            most=most_ranks(spec, cluster.slots[node.name], 1 + len(nodes)),
        )
        for node in nodes
    ]
    parts, first = [(own_ranks, head)], own_ranks
    for node, call in zip(nodes, calls, strict=True):
        answer = node.wait_for(call)
        node.prepare(answer, first)
        parts.append((len(node.ranks), Endpoint(answer["nic"], answer["address"])))
        first = node.ranks.stop
    cluster.parts = parts
    cluster.remarks += _compare(own_devices, own_ranks, nodes)


def most_ranks(spec: JobSpec, ranks: int | str, hosts: int) -> int | None:
    """Return how many ranks a host may have; ``None``: always as many as at the start.

    ``ranks``: at the start.
    """
    if spec.most_ranks is None or not isinstance(ranks, int):
        return None
    return max(ranks, -(-spec.most_ranks // hosts))


def _find_own(run_on: RunOn, peer: str) -> Endpoint:
    """Return where this host is reached by another one, whose name only a scheduler may know."""
    by_ssh = (run_on.fan_out_command(Host(peer, None)) or [""])[0].endswith("ssh")
    if run_on.scheduled is not None and resolve(peer) is None:
        peer = run_on.scheduled.find_address(peer)
    return find_endpoint(socket.gethostname(), run_on.nic, peer, by_ssh=by_ssh)


def _start_all(cluster: Cluster, hosts: Sequence[Host]) -> None:
    processes: list[FanOutProcess] = []
    cluster.processes = processes
    for number, host in enumerate(hosts, 1):
        scheduled = cluster.run_on.scheduled
        python = () if scheduled is None else scheduled.python_words
        process = FanOutProcess(cluster.run_on.fan_out_command(host) or [], number, python)
        processes.append(process)
        channel = Channel(process.reading, process.writing, number)
        node = RemoteNode(number, host.address, channel, process.explain_end)
        cluster.nodes = (*cluster.nodes, node)


def _check_hello(node: RemoteNode, job: str, signals: Sequence[int]) -> None:
    """Raise ``LaunchError`` if a node did not answer, or has other versions."""
    until_t, hello = time.monotonic() + _HELLO_S, None
    while hello is None and node.lost is None and time.monotonic() < until_t:
        check_not_ended(job, signals)
        hello = node.wait_for_hello(_POLL_S)
    if hello is None:
        lost = node.lost or f"host {node.name} has not answered for {_HELLO_S:g} s"
        raise LaunchError(
            f"{lost}. It needs zeusrun for the same Python as here, {sys.executable}, and "
            "run_on.fan_out must reach it"
        )
    if (text := hello.get("error")) is not None:
        raise LaunchError(f"host {node.name}: {text}")
    for name, ours in versions().items():
        if (other := hello["versions"].get(name)) != ours:
            raise LaunchError(
                f"host {node.name} has {name} {other}, and this host {ours}; "
                "install the same on all"
            )


def _wait_for_joins(
    cluster: Cluster,
    spec: JobSpec,
    hosts: Sequence[Host],
    signals: Sequence[int],
    emit: Emit,
) -> None:
    """Wait until ``zeusrun join`` was run on all other hosts; raises ``LaunchError``."""
    run_on = cluster.run_on
    endpoint = _find_own(run_on, hosts[0].address)
    known = os.environ.get(TOKEN_VARIABLE)  # an empty one is none
    token = known or secrets.token_urlsafe(16)
    nodes: dict[int, RemoteNode] = {}
    with listen(endpoint.address, run_on.ports) as server:
        port = server.getsockname()[1]
        given = "" if known else f"{TOKEN_VARIABLE}={token} "
        names = ", ".join(host.name for host in hosts)
        how = f"; run there: {given}zeusrun join {endpoint.address}:{port}"
        alone = run_on.scheduled is not None and run_on.scheduled.joins_alone
        emit(Noted(f"waiting for {names}{'' if alone else how}", needed=True))
        server.settimeout(_POLL_S)
        wait_s = 3 * _PERSON_S if alone else _PERSON_S  # pods may have to load their image
        until_t = time.monotonic() + wait_s
        while len(nodes) < len(hosts):
            for node in cluster.nodes:
                node.ping()  # else it would leave after a minute
                if node.lost is not None:
                    nodes.pop(node.number).close()
            cluster.nodes = tuple(nodes[each] for each in sorted(nodes))
            check_not_ended(spec.name, signals)
            if time.monotonic() > until_t:
                missing = [host.name for n, host in enumerate(hosts, 1) if n not in nodes]
                raise LaunchError(
                    f"{', '.join(missing)} did not join within {wait_s / 60:g} minutes"
                )
            with contextlib.suppress(TimeoutError):
                sock, peer = server.accept()
                if peer[0] == endpoint.address and endpoint.nic != "lo":
                    sock.close()
                    emit(Warned("a `zeusrun join` on this host was refused: run it on the others"))
                    continue
                number = _number_of(peer[0], hosts, nodes)
                try:
                    channel = open_channel(sock, token, number, head=True)
                except (OSError, ChannelError) as error:
                    emit(Warned(f"a connection from {peer[0]} was refused: {error}"))
                    continue
                node = RemoteNode(number, hosts[number - 1].address, channel)
                if node.wait_for_hello(_HANDSHAKE_S) is None:
                    emit(Warned(f"{peer[0]} did not join: its token is wrong, or it has ended"))
                    node.close()
                    continue
                emit(Noted(f"host {node.name} joined from {peer[0]}", needed=True))
                nodes[number] = node
    cluster.nodes = tuple(nodes[each] for each in sorted(nodes))


def open_channel(sock: socket.socket, token: str, number: int, *, head: bool) -> Channel:
    """Return an authenticated channel over a new socket, which it takes, or closes at an error.

    Raises ``OSError`` or ``ChannelError``. A head does not wait long for the other end.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(sock.close)
        sock.setblocking(True)
        timeout_s = _HANDSHAKE_S if head else math.inf
        auth = authenticate(sock.fileno(), token, head=head, timeout_s=timeout_s)
        stack.pop_all()
    descriptor = sock.detach()
    return Channel(descriptor, descriptor, number, auth)


def listen(address: str, within: tuple[int, int] | None) -> socket.socket:
    """Return a socket that listens on any free port, or on the first one within a range.

    Raises ``LaunchError`` if there is none.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (0,) if within is None else range(within[0], within[1] + 1):
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family)
    span = "" if within is None else f" within run_on.port_range, {within[0]}-{within[1]}"
    raise LaunchError(f"no port of {address} is free{span}")


def _number_of(address: str, hosts: Sequence[Host], taken: Mapping[int, object]) -> int:
    """Return the number of the host that has an address, else the first that is free."""
    free = [number for number in range(1, len(hosts) + 1) if number not in taken]
    for number in free:
        with contextlib.suppress(OSError, UnicodeError):
            name = hosts[number - 1].address
            if address in {each[4][0] for each in socket.getaddrinfo(name, None)}:
                return number
    return free[0]


def _compare(
    own_devices: Sequence[Device], own_ranks: int, nodes: Sequence[RemoteNode]
) -> list[str]:
    """Return what a user should know before the training: how the hosts differ."""
    found = []
    this = socket.gethostname()
    for node in nodes:
        theirs = _describe(len(node.ranks), node.devices)
        if theirs != (ours := _describe(own_ranks, own_devices)):
            found.append(
                f"host {node.name} has {theirs} and {this} has {ours}: the slower one decides the "
                "speed"
            )
        if _source(own_devices) != _source(node.devices):
            for device in node.devices:
                device.is_metered = False
            found.append(
                f"the energy of host {node.name} is {_source(node.devices)} and that of {this} is "
                f"{_source(own_devices)}. They cannot be added, so the energy of the run is unknown"
            )
    return found


def _describe(ranks: int, devices: Sequence[Device]) -> str:
    counts = Counter(device.model for device in devices)
    models = ", ".join(f"{count} x {model}" for model, count in counts.items())
    return f"{ranks} {'process' if ranks == 1 else 'processes'} on {models}"


def _source(devices: Sequence[Device]) -> str:
    measured = all(each.energy_source.measured for each in devices)
    where = "its GPUs" if any(each.is_gpu for each in devices) else "its CPU"
    return f"{'measured' if measured else 'estimated'} on {where}"

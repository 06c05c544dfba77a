"""The hosts of one submit: starts a node launcher on each of the others, and compares the hosts."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.errors import LaunchError, UsageError
from zeusrun.launcher.nodes.channel import Channel, ChannelError, exchange_nonces
from zeusrun.launcher.nodes.network import find_endpoint, find_free_port, is_own_name, listen
from zeusrun.launcher.nodes.remote import RemoteNode
from zeusrun.launcher.nodes.server import versions
from zeusrun.launcher.processes.command import Place
from zeusrun.launcher.processes.fan_out import FanOutProcess
from zeusrun.launcher.queue.admission import check_not_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.energy.device import Device
    from zeusrun.jobfile.hosts import Host
    from zeusrun.jobfile.run_on_section import RunOn
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.nodes.network import Endpoint

TOKEN_VARIABLE = "ZEUSRUN_JOIN_TOKEN"  # noqa: S105 - its name
_HELLO_S = 60.0  # an ssh that has to start a file system on its way
_JOIN_S = 600.0
_HANDSHAKE_S = 10
_POLL_S = 0.2
_PINGS = 5  # within a heartbeat
_FORWARDED = ("ZEUSRUN_CPU_WATTS_PER_CORE",)  # settings of zeusrun itself that hosts share


@dataclass
class Cluster:
    """The other hosts of a submit, and where this one is reached. A context manager."""

    nodes: tuple[RemoteNode, ...]
    heartbeat_s: float
    ports: tuple[int, int] | None
    processes: Sequence[FanOutProcess] = ()
    own: Endpoint | None = None
    own_ranks: int = 0
    remarks: list[str] = field(default_factory=list)  # on how the hosts differ
    slots: Mapping[str, int | str] = field(default_factory=dict)  # by host, as nproc_per_node
    _ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Start to send heartbeats, and to watch for those of the nodes."""
        threading.Thread(target=self._beat, name="zeusrun-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        while not self._ended.wait(min(1.0, self.heartbeat_s / _PINGS)):
            for node in (each for each in self.nodes if each.lost is None):
                silent_s = time.monotonic() - node.heard_t
                if node.hello is not None and silent_s > self.heartbeat_s:
                    node.lose(
                        f"host {node.name} is lost: it has not answered for {silent_s:.0f} s "
                        "(run_on.heartbeat_s)"
                    )
                node.ping()

    def close(self) -> None:
        """End the node launchers, and wait for them."""
        self._ended.set()
        for node in self.nodes:
            node.leave()
        for node, process in zip(self.nodes, self.processes, strict=False):  # none for joins
            process.end(at_once=node.lost is not None)

    def places(self) -> list[Place]:
        """Return where the torchrun of each host is, with a port that is free now."""
        if self.own is None:
            raise RuntimeError("the hosts are not prepared")
        address = self.own.address
        port = find_free_port(address, self.ports)
        endpoint = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        places = [(self.own_ranks, self.own.nic, address)]
        places += [(len(node.ranks), node.nic, node.address) for node in self.nodes]
        return [
            Place(ranks, number, len(places), endpoint, nic, address)
            for number, (ranks, nic, address) in enumerate(places)
        ]


def open_cluster(
    spec: JobSpec, signals: Sequence[int], show: Callable[[str], None]
) -> tuple[Cluster, int | str]:
    """Connect to the other hosts of a job, and check that each can take part.

    Args:
        spec: The job; it has ``run_on``.
        signals: Those that have come; they end the wait.
        show: Shows a sentence to the user.

    Returns:
        The hosts, not prepared yet, and the number of processes on this one as in
        ``launch.nproc_per_node``.

    Raises:
        LaunchError: If a host cannot be reached, or has another version.
        UsageError: If this host is none of them.
    """
    run_on = spec.run_on
    if run_on is None:
        raise ValueError("the job runs on this host alone")
    hosts = run_on.host_list(spec.source.parent, spec.launch.nnodes)
    own = next((host for host in hosts if is_own_name(host.address)), None)
    if own is None:
        raise UsageError(
            f"this host, {socket.gethostname()}, is none of the job's hosts: "
            f"{', '.join(host.name for host in hosts)}. Submit on one of them, or add it to run_on"
        )
    others = [host for host in hosts if host is not own]
    joins = run_on.fan_out_command(own) is None
    if joins and any(section == "args" for section, _ in spec.secrets):
        raise UsageError(
            f"{spec.source}: args contain a secret, and fan_out: join has no encryption. Put the "
            "secret into env, and set it on each host; or use ssh"
        )
    per_node = spec.launch.nproc_per_node
    slots = {host.address: host.slots or per_node for host in hosts}
    cluster = Cluster((), run_on.heartbeat_s, run_on.ports, slots=slots)
    try:
        if joins:
            _wait_for_joins(cluster, spec, others, signals, show)
        else:
            _start_all(cluster, run_on, others)
        cluster.watch()
        for node in cluster.nodes:
            _check_hello(node, spec.name, signals)
    except BaseException:
        cluster.close()
        raise
    return cluster, slots[own.address]


def prepare(
    cluster: Cluster,
    spec: JobSpec,
    home: Path,
    own_devices: Sequence[Device],
    own_ranks: int,
) -> None:
    """Open the devices of all hosts, number the ranks, and note how the hosts differ.

    Raises ``ZeusrunError`` with the name of the host that cannot take part.
    """
    run_on = spec.run_on
    if run_on is None or not cluster.nodes:
        return
    cluster.own = find_endpoint(socket.gethostname(), run_on.nic, cluster.nodes[0].name)
    cluster.own_ranks = own_ranks
    env = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
    private = {name for section, name in spec.secrets if section == "env"}
    env |= {name: text for name, text in spec.env.items() if name not in private}
    calls = [
        node.ask(
            "prepare",
            host=node.name,
            nic=run_on.nic,
            head=cluster.own.address,
            heartbeat_s=run_on.heartbeat_s,
            home=str(home),
            env=env,
            nproc_per_node=cluster.slots[node.name],
        )
        for node in cluster.nodes
    ]
    first = own_ranks
    for node, call in zip(cluster.nodes, calls, strict=True):
        node.prepare(node.wait_for(call), first)
        first = node.ranks.stop
    cluster.remarks += _compare(own_devices, own_ranks, cluster.nodes)


def _start_all(cluster: Cluster, run_on: RunOn, hosts: Sequence[Host]) -> None:
    processes: list[FanOutProcess] = []
    cluster.processes = processes
    for number, host in enumerate(hosts, 1):
        process = FanOutProcess(run_on.fan_out_command(host) or [], number)
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
        raise LaunchError(f"{lost}. Check run_on: does `zeusrun doctor` run there by hand?")
    if (text := hello.get("error")) is not None:
        raise LaunchError(f"host {node.name}: {text}")
    for name, own in versions().items():
        if (other := hello["versions"].get(name)) != own:
            raise LaunchError(
                f"host {node.name} has {name} {other}, and this host {own}; install the same on all"
            )


def _wait_for_joins(
    cluster: Cluster,
    spec: JobSpec,
    hosts: Sequence[Host],
    signals: Sequence[int],
    show: Callable[[str], None],
) -> None:
    """Wait until ``zeusrun join`` was run on all other hosts; raises ``LaunchError``."""
    run_on = spec.run_on
    if not hosts or run_on is None:
        return
    endpoint = find_endpoint(socket.gethostname(), run_on.nic, hosts[0].address)
    token = os.environ.get(TOKEN_VARIABLE)
    port = find_free_port(endpoint.address, run_on.ports)
    nodes: dict[int, RemoteNode] = {}
    with listen(endpoint.address, port) as server:
        if token is None:
            token = secrets.token_urlsafe(16)
            given = f"{TOKEN_VARIABLE}={token} "
        else:
            given = ""
        names = ", ".join(host.name for host in hosts)
        show(f"waiting for {names}; run there: {given}zeusrun join {endpoint.address}:{port}")
        server.settimeout(_POLL_S)
        until_t = time.monotonic() + _JOIN_S
        while len(nodes) < len(hosts):
            check_not_ended(spec.name, signals)
            if time.monotonic() > until_t:
                missing = [host.name for n, host in enumerate(hosts, 1) if n not in nodes]
                raise LaunchError(
                    f"{', '.join(missing)} did not join within {_JOIN_S / 60:g} minutes"
                )
            with contextlib.suppress(TimeoutError):
                sock, peer = server.accept()
                number = _number_of(peer[0], hosts, nodes)
                try:
                    channel = _seal(sock, token, number)
                except (OSError, ChannelError) as error:
                    show(f"a connection from {peer[0]} was refused: {error}")
                    continue
                node = RemoteNode(number, hosts[number - 1].address, channel)
                if node.wait_for_hello(_HANDSHAKE_S) is None:
                    show(f"{peer[0]} did not join: {node.lost or 'it does not answer'}")
                    node.leave()
                    continue
                nodes[number] = node
                cluster.nodes = tuple(nodes[each] for each in sorted(nodes))


def _seal(sock: socket.socket, token: str, number: int) -> Channel:
    with contextlib.ExitStack() as stack:
        stack.callback(sock.close)
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _HANDSHAKE_S, 0))
        seal = exchange_nonces(sock.fileno(), token, head=True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        stack.pop_all()
    descriptor = sock.detach()
    return Channel(descriptor, descriptor, number, seal)


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
        if len(node.ranks) != own_ranks:
            found.append(
                f"host {node.name} has {len(node.ranks)} processes and {this} has {own_ranks}"
            )
        models = [_models(devices) for devices in (own_devices, node.devices)]
        if models[0] != models[1]:
            found.append(
                f"host {node.name} trains on {models[1]} and {this} on {models[0]}: the slower one "
                "decides the speed"
            )
        if _source(own_devices) != _source(node.devices):
            for device in node.devices:
                device.is_metered = False
            found.append(
                f"the energy of host {node.name} is {_source(node.devices)} and that of {this} is "
                f"{_source(own_devices)}. They cannot be added, so the energy of the run is unknown"
            )
    return found


def _models(devices: Sequence[Device]) -> str:
    counts = Counter(device.model for device in devices)
    return ", ".join(f"{count} x {model}" for model, count in counts.items())


def _source(devices: Sequence[Device]) -> str:
    measured = all(each.energy_source.measured for each in devices)
    where = "its GPUs" if any(each.is_gpu for each in devices) else "its CPU"
    return f"{'measured' if measured else 'estimated'} on {where}"

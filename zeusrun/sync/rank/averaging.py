"""Averages parameters instead of gradients: of all ranks, or of pairs that do not wait.

Synchronous averaging (SMA) and its switch to all-reduced gradients (AdaSGD) are KungFu's (Mai et
al., OSDI 2020); averaging in pairs is that of AD-PSGD (Lian et al., ICML 2018).
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import ipaddress
import os
import random
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

distributed: Any = torch.distributed

_PATIENCE_S = 10.0  # for a message
_PAUSE_S = 0.1  # after a rank could not be asked
_UNANSWERED_S = 30.0  # a user is warned whose rank has averaged with no other in this time
_UNANSWERED_STEPS = 50  # and in so many steps


class Parameters:
    """What is averaged of a model: the parameters that are trained, and its buffers of floats.

    They are added up in the widest of their types, and at least in 32 bits.

    Args:
        ddp: The model. Where it does not share its buffers, they are each rank's own.

    Attributes:
        trained: The parameters.
        dtype: In which they are added up.
    """

    def __init__(self, ddp: Any) -> None:
        ignored = ddp.parameters_to_ignore
        self.trained: list[Tensor] = [
            each
            for name, each in ddp.module.named_parameters()
            if each.requires_grad and name not in ignored
        ]
        buffers = ddp.modules_buffers if ddp.broadcast_buffers else []
        self._all = [*self.trained, *(each for each in buffers if each.is_floating_point())]
        self.dtype = functools.reduce(
            torch.promote_types, (each.dtype for each in self._all), torch.float32
        )

    def read(self) -> Tensor:
        """Return a copy of them, as one tensor on the first one's device."""
        device = self._all[0].device
        return torch.cat([each.detach().reshape(-1).to(device, self.dtype) for each in self._all])

    @torch.no_grad()
    def move(self, towards: Tensor, part: float) -> None:
        """Move them towards other values, by a part of the distance: 1 replaces them."""
        at = 0
        for each in self._all:
            other = towards[at : at + each.numel()].view_as(each)
            at += each.numel()
            if part < 1:
                ours = each.to(other)
                # The half of two infinities is no number.
                other = torch.where(ours == other, ours, ours.lerp(other, part))
            each.copy_(other)

    def average(self, group: Any, part: float = 1.0) -> None:
        """Move them towards their mean over the ranks; a collective call."""
        flat = self.read()
        distributed.all_reduce(flat, group=group)
        flat.div_(group.size())  # after the sum: buffers that never change stay as they are
        self.move(flat, part)


@torch.no_grad()
def share_states(optimizers: Iterable[Any], trained: Sequence[Tensor], group: Any) -> bool:
    """Replace the states of optimizers, such as momentum, by their mean; a collective call.

    States that are not all floats, as of a quantized optimizer, are those of the first rank. If the
    ranks have different ones, because one has taken no step yet, all are cleared: returns
    ``False``.
    """
    owners = [
        (each.state, parameter)
        for each in optimizers
        for parameter in trained
        if parameter in each.state
    ]
    states = [
        [each for _, each in sorted(state[parameter].items()) if torch.is_tensor(each)]
        for state, parameter in owners
    ]
    shapes = [[(str(each.dtype), tuple(each.shape)) for each in state] for state in states]
    of_all = gather_objects(shapes, group, trained[0].device)
    if any(other != shapes for other in of_all):
        for state, parameter in owners:
            del state[parameter]
        return False
    device, first = trained[0].device, distributed.get_global_rank(group, 0)
    for state in states:
        is_float = all(each.is_floating_point() for each in state)
        for each in state:
            shared = each.to(device)  # the number of steps may be on the host
            if is_float:
                shared = shared.div(group.size())
                distributed.all_reduce(shared, group=group)
            else:
                distributed.broadcast(shared, first, group=group)
            each.copy_(shared)
    return True


def share_scale(scaler: Any, group: Any) -> None:
    """Give all ranks the smallest scale: each has found infinite gradients of its own."""
    for number in (scaler._scale, scaler._growth_tracker):
        distributed.all_reduce(number, distributed.ReduceOp.MIN, group=group)


def gather_objects(mine: Any, group: Any, device: torch.device) -> list[Any]:
    """Return the object of each rank; NCCL would use the current GPU, which may be 0 on all."""
    found: list[Any] = [None] * group.size()
    on_gpu = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with on_gpu:
        distributed.all_gather_object(found, mine, group=group)
    return found


class Pairs:
    """Averages with one other rank after another, by the parameters that it had last.

    A thread of each rank serves its newest parameters; another one fetches those of the next rank
    while this one trains. So nobody waits for a slow rank. A rank takes part from its first step,
    for a checkpoint may be loaded before it. Only ranks of this model are answered, but as in gloo,
    nothing is encrypted.

    Args:
        parameters: Of the model.
        group: The ranks.
        warn: Called with a problem.

    Attributes:
        averages: Their number so far.
    """

    # The threads are daemons, and not joined at the end: a peer may take seconds to answer.

    def __init__(self, parameters: Parameters, group: Any, warn: Callable[[str], None]) -> None:
        self._parameters, self._warn = parameters, warn
        self._own = self._got = torch.empty(0)
        self._lock = threading.Lock()
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._error: Exception | None = None  # of a thread
        self.averages = self._steps = 0
        self._begun_t, self._problem = 0.0, "none has answered"
        size, rank = group.size(), group.rank()
        self._rank = rank
        address, self._listener = _listen(size)
        reachable = address, self._listener.getsockname()[1], secrets.token_bytes(16)
        known = gather_objects(reachable, group, parameters.trained[0].device)
        self._token: bytes = known[0][2]
        self._others = [each[:2] for number, each in enumerate(known) if number != rank]
        self._order = random.Random(rank)  # noqa: S311 - no secret

    def step(self) -> None:
        """Average with what has been fetched, if anything has, and offer the result."""
        if self._error is not None:
            raise self._error
        with self._lock:
            other, self._got = self._got, torch.empty(0)
        if other.numel():
            self._parameters.move(other.to(self._parameters.trained[0].device), 0.5)
            self.averages += 1
        values = self._parameters.read().cpu()
        with self._lock:
            self._own = values
        if not self._steps:
            self._begun_t = time.monotonic()
            for run in (self._serve, self._fetch):
                threading.Thread(
                    target=self._keep_error, args=(run,), name="zeusrun-pairs", daemon=True
                ).start()
        self._steps += 1
        if other.numel() or self._steps == 1:
            self._wanted.set()
        is_alone = not self.averages and self._steps >= _UNANSWERED_STEPS
        if is_alone and time.monotonic() > self._begun_t + _UNANSWERED_S:
            self._begun_t = float("inf")
            self._warn(
                f"method: pair: rank {self._rank} has not averaged with another rank yet: "
                f"{self._problem}"
            )

    def close(self) -> None:
        """End the threads."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._wanted.set()

    def _keep_error(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - ``step`` raises it
            self._error = error

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                with self._listener.accept()[0] as peer:
                    self._answer(peer)
            except OSError:  # the other rank has ended, or there are too many files
                self._ended.wait(_PAUSE_S)

    def _answer(self, peer: socket.socket) -> None:
        peer.settimeout(_PATIENCE_S)
        token = bytearray(len(self._token))
        _receive(peer, memoryview(token))
        if not hmac.compare_digest(token, self._token):
            return
        with self._lock:
            values = self._own
        content = _as_bytes(values)
        while content:  # ``sendall`` would have to send all in time
            content = content[peer.send(content) :]

    def _fetch(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._ended.is_set():
                return
            got = torch.empty_like(self._own)
            try:
                other = self._order.choice(self._others)
                with socket.create_connection(other, _PATIENCE_S) as peer:
                    peer.sendall(self._token)
                    _receive(peer, _as_bytes(got))
            except OSError as error:  # it has ended, or is too busy: another one
                self._problem = str(error)
                self._ended.wait(_PAUSE_S)
                self._wanted.set()
                continue
            with self._lock:
                self._got = got


def _as_bytes(tensor: Tensor) -> memoryview:
    content: Any = tensor.view(torch.uint8).numpy()
    return memoryview(content)


def _receive(peer: socket.socket, content: memoryview) -> None:
    while content:
        if not (count := peer.recv_into(content)):
            raise OSError("the other rank has ended")
        content = content[count:]


def _listen(backlog: int) -> tuple[str, socket.socket]:
    """Return by what the other ranks reach this one, and the socket."""
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return "127.0.0.1", socket.create_server(("127.0.0.1", 0), backlog=backlog)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    listener = socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)
    return _name_for_others(), listener


def _name_for_others() -> str:
    """Return the address from which this host reaches the master.

    On the master's own host, return ``MASTER_ADDR``: other hosts can resolve it, but this one may
    resolve it to 127.0.1.1.
    """
    master = os.environ["MASTER_ADDR"]
    for family, kind, *_, at in socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.connect(at)  # sends nothing
            address, peer = probe.getsockname()[0], probe.getpeername()[0]
            is_master = address == peer or ipaddress.ip_address(address).is_loopback
            return master if is_master else str(address)
    return master

"""Averages parameters instead of gradients: of all ranks, or of pairs that do not wait.

Synchronous averaging (SMA) and its switch to all-reduced gradients (AdaSGD) are KungFu's (Mai et
al., OSDI 2020); averaging in pairs is that of AD-PSGD (Lian et al., ICML 2018).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from torch import Tensor

distributed: Any = torch.distributed

_PATIENCE_S = 10.0
_PAUSE_S = 0.1  # after a rank could not be asked


class Parameters:
    """The parameters of a model that are trained, as one tensor on the host or the GPU.

    Those of several types are converted to the first one's on the way.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._own = [each for each in module.parameters() if each.requires_grad]

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._own[0].device

    def read(self) -> Tensor:
        """Return a copy of them."""
        kind = self._own[0].dtype
        return torch.cat([each.detach().reshape(-1).to(kind) for each in self._own])

    @torch.no_grad()
    def move(self, towards: Tensor, part: float) -> None:
        """Move them towards other values, by a part of the distance: 1 replaces them."""
        at = 0
        for each in self._own:
            other = towards[at : at + each.numel()].view_as(each).to(each)
            each.lerp_(other, part) if part < 1 else each.copy_(other)
            at += each.numel()


def average(parameters: Parameters, group: Any, part: float = 1.0) -> None:
    """Move the parameters towards their mean over the ranks."""
    flat = parameters.read()
    flat.div_(group.size())
    distributed.all_reduce(flat, group=group)
    parameters.move(flat, part)


class Pairs:
    """Averages with one other rank after another, by the parameters that it had last.

    A thread of each rank serves its newest parameters; another one fetches those of the next rank
    while this one trains. So nobody waits for a slow rank. As in gloo, nothing is authenticated or
    encrypted.

    Args:
        parameters: Of the model.
        group: The ranks.
        seed: Of the order in which the others are asked.
    """

    def __init__(self, parameters: Parameters, group: Any, seed: int = 0) -> None:
        self._parameters = parameters
        self._own = parameters.read().cpu()
        self._got: Tensor | None = None
        self._lock, self._wanted = threading.Lock(), threading.Event()
        self.count = 0  # of averages so far
        self._ended = False
        size, rank = group.size(), group.rank()
        listener = socket.create_server((_own_address(), 0), backlog=size)
        addresses: list[Any] = [None] * size
        distributed.all_gather_object(addresses, listener.getsockname()[:2], group=group)
        self._others = [each for number, each in enumerate(addresses) if number != rank]
        self._order = random.Random(seed * size + rank)  # noqa: S311 - no secret
        for run in (self._serve, self._fetch):
            args = (listener,) if run == self._serve else ()
            threading.Thread(target=run, args=args, name="zeusrun-pairs", daemon=True).start()
        self._wanted.set()

    def step(self, _number: int) -> None:
        """Average with what has been fetched, if anything has, and offer the result."""
        with self._lock:
            other, self._got = self._got, None
        if other is not None:
            self._parameters.move(other, 0.5)
            self.count += 1
        own = self._parameters.read().cpu()
        with self._lock:
            self._own = own
        if other is not None:
            self._wanted.set()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError), listener.accept()[0] as peer:
                with self._lock:
                    own = self._own
                peer.sendall(_as_bytes(own))

    def _fetch(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            got = torch.empty_like(self._own)
            try:
                with socket.create_connection(
                    self._order.choice(self._others), _PATIENCE_S
                ) as peer:
                    _receive(peer, _as_bytes(got))
            except OSError:  # it has ended, or is too busy: another one
                time.sleep(_PAUSE_S)
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


def _own_address() -> str:
    """Return the address at which the other ranks reach this one."""
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 1))  # sends nothing
        return str(probe.getsockname()[0])

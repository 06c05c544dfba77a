"""The ways in which the ranks of one model can agree, and which of them a job file asks for.

Gradients are averaged in buckets: compressed, or along KungFu's topologies. A function that does so
takes a bucket of a ``DistributedDataParallel`` and returns a future of its mean, as a communication
hook does.
"""

from __future__ import annotations

import collections
import functools
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from zeusrun.gradients.rank.ddp import average
from zeusrun.sync.rank.averaging import Pairs, Parameters
from zeusrun.sync.rank.topologies import build_trees, spanning_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future

    from zeusrun.sync.rank.topologies import Tree

    Reduce = Callable[[GradBucket], Future[Tensor]]

distributed: Any = torch.distributed

_TAG = 0x5A00  # of our messages; a script that sends some of its own has others
_PROBES = 5

SLOW_EVERY = 8
"""With ``on_slow: compress``: passes between two averages, where 16 bits are too many."""


class Way(NamedTuple):
    """One way in which ranks agree.

    Attributes:
        name: For people.
        reduce: Returns a future of what becomes the gradient on all ranks.
        is_mean: Whether that is the mean over the ranks.
        average: Called between two steps, with whether an epoch has ended; each rank has parameters
            of its own. Returns whether all of them are equal now. ``None``: they always are.
        averages_epochs: Whether it also averages at the end of an epoch.
    """

    name: str
    reduce: Reduce
    is_mean: bool = True
    average: Callable[[bool], bool] | None = None
    averages_epochs: bool = False


class Ways:
    """The ways of one ``DistributedDataParallel``.

    Args:
        ddp: The model.
        given: The section ``sync``.
        warn: Called with a problem of this rank.

    Attributes:
        group: The ranks.
        parameters: What is averaged.
        averages: Whether the ranks may come to have parameters of their own.

    Raises:
        RuntimeError: If the model cannot agree so.
    """

    def __init__(self, ddp: Any, given: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        self._given, self.group, self._warn = given, ddp.process_group, warn
        self._ddp = weakref.ref(ddp)  # ways live as long as it does, and must not keep it
        self.parameters = Parameters(ddp)
        self.averages = bool(given["every"] or given["method"] or given["on_slow"] == "compress")
        if self.averages and self.parameters.dtype.is_complex:
            raise RuntimeError(
                "zeusrun: the model has complex parameters, which cannot be averaged; take "
                "'every', 'method' or 'on_slow' out of sync in the job file"
            )
        for key in ("topology", "on_slow"):
            if given[key] not in {None, "keep"} and not _is_on_cpus(ddp):
                raise RuntimeError(
                    f"zeusrun: sync.{key} needs a model on CPUs and the backend gloo; remove "
                    f"{key!r} from sync in the job file"
                )

    def planned(self) -> list[tuple[int, Way]]:
        """Return the ways of the job file, each with the passes before it; a collective call."""
        given, group = self._given, self.group
        plain = Way("all-reduce", all_reduce(group))
        if given["every"] is not None:
            return [(0, plain), (given["warmup"], self._every(given["every"]))]
        if given["method"] == "sma":
            after = [] if given["switch_at"] is None else [(given["switch_at"], plain)]
            return [(0, self._sma(given["alpha"])), *after]
        if given["method"] == "pair":
            return [(0, self._pair())]
        if given["topology"] is not None:
            return [(0, self._along(given["topology"]))]
        if given["compress"] == "powersgd":
            powers = power_sgd(group, given["rank"], given["warmup"])
            return [(0, Way("powersgd", powers, is_mean=False))]
        return [(0, plain if given["compress"] == "none" else self._compressed(given["compress"]))]

    def fallbacks(self) -> list[Callable[[], Way]]:
        """Return what builds the ways to which the ranks may vote to change; a collective call."""
        given = self._given
        if given["on_slow"] == "compress":
            every = functools.partial(self._every, SLOW_EVERY)
            return [functools.partial(self._compressed, "bf16"), every]
        if given["vote"]:
            plain = Way("all-reduce", all_reduce(self.group))
            return [functools.partial(self._along, "auto"), lambda: plain]
        return []

    def gather(self, numbers: list[float]) -> list[list[float]]:
        """Return the numbers of each rank; a collective call."""
        device = self.parameters.trained[0].device
        mine = torch.tensor(numbers, dtype=torch.float64, device=device)
        rows = [torch.empty_like(mine) for _ in range(self.group.size())]
        distributed.all_gather(rows, mine, group=self.group)
        return torch.stack(rows).tolist()

    def _along(self, topology: str) -> Way:
        return Way(topology, along(topology, self.group))

    def _compressed(self, kind: str) -> Way:
        return Way(kind, compressed(self.group, kind))

    def _every(self, every: int) -> Way:
        parameters, group, passes = self.parameters, self.group, 0

        def average(ends: bool) -> bool:
            nonlocal passes
            passes += 1
            if is_due := ends or passes >= every:
                passes = 0
                parameters.average(group)
            return is_due

        return Way(f"average every {every}", local, False, average, averages_epochs=True)

    def _sma(self, alpha: float) -> Way:
        parameters, group = self.parameters, self.group

        def average(_ends: bool) -> bool:
            parameters.average(group, alpha)
            return False

        return Way("sma", local, False, average)

    def _pair(self) -> Way:
        pairs = Pairs(self.parameters, self.group, self._warn)
        weakref.finalize(self._ddp(), pairs.close)

        def average(_ends: bool) -> bool:
            pairs.step()
            return False

        return Way("pair", local, False, average)


def _is_on_cpus(ddp: Any) -> bool:
    cpu = torch.device("cpu")
    try:
        name = ddp.process_group._get_backend(cpu).name()
    except RuntimeError:  # it has none for CPUs
        return False
    return name == "gloo" and all(each.device == cpu for each in ddp.parameters())


def done(tensor: Tensor) -> Future[Tensor]:
    """Return a future that is complete."""
    future: Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def local(bucket: GradBucket) -> Future[Tensor]:
    """Keep the gradients of this rank."""
    return done(bucket.buffer())


def all_reduce(group: Any) -> Reduce:
    """Average with the backend's all-reduce."""
    return lambda bucket: average(bucket.buffer(), group)


def compressed(group: Any, kind: str) -> Reduce:
    """Average numbers of 16 bits, ``bf16`` or ``fp16``; torch's own hook for bf16 refuses gloo."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16

    def reduce(bucket: GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        future = average(buffer.to(dtype), group)
        return future.then(lambda small: buffer.copy_(small.value()))

    return reduce


def power_sgd(group: Any, rank: int, warmup: int) -> Reduce:
    """Average products of two small matrices: torch's PowerSGD (Vogels et al., NeurIPS 2019).

    It waits for each bucket. torch's hook all-reduces in callbacks; with several buckets on gloo,
    their order would differ from rank to rank.
    """
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=rank, start_powerSGD_iter=warmup
    )
    return lambda bucket: done(powerSGD_hook.powerSGD_hook(state, bucket).wait())


class Along:
    """Averages along trees, or a ring, by messages of gloo.

    Args:
        group: Of the model; on CPUs.
        trees: One for each piece of the gradients; empty for a ring of all ranks.
    """

    def __init__(self, group: Any, trees: Sequence[Tree]) -> None:
        self._group, self._rank, self._size = group, group.rank(), group.size()
        self._parents = [tree[self._rank] for tree in trees]
        self._children = [
            [rank for rank, parent in enumerate(tree) if parent == self._rank] for tree in trees
        ]

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket; the messages are over when it returns."""
        buffer = bucket.buffer()
        buffer.div_(self._size)
        if self._parents:
            self._along_trees(buffer)
        else:
            self._along_ring(buffer)
        return done(buffer)

    def _along_trees(self, buffer: Tensor) -> None:
        pieces = buffer.tensor_split(len(self._parents))
        # All receives are posted first, so that no rank waits for one that waits for it.
        ups = [
            [
                (received := torch.empty_like(piece), self._receive(received, rank, k))
                for rank in children
            ]
            for k, (piece, children) in enumerate(zip(pieces, self._children, strict=True))
        ]
        works, downs = [], {}
        for k, (piece, parent) in enumerate(zip(pieces, self._parents, strict=True)):
            for part, work in ups[k]:
                work.wait()
                piece.add_(part)
            if parent is not None:
                works.append(self._send(piece.clone(), parent, k))
                downs[k] = self._receive(piece, parent, k)
        for k, piece in enumerate(pieces):
            if k in downs:
                downs[k].wait()
            works += [self._send(piece, rank, k) for rank in self._children[k]]
        for work in works:
            work.wait()

    def _along_ring(self, buffer: Tensor) -> None:
        """Add up each piece once around the ring, then pass the sums on once around it."""
        size, rank, pieces = self._size, self._rank, buffer.tensor_split(self._size)
        after, before = (rank + 1) % size, (rank - 1) % size
        for turn in range(2 * (size - 1)):
            sent, got = pieces[(rank - turn) % size], pieces[(rank - turn - 1) % size]
            part = torch.empty_like(got)
            work, receipt = self._send(sent, after, turn), self._receive(part, before, turn)
            receipt.wait()
            work.wait()
            if turn < size - 1:
                got.add_(part)
            else:
                got.copy_(part)

    def _send(self, tensor: Tensor, rank: int, tag: int) -> Any:
        return self._group.send([tensor], rank, _TAG + tag) if tensor.numel() else done(tensor)

    def _receive(self, tensor: Tensor, rank: int, tag: int) -> Any:
        return self._group.recv([tensor], rank, _TAG + tag) if tensor.numel() else done(tensor)


def along(name: str, group: Any) -> Along:
    """Return the average along a topology; ``auto`` measures the latencies first."""
    if name == "ring":
        return Along(group, [])
    if name == "auto":
        return Along(group, [spanning_tree(measure_latencies(group))])
    hosts: list[Any] = [None] * group.size()
    distributed.all_gather_object(hosts, os.environ.get("GROUP_RANK", "0"), group=group)
    counts = collections.Counter(hosts)  # in the order of the ranks
    return Along(group, build_trees(name, list(counts.values())))


def measure_latencies(group: Any) -> list[list[float]]:
    """Return the least seconds of a message and its answer between each two ranks; on all ranks."""
    size, rank = group.size(), group.rank()
    mine = torch.zeros(size, dtype=torch.float64)
    byte = torch.zeros(1)
    for one in range(size):
        for other in range(one + 1, size):
            if rank not in {one, other}:
                continue
            peer, times = one + other - rank, []
            for _ in range(_PROBES):
                begun_t = time.perf_counter()
                for sends in (rank == one, rank == other):
                    move = group.send if sends else group.recv
                    move([byte], peer, _TAG).wait()
                times.append(time.perf_counter() - begun_t)
            mine[peer] = min(times)
    rows = [torch.empty_like(mine) for _ in range(size)]
    distributed.all_gather(rows, mine, group=group)
    measured = torch.stack(rows)
    return torch.maximum(measured, measured.T).tolist()

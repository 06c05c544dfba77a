"""Process groups of an elastic training: one over gloo for each generation, and one of an echo.

A newcomer runs the script up to its training while the others train. Its collectives go to an
*echo* until it joins them: each returns as if every other rank had passed the same values. So
``DistributedDataParallel`` can be built, and its parameters are replaced when it joins.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch.futures import Future

if TYPE_CHECKING:
    from torch import Tensor

    from zeusrun.elastic.rank.board import Board, Generation

distributed: Any = torch.distributed  # some of what is needed has no types

_ECHO = "zeusrun_echo"
_POLL_S = 0.001
_CONNECT = timedelta(seconds=10)  # a member that dies while the others connect costs them so much
COLLECTIVE = timedelta(minutes=30)  # of gloo


def _done(result: object) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]


class _Echo(distributed.ProcessGroup):  # type: ignore[misc]
    """A process group whose other ranks have the same values as this one."""

    def getBackendName(self) -> str:  # noqa: N802 - of torch
        return _ECHO

    def barrier(self, *_: Any, **__: Any) -> Any:
        return _done([])

    def allreduce(self, tensors: Any, options: Any = None, *_: Any) -> Any:
        if getattr(options, "reduceOp", None) == distributed.ReduceOp.SUM:
            for each in tensors:
                each.mul_(self.size())
        return _done(tensors)

    allreduce_coalesced = reduce = allreduce

    def broadcast(self, tensors: Any, *_: Any) -> Any:
        return _done(tensors)

    def allgather(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        for each, value in zip(outputs, inputs, strict=True):
            for output in each:
                output.copy_(value)
        return _done(outputs)

    def _allgather_base(self, output: Tensor, value: Tensor, *_: Any) -> Any:
        output.view(self.size(), -1).copy_(value.reshape(1, -1).expand(self.size(), -1))
        return _done([output])

    all_gather_single = _allgather_base  # since torch 2.13

    def gather(self, outputs: Any, inputs: Any, *_: Any) -> Any:
        return self.allgather(outputs, inputs) if outputs else _done(outputs)

    def scatter(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "zeusrun: before a rank has joined the training of the others, its script can "
            "broadcast, reduce, gather and wait at a barrier, but not scatter, exchange or send"
        )

    reduce_scatter = _reduce_scatter_base = alltoall = alltoall_base = send = recv = scatter


def open_echo(rank: int, size: int) -> None:
    """Make the default process group of a newcomer that will have a rank among others."""
    if not hasattr(distributed.Backend, _ECHO.upper()):
        distributed.Backend.register_backend(
            _ECHO, lambda _, shape, all_, __: _Echo(shape, all_), devices=["cpu", "cuda"]
        )
    store = distributed.HashStore()
    distributed.init_process_group(_ECHO, store=store, rank=rank, world_size=size)


def open_store(board: Board, generation: Generation, rank: int) -> Any:
    """Return the store by which the members of a generation find each other.

    On one host, it is a new file; with several, rank 0 serves it. Raises an error if rank 0 is
    gone, or another generation has followed.
    """
    if not board.is_shared:
        file = board.folder / f"{generation.number}.store"
        return distributed.FileStore(str(file), len(generation.members))
    place, number = board.place(generation.members[0]), generation.number
    where = {"wait_for_workers": False, "timeout": _CONNECT}
    if rank == 0:
        store = distributed.TCPStore(generation.address, 0, is_master=True, **where)
        place.store = number << 16 | store.port
        return store
    while place.store >> 16 != number:
        if board.newest != number:
            raise RuntimeError("another generation has followed")
        time.sleep(_POLL_S)
    return distributed.TCPStore(generation.address, place.store & 0xFFFF, is_master=False, **where)


def open_group(store: Any, rank: int, size: int) -> None:
    """Make the default process group of a generation; raises an error if a member is gone.

    Args:
        store: By which the members find each other.
        rank: Of this process.
        size: The number of members.
    """
    global _connections, _group  # noqa: PLW0603 - one default process group for the process
    before = _sockets()
    store.set_timeout(_CONNECT)
    # A group that could not be made has counted, too; its number is part of the keys in the store.
    distributed.distributed_c10d._world.group_count = 0
    try:
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=_CONNECT
        )
    finally:
        _connections = _sockets() - before
    _group = distributed.group.WORLD
    _group._get_backend(torch.device("cpu"))._set_default_timeout(COLLECTIVE)


def close_group() -> None:
    """Destroy the default process group, also if a member is gone.

    Whoever waits for this process gets an error. The group itself would close its connections only
    with the last object that refers to it, such as a ``DistributedDataParallel``.
    """
    close_connections()
    if distributed.is_initialized():
        with contextlib.suppress(Exception):
            distributed.destroy_process_group()


def close_connections() -> None:
    """Close those of the default process group: whatever waits for them gets an error."""
    for descriptor, _ in _connections & _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                connection.shutdown(socket.SHUT_RDWR)


_connections: set[tuple[int, int]] = set()
# Keeps a group until the next one exists. If a ``DistributedDataParallel`` had the last reference,
# the end of the group would wait for gloo's threads with the GIL held. A thread that still has to
# free a tensor needs the GIL, so the rank would hang (torch 2.13).
_group: Any = None


def _sockets() -> set[tuple[int, int]]:
    """Return descriptor and inode of each socket of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - fewer objects
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add((int(name), status.st_ino))
    return found


def replace_group(model: Any) -> None:
    """Let a ``DistributedDataParallel`` use the present process group.

    Its buckets are laid out anew, on all ranks in the same order: otherwise the first all-reduce
    would add gradients of one parameter to those of another one, because a newcomer has not yet
    ordered its buckets by their first backward pass, as the others have. The methods are private
    (docs/elastic.md says with which torch they were tried). Without one, the object is built again.
    """
    reducer = model.reducer
    try:
        model._update_process_group(distributed.group.WORLD)
        reducer._push_all_rebuilt_params()
        reducer._rebuild_buckets()
        reducer._reset_state()
    except AttributeError:
        model.__init__(model.module, **model._zeusrun_arguments)

"""What a rank passes on to a newcomer: parameters, optimizers, schedulers, random numbers."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from zeusrun.elastic.rank.groups import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from zeusrun.elastic.rank.tracked import Tracked

distributed: Any = torch.distributed
is_initialized: Any = torch.cuda.is_initialized  # it has no types


def send_state(tracked: Tracked, more: object, behind: Sequence[int]) -> None:
    """Send the state of this rank to those that are behind: parameters, other states, and more."""
    content = io.BytesIO()
    packer = _Packer(content, protocol=5)
    packer.dump(([each.state_dict() for each in tracked.others], more))
    packed = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    size = torch.tensor([len(packed)])
    for tensor in (size, packed, *packer.tensors, *tracked.tensors()):
        host_tensor = _as_bytes(tensor.detach().resolve_conj().resolve_neg().cpu().contiguous())
        for work in [distributed.isend(host_tensor, rank) for rank in behind]:
            work.wait(COLLECTIVE)


def find_obstacle(tracked: Tracked) -> str | None:
    """Return why the ranks of a script cannot change; ``None`` if they can."""
    groups = distributed.distributed_c10d._world.pg_map
    if not groups or not tracked.models:
        return "the script does not train a DistributedDataParallel on each number of ranks"
    if len(groups) > 1:
        return "the script has made process groups of its own (new_group)"
    for each in tracked.others:
        try:
            _Packer(io.BytesIO(), protocol=5).dump(each.state_dict())
        except Exception as error:  # noqa: BLE001 - of the class of a user
            return f"the state of {type(each).__name__} cannot be sent to a new rank ({error})"
    return None


def receive_state(tracked: Tracked, source: int) -> tuple[list[Any], Any]:
    """Take over the parameters that a rank sends; return its other states, and ``more``."""
    size = torch.zeros(1, dtype=torch.int64)
    _receive(size, source)
    packed = torch.empty(int(size), dtype=torch.uint8)
    _receive(packed, source)
    unpacker = _Unpacker(io.BytesIO(packed.numpy().tobytes()))
    states, more = unpacker.load()
    for tensor in unpacker.tensors.values():
        _receive(tensor, source)
    for tensor in tracked.tensors():
        target = tensor.detach()
        dense = target.cpu().contiguous()  # gloo neither sends nor receives on a GPU
        _receive(dense, source)
        if dense is not target:
            target.copy_(dense)
    return states, more


class _Packer(pickle.Pickler):
    """Pickles anything but its tensors, which follow it as they are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, owned: object) -> tuple[int, torch.Size, torch.dtype] | None:
        if type(owned) is not torch.Tensor or owned.layout != torch.strided:
            return None
        if id(owned) not in self._numbers:
            self._numbers[id(owned)] = len(self.tensors)
            self.tensors.append(owned)
        return self._numbers[id(owned)], owned.shape, owned.dtype


class _Unpacker(pickle.Unpickler):
    """Creates a tensor for each that is to follow."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.tensors: dict[int, Tensor] = {}

    def persistent_load(self, number: tuple[int, torch.Size, torch.dtype]) -> Tensor:
        place, shape, dtype = number
        return self.tensors.setdefault(place, torch.empty(shape, dtype=dtype))


def _receive(tensor: Tensor, source: int) -> None:
    distributed.irecv(_as_bytes(tensor), source).wait(COLLECTIVE)


def _as_bytes(tensor: Tensor) -> Tensor:
    """Return a dense tensor as bytes, which gloo sends whatever they are."""
    return tensor.view(-1).view(torch.uint8)


def random_states() -> tuple[Any, ...]:
    """Return the states of the random generators of torch, Python, NumPy and the present GPU."""
    numpy = sys.modules.get("numpy.random")
    of_gpu = torch.cuda.get_rng_state() if is_initialized() else None
    of_numpy = numpy.get_state() if numpy else None
    return torch.get_rng_state(), random.getstate(), of_numpy, of_gpu


def set_random_states(states: tuple[Any, ...]) -> None:
    """Continue with the random numbers of another rank."""
    of_torch, of_python, of_numpy, of_gpu = states
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and of_numpy is not None:
        numpy.set_state(of_numpy)
    if of_gpu is not None and is_initialized():
        torch.cuda.set_rng_state(of_gpu)


def digest(states: tuple[Any, ...]) -> int:
    """Return a number that is the same on two ranks if their random states are."""
    of_torch, of_python, *_ = states
    content = bytes(of_torch.numpy()) + repr(of_python).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big")

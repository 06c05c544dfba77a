"""What a rank passes on to a newcomer: parameters, optimizers, schedulers, random numbers."""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from zeusrun.worker.elastic.groups import broadcast_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from zeusrun.worker.elastic.tracked import Tracked


@dataclass(frozen=True)
class _Place:
    """Where a tensor was in a structure that is sent without its tensors."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def send_state(tracked: Tracked, more: object, source: int) -> None:
    """Send the state of this rank, the ``source``, to all others; ``more``: anything."""
    tensors: list[Tensor] = []
    states = [_take_out(each.state_dict(), tensors) for each in tracked.others]
    distributed.broadcast_object_list([states, more], source)
    broadcast_tensors([*tracked.tensors(), *tensors], source)


def receive_state(tracked: Tracked, source: int) -> tuple[list[Any], Any]:
    """Receive the parameters of the ``source``, in place; return the other states, and more."""
    received: list[Any] = [None, None]
    distributed.broadcast_object_list(received, source)
    states, more = received
    places = sorted(_places(states), key=lambda place: place.number)
    tensors = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in places]
    broadcast_tensors([*tracked.tensors(), *tensors], source)
    return _put_back(states, tensors), more


def _take_out(value: Any, tensors: list[Tensor]) -> Any:
    """Return a structure with a ``_Place`` for each tensor, which is added to ``tensors``."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype, str(value.device))
    if isinstance(value, dict):
        return {key: _take_out(each, tensors) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_take_out(each, tensors) for each in value)
    return value


def _put_back(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _put_back(each, tensors) for key, each in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_put_back(each, tensors) for each in value)
    return value


def _places(value: Any) -> Iterator[_Place]:
    if isinstance(value, _Place):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _places(each)


def random_states() -> tuple[Any, ...]:
    """Return the states of the random generators of torch, Python and NumPy."""
    numpy = sys.modules.get("numpy.random")
    return torch.get_rng_state(), random.getstate(), numpy.get_state() if numpy else None


def set_random_states(states: tuple[Any, ...]) -> None:
    """Continue with the random numbers of another rank."""
    of_torch, of_python, of_numpy = states
    torch.set_rng_state(of_torch)
    random.setstate(of_python)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and of_numpy is not None:
        numpy.set_state(of_numpy)


def digest(states: tuple[Any, ...]) -> int:
    """Return a number that is the same on two ranks if their random states are."""
    of_torch, of_python, _ = states
    content = bytes(of_torch.numpy()) + repr(of_python).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=7).digest(), "big")

"""What a rank passes on to a newcomer: parameters, optimizers, schedulers, random numbers."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from zeusrun.worker.elastic.groups import broadcast_tensors

if TYPE_CHECKING:
    from zeusrun.worker.elastic.tracked import Tracked


def share_state(tracked: Tracked, more: object, source: int) -> tuple[list[Any], Any]:
    """Give all ranks the parameters of the ``source``; return its other states, and ``more``."""
    objects: list[Any] = [None, None]
    if distributed.get_rank() == source:
        objects = [[each.state_dict() for each in tracked.others], more]
    distributed.broadcast_object_list(objects, source)
    broadcast_tensors(tracked.tensors(), source)
    return objects[0], objects[1]


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

"""Squared norms of gradients and their sums, on the device that has them. Needs torch."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROW = 1 << 16  # elements; a longer sum of squares in float32 has an error of 1e-4


def squared_norm(flat: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a tensor of shape ``(n,)`` as one float64, without a copy."""
    if flat.numel() <= _ROW:
        norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float32)
        return norm.double().square_()
    whole = flat.numel() // _ROW * _ROW
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=torch.float32)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=torch.float32)
    total: torch.Tensor = norms.double().square().sum() + rest.double().square()
    return total


def as_number(value: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a number as one float64 on the device of a tensor, without waiting for the device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(like.device, torch.float64, non_blocking=True).reshape(())
    return like.new_full((), value, dtype=torch.float64)  # torch.tensor would copy, and wait


def add_up(parts: Sequence[Sequence[float | torch.Tensor]], like: torch.Tensor) -> torch.Tensor:
    """Return the sum of each part, in float64 on the device of a tensor, without waiting for it."""
    if like.is_cpu:  # there is nothing to wait for, and numbers are faster than tensors of one
        sums = [sum(map(float, part)) for part in parts]
        return torch.tensor(sums, dtype=torch.float64)
    zero = as_number(0, like)
    return torch.stack([sum((as_number(x, like) for x in part), zero) for part in parts])


class DeferredNumbers:
    """Passes on tensors as numbers, in their order, once the device has computed them.

    Args:
        receive: Called with the numbers of one step and the extra values given with them.
    """

    def __init__(self, receive: Callable[..., None]) -> None:
        self._receive = receive
        self._queue: deque[tuple[torch.Tensor, Any, tuple[Any, ...]]] = deque()

    def add(self, numbers: torch.Tensor, *extra: Any) -> None:
        """Queue a tensor of shape ``(n,)``, and pass on what is complete."""
        event = None
        host = numbers.detach().to("cpu", non_blocking=True)
        if numbers.is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._queue.append((host, event, extra))
        self.flush(wait=numbers.device.type not in {"cpu", "cuda"})

    def flush(self, *, wait: bool = True) -> None:
        """Pass on what is complete; with ``wait``, everything."""
        while self._queue:
            host, event, extra = self._queue[0]
            if event is not None and not event.query():
                if not wait:
                    return
                event.synchronize()
            self._queue.popleft()
            self._receive(host.tolist(), *extra)

"""Numbers that a device still computes, read without making it wait."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Later:
    """Passes numbers on, in their order, once the device has them.

    Args:
        take: Gets the numbers of one step, and what was given with them.
    """

    def __init__(self, take: Callable[..., None]) -> None:
        self._take = take
        self._waiting: deque[tuple[Tensor, Any, tuple[Any, ...]]] = deque()

    def add(self, numbers: Tensor, *rest: Any) -> None:
        """Queue a tensor of shape ``(n,)``, and pass on what is complete."""
        event = None
        host = numbers.detach().to("cpu", non_blocking=True)
        if numbers.is_cuda:
            import torch  # noqa: PLC0415 - the script has imported it

            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._waiting.append((host, event, rest))
        self.flush(wait=numbers.device.type not in {"cpu", "cuda"})

    def flush(self, *, wait: bool = True) -> None:
        """Pass on what is complete, or everything."""
        while self._waiting:
            host, event, rest = self._waiting[0]
            if event is not None and not event.query():
                if not wait:
                    return
                event.synchronize()
            self._waiting.popleft()
            self._take(host.tolist(), *rest)

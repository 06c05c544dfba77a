"""Reads numbers from a device without making it wait."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class DeferredNumbers:
    """Passes on tensors as numbers, in their order, once the device has computed them.

    Args:
        receive: Called with the numbers of one step and the extra values given with them.
    """

    def __init__(self, receive: Callable[..., None]) -> None:
        self._receive = receive
        self._queue: deque[tuple[Tensor, Any, tuple[Any, ...]]] = deque()

    def add(self, numbers: Tensor, *extra: Any) -> None:
        """Queue a tensor of shape ``(n,)``, and pass on what is complete."""
        event = None
        host = numbers.detach().to("cpu", non_blocking=True)
        if numbers.is_cuda:
            import torch  # noqa: PLC0415 - the script has imported it

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

"""The factors by which Adam scales gradients, in the layout of DDP's buckets. Needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch._C._distributed_c10d import GradBucket

_REFRESH = 10  # measured steps with the same factors


class AdamFactors:
    """Computes the factors of each bucket, and keeps them for some steps.

    Attributes:
        optimizer: The one that has stepped last for this model; ``None`` before the first step.
    """

    def __init__(self) -> None:
        self.optimizer: Any = None
        self._factors: dict[int, Tensor] = {}  # by bucket
        self._uses = 0

    def begin_step(self) -> bool:
        """Drop old factors; return whether the optimizer has Adam's state."""
        if self.optimizer is None or not _has_adam_state(self.optimizer):
            return False
        if self._uses % _REFRESH == 0:
            self._factors.clear()
        self._uses += 1
        return True

    def find(self, bucket: GradBucket) -> Tensor | None:
        """Return by what Adam multiplies each gradient of a bucket; ``None`` if it is not known."""
        index, buffer = bucket.index(), bucket.buffer()
        known = self._factors.get(index)
        if known is not None and known.numel() == buffer.numel():
            return known
        factors = torch.zeros_like(buffer)
        groups = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            state = self.optimizer.state.get(parameter) or {}
            group = groups.get(id(parameter))
            if group is None or "exp_avg_sq" not in state:
                return None
            step = torch.as_tensor(state["step"], dtype=torch.float64)  # may be on the device
            beta2 = group["betas"][1]
            corrected = state["exp_avg_sq"] / (1 - beta2**step)
            # Adam adds the square of the new gradient before it divides. That of an average element
            # stands in for it; otherwise an element without gradients so far is divided by eps.
            corrected += corrected.mean() * ((1 - beta2) / (1 - beta2 ** (step + 1)))
            offset = gradient.storage_offset() - buffer.storage_offset()
            part = factors.as_strided(gradient.size(), gradient.stride(), offset)
            part.copy_(corrected.sqrt_().add_(group["eps"]).reciprocal_())
        self._factors[index] = factors
        return factors


def _has_adam_state(optimizer: Any) -> bool:
    state = next(iter(optimizer.state.values()), None)
    return isinstance(state, dict) and "exp_avg_sq" in state and "step" in state

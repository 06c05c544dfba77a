"""The objects of a script whose state a newcomer receives."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class Tracked:
    """The objects of a script that have a state, in the order in which it has built them."""

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._others: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._kept: dict[tuple[int, str], Tensor] = {}  # copies, by model and name

    def add_model(self, model: Any, arguments: dict[str, Any]) -> None:
        """Track a ``DistributedDataParallel``, which was built with ``arguments``."""
        model._zeusrun_arguments = arguments
        self._models[id(model)] = model

    def add(self, owner: Any) -> None:
        """Track an optimizer, a scheduler, or anything else with ``state_dict``."""
        self._others[id(owner)] = owner

    @property
    def models(self) -> list[Any]:
        """Those that are alive."""
        return list(self._models.values())

    @property
    def others(self) -> list[Any]:
        """Optimizers, schedulers and gradient scalers that are alive."""
        return list(self._others.values())

    def tensors(self) -> list[Tensor]:
        """Return the parameters and buffers of the models, less expanded ones: they are views."""
        return [
            each
            for model in self.models
            for each in (*model.module.parameters(), *model.module.buffers())
            if 0 not in each.stride()
        ]

    def keep_buffers(self) -> None:
        """Copy the buffers before a step: a forward pass changes those of a BatchNorm."""
        # Copy all of them: batch_norm changes a buffer, but not the version of the tensor.
        self._kept = {place: each.detach().clone() for place, each in self._buffers()}

    def end_step(self, *, is_made: bool) -> None:
        """Forget the gradients of a lost step; restore the buffers, unless the step was made."""
        for model in self.models:
            model.zero_grad(set_to_none=True)
        for place, each in () if is_made else self._buffers():
            before = self._kept.get(place)
            if before is not None and before.shape == each.shape:
                each.detach().copy_(before)

    def _buffers(self) -> list[tuple[tuple[int, str], Tensor]]:
        return [
            ((id(model), name), each)
            for model in self.models
            for name, each in model.module.named_buffers()
            if 0 not in each.stride() and not each.is_inference()
        ]

"""Measures the gradients of a model on one rank: of its layers, or of its micro-batches."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.worker.stats.examples import Examples, find_layers
from zeusrun.worker.stats.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class OneRank:
    """Measures one model: by examples if it has layers for that, else by its micro-batches.

    Args:
        module: The model.
        model: Receives the measurements: a ``Model`` of model.py.
        settings: What to measure: ``Settings`` of model.py.
        samples: Returns the samples since the last optimizer step; 0 if unknown.
        parts: The number of micro-batches in a step, as chosen by zeusrun.
        scale: Returns by what the loss is multiplied.
    """

    def __init__(
        self,
        module: Any,
        model: Any,
        settings: Any,
        *,
        samples: Callable[[], int],
        parts: int,
        scale: Callable[[], float | Tensor],
    ) -> None:
        self._module, self._model = weakref.ref(module), model
        self._options: dict[str, Any] = {
            "samples": samples,
            "parts": parts,
            "scale": scale,
            "receive": model.add,
        }
        self._parameters = {id(parameter) for parameter in module.parameters()}
        self._examples: Examples | None = None
        self._gradients: Gradients | None = None
        self._noise_interval = settings.noise_interval
        self._variance_interval = settings.variance_interval
        if self._noise_interval is not None and (layers := find_layers(module)):
            self._examples = Examples(
                module,
                layers,
                interval=self._noise_interval,
                fail=self._fall_back,
                **self._options,
            )
        self._compare_gradients()

    def after_step(self, optimizer: Any) -> None:
        """End an optimizer step of this model; one of another model is ignored."""
        groups = optimizer.param_groups
        if not any(id(p) in self._parameters for group in groups for p in group["params"][:1]):
            return
        for part in (self._examples, self._gradients):
            if part is not None:
                part.after_step()

    def flush(self) -> None:
        """Receive all that is measured."""
        for part in (self._examples, self._gradients):
            if part is not None:
                part.flush()

    def _compare_gradients(self) -> None:
        """Compare whole gradients for what the examples do not measure."""
        noise = self._noise_interval if self._examples is None else None
        intervals = [n for n in (noise, self._variance_interval) if n is not None]
        module = self._module()
        if intervals and module is not None:
            self._gradients = Gradients(
                module.parameters(),
                interval=min(intervals),
                fail=self._model.report_problem,
                **self._options,
            )

    def _fall_back(self, _reason: str) -> None:
        """Compare whole gradients, because the layers cannot be measured."""
        self._examples = None
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        self._compare_gradients()

"""Measures the gradients of a model on one rank, in the best way that the model allows."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.worker.stats.examples import Examples, find_layers
from zeusrun.worker.stats.gradients import Gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from zeusrun.worker.stats.noise import Norms


class OneRank:
    """Measures one model; the noise scale by examples if the model has layers for that.

    Args:
        module: The model.
        model: Gets what was measured: a ``Model`` of model.py.
        settings: What to measure: ``Settings`` of model.py.
        samples: Returns the samples since the last optimizer step; 0 if unknown.
        parts: Micro-batches in a step, as chosen by zeusrun.
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
        self._common: dict[str, Any] = {"samples": samples, "parts": parts, "scale": scale}
        self._noise_interval = settings.noise_interval
        self._own = {id(parameter) for parameter in module.parameters()}
        self._examples: Examples | None = None
        self._gradients: Gradients | None = None
        variance = settings.variance_interval
        if variance is not None and settings.variance_kind != "trace":
            variance = None
            model.refuse(
                f"watch.variance.kind: {settings.variance_kind} needs several ranks, so the "
                "variance is not measured; on one rank, use trace"
            )
        self._variance_interval = variance
        layers = find_layers(module) if settings.noise_interval is not None else []
        if layers:
            self._examples = Examples(
                module,
                layers,
                interval=settings.noise_interval or 1,
                take=self._take_examples,
                fail=self._fall_back,
                **self._common,
            )
        self._compare_gradients()

    def after_step(self, optimizer: Any) -> None:
        """End an optimizer step of this model; one of another model does not count."""
        groups = optimizer.param_groups
        if not any(id(p) in self._own for group in groups for p in group["params"][:1]):
            return
        for part in (self._examples, self._gradients):
            if part is not None:
                part.after_step()

    def flush(self) -> None:
        """Take in all that is measured."""
        for part in (self._examples, self._gradients):
            if part is not None:
                part.flush()

    def _compare_gradients(self) -> None:
        """Measure what the examples do not give from whole gradients."""
        noise = self._noise_interval if self._examples is None else None
        intervals = [n for n in (noise, self._variance_interval) if n is not None]
        module = self._module()
        if intervals and module is not None and self._gradients is None:
            self._gradients = Gradients(
                module.parameters(),
                interval=min(intervals),
                take=self._take_gradients,
                fail=self._model.refuse,
                **self._common,
            )

    def _fall_back(self, _reason: str) -> None:
        self._examples = None
        if self._gradients is not None:
            self._gradients.close()
            self._gradients = None
        self._compare_gradients()

    def _take_examples(self, norms: Norms) -> None:
        self._model.take_norms(norms, "examples", variance=False)

    def _take_gradients(self, norms: Norms, how: str) -> None:
        variance = self._variance_interval is not None
        if self._examples is None:
            self._model.take_norms(norms, how, variance=variance)
        else:
            self._model.take_variance(norms)

"""Measures the gradients of a model on one rank: of its layers, or of its micro-batches."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.worker.stats.examples import Examples, find_layers
from zeusrun.worker.stats.gradients import Gradients

if TYPE_CHECKING:
    from zeusrun.worker.stats.model import Model


def measure_alone(module: Any, model: Model, **options: Any) -> Examples | Gradients:
    """Measure by examples if a model has layers for that, else by its micro-batches.

    Args:
        module: The model.
        model: Receives the measurements; its ``watch`` is replaced if layers cannot be measured.
        options: Those of ``OneRankMeter``.
    """
    options |= {"receive": model.add}
    reference = weakref.ref(module)

    def compare_micro_batches(_reason: str) -> None:
        if (module := reference()) is not None:
            model.watch = Gradients(module.parameters(), fail=model.report_problem, **options)

    if layers := find_layers(module):
        return Examples(module, layers, fail=compare_micro_batches, **options)
    return Gradients(module.parameters(), fail=model.report_problem, **options)

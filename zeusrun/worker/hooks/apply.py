"""Replaces the batch size or learning rate of the script by the chosen one.

``batch_size.apply: dataloader`` and ``learning_rate.apply: optimizer`` in the job file turn it on,
for scripts that have no argument for them.
"""

from __future__ import annotations

import functools
import math
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Applied

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from zeusrun.worker.environment import WorkerEnvironment

_LIBRARIES = {
    "torch",
    "zeusrun",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
}


def apply_batch_size(dataloader: ModuleType, environment: WorkerEnvironment) -> None:
    """Give the chosen batch size to every data loader that is built as one for training.

    That is one with the batch size that the script gives to this rank, and random order.

    Args:
        dataloader: ``torch.utils.data.dataloader``.
        environment: This rank.
    """
    cls: Any = dataloader.DataLoader
    build = cls.__init__
    places: set[str] = set()  # a script may build one in every epoch

    @functools.wraps(build)  # libraries inspect the parameters
    def __init__(
        loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **options: Any
    ) -> None:
        given = environment.batch_size_to_replace  # that of a fork is another one
        if type(batch_size) is int and batch_size == given and _draws(args, options):
            batch_size = environment.share or given
            _record(environment, "batch_size", given, batch_size, places)
        build(loader, dataset, batch_size, *args, **options)

    cls.__init__ = __init__


def apply_learning_rate(
    optimizer: ModuleType, environment: WorkerEnvironment, given: float
) -> None:
    """Give the chosen learning rate to every optimizer that the script builds with its own.

    Args:
        optimizer: ``torch.optim.optimizer``.
        environment: This rank.
        given: The learning rate that the script gives, ``learning_rate.base``.
    """
    cls: Any = optimizer.Optimizer
    build = cls.__init__
    chosen = environment.learning_rate or given
    places: set[str] = set()

    @functools.wraps(build)
    def __init__(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        groups = params if isinstance(params, list) else []
        found = [
            options
            for options in (defaults, *groups)
            if isinstance(options, dict) and _is_rate(options.get("lr"), given)
        ]
        for options in found:
            options["lr"] = chosen
        if found:
            _record(environment, "learning_rate", given, chosen, places)
        build(self, params, defaults)

    cls.__init__ = __init__


def _record(
    environment: WorkerEnvironment, choice: str, given: float, chosen: float, places: set[str]
) -> None:
    """Record a replacement, once for each place in the script."""
    frame: FrameType = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
    if where not in places:
        places.add(where)
        environment.record_on_0(Applied(time.monotonic(), choice, given, chosen, where))


def _draws(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a loader draws its samples in random order, as training loaders do."""
    shuffle, sampler, batches = (
        options.get(name, args[place] if len(args) > place else None)
        for place, name in enumerate(("shuffle", "sampler", "batch_sampler"))
    )
    if batches is not None:
        return False
    if sampler is None:
        return bool(shuffle)
    return bool(getattr(sampler, "shuffle", type(sampler).__name__ != "SequentialSampler"))


def _is_rate(rate: Any, given: float) -> bool:
    return isinstance(rate, (int, float)) and math.isclose(rate, given, rel_tol=1e-9)

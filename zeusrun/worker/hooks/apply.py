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
    from types import ModuleType

    from zeusrun.worker.context import RunContext

_LIBRARIES = {
    "torch",
    "zeusrun",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
}


def apply_batch_size(dataloader: ModuleType, run: RunContext, given: int) -> None:
    """Give the chosen batch size to the data loader that the script builds with its own.

    Args:
        dataloader: ``torch.utils.data.dataloader``.
        run: This rank's run.
        given: The batch size of one rank that the script gives, the default's share.
    """
    cls: Any = dataloader.DataLoader
    build = cls.__init__
    chosen = run.share or given
    changed: str | None = None
    data: int | None = None  # Lightning rebuilds a loader to add its sampler

    @functools.wraps(build)  # libraries inspect the parameters
    def __init__(
        loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **options: Any
    ) -> None:
        nonlocal changed, data
        if type(batch_size) is int and batch_size == given and _draws(args, options):
            where = _caller()
            if changed is None:
                run.record_on_0(Applied(time.monotonic(), "batch_size", given, chosen, where))
            elif changed != where and data != id(dataset):
                raise RuntimeError(
                    f"zeusrun: batch_size.apply: dataloader: two data loaders draw batches of "
                    f"{given}, at {changed} and at {where}; zeusrun cannot know which one trains. "
                    "Give the other one another batch size, or pass ${local_batch_size} in args"
                )
            changed, data = where, id(dataset)
            batch_size = chosen
        build(loader, dataset, batch_size, *args, **options)

    cls.__init__ = __init__


def apply_learning_rate(optimizer: ModuleType, run: RunContext, given: float) -> None:
    """Give the chosen learning rate to every optimizer that the script builds with its own.

    Args:
        optimizer: ``torch.optim.optimizer``.
        run: This rank's run.
        given: The learning rate that the script gives, ``learning_rate.base``.
    """
    cls: Any = optimizer.Optimizer
    build = cls.__init__
    chosen = run.chosen_learning_rate or given
    places: set[str] = set()  # a script may build one in every epoch

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
        if found and (where := _caller()) not in places:
            places.add(where)
            run.record_on_0(Applied(time.monotonic(), "learning_rate", given, chosen, where))
        build(self, params, defaults)

    cls.__init__ = __init__


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


def _caller() -> str:
    """Return file and line of the first frame outside the libraries and zeusrun."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    name = frame.f_code.co_filename.rpartition("/")[2]
    return f"{name}:{frame.f_lineno}"

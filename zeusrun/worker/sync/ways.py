"""The ways in which the ranks of one model can agree, and which of them a job file asks for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed

from zeusrun.worker.sync import reduce
from zeusrun.worker.sync.averaging import Pairs, Parameters, average

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.worker.sync.reduce import Reduce

distributed: Any = torch.distributed

SLOW_EVERY = 8
"""With ``on_slow: compress``: steps between two averages, where 16 bits are too many."""


class Way(NamedTuple):
    """One way in which ranks agree.

    Attributes:
        name: For people.
        reduce: Returns a future of what becomes the gradient.
        is_mean: Whether that is the mean over the ranks.
        average: Called after each step with its number, from 1; ``None`` for nothing.
    """

    name: str
    reduce: Reduce
    is_mean: bool = True
    average: Callable[[int], None] | None = None

    @property
    def is_apart(self) -> bool:
        """Whether each rank has parameters of its own."""
        return self.average is not None


class Ways:
    """The ways of one ``DistributedDataParallel``.

    Args:
        ddp: The model.
        given: The section ``sync``.
    """

    def __init__(self, ddp: Any, given: Mapping[str, Any]) -> None:
        self._ddp, self._given, self._group = ddp, given, ddp.process_group
        self._parameters = Parameters(ddp.module)
        self._plain = Way("all-reduce", reduce.all_reduce(self._group))

    def planned(self) -> list[tuple[int, Way]]:
        """Return the ways of the job file, each with the number of steps before it."""
        given, group = self._given, self._group
        if given["every"] is not None:
            return [(0, self._plain), (given["warmup"], self._averaging(given["every"]))]
        if given["method"] == "sma":
            sma = Way("sma", reduce.local, is_mean=False, average=self._sma)
            after = [] if given["switch_at"] is None else [(given["switch_at"], self._plain)]
            return [(0, sma), *after]
        if given["method"] == "pair":
            self._ddp.broadcast_buffers = False  # it would wait for rank 0 in each forward pass
            pairs = Pairs(self._parameters, group)
            return [(0, Way("pair", reduce.local, is_mean=False, average=pairs.step))]
        if given["topology"] is not None:
            return [(0, self._along(given["topology"]))]
        if given["compress"] == "powersgd":
            powers = reduce.power_sgd(group, given["rank"], given["warmup"])
            return [(0, Way("powersgd", powers, is_mean=False))]
        return [(0, self._plain if given["compress"] == "none" else self._in_16_bits())]

    def others(self) -> list[Callable[[], Way]]:
        """Return what builds the ways to which the ranks may vote to change; a collective call."""
        if self._given["on_slow"] == "compress":
            return [self._in_16_bits, functools.partial(self._averaging, SLOW_EVERY)]
        if self._given["vote"]:
            return [functools.partial(self._along, "auto"), lambda: self._plain]
        return []

    def add_up(self, number: float) -> float:
        """Return the sum of a number over all ranks."""
        total = torch.tensor([number], device=self._parameters.device)
        distributed.all_reduce(total, group=self._group)
        return float(total)

    def meet(self) -> None:
        """Give all ranks the mean of their parameters."""
        average(self._parameters, self._group)

    def _along(self, topology: str) -> Way:
        return Way(topology, reduce.along(topology, self._group))

    def _in_16_bits(self) -> Way:
        kind = "bf16" if self._given["compress"] == "none" else self._given["compress"]
        return Way(kind, reduce.compressed(self._group, kind))

    def _averaging(self, every: int) -> Way:
        def step(number: int) -> None:
            if (number - self._given["warmup"]) % every == 0:
                self.meet()

        return Way(f"average every {every}", reduce.local, is_mean=False, average=step)

    def _sma(self, _step: int) -> None:
        average(self._parameters, self._group, self._given["alpha"])

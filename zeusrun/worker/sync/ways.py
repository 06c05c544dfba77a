"""The ways in which the ranks of one model can agree, and which of them a job file asks for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed

from zeusrun.worker.sync import reduce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.worker.sync.reduce import Reduce

distributed: Any = torch.distributed


class Way(NamedTuple):
    """One way in which ranks agree.

    Attributes:
        name: For people.
        reduce: Returns a future of what becomes the gradient on all ranks.
        is_mean: Whether that is the mean over the ranks.
    """

    name: str
    reduce: Reduce
    is_mean: bool = True


class Ways:
    """The ways of one ``DistributedDataParallel``.

    Args:
        ddp: The model.
        given: The section ``sync``.
    """

    def __init__(self, ddp: Any, given: Mapping[str, Any]) -> None:
        self._given, self._group = given, ddp.process_group
        if given["topology"] is not None and not _is_on_cpus(ddp):
            raise RuntimeError(
                "zeusrun: sync.topology needs a model on CPUs and the backend gloo; remove it"
            )

    def planned(self) -> Way:
        """Return the way of the job file; a collective call."""
        given, group = self._given, self._group
        if given["topology"] is not None:
            return self._along(given["topology"])
        if given["compress"] == "powersgd":
            powers = reduce.power_sgd(group, given["rank"], given["warmup"])
            return Way("powersgd", powers, is_mean=False)
        if given["compress"] == "none":
            return Way("all-reduce", reduce.all_reduce(group))
        return Way(given["compress"], reduce.compressed(group, given["compress"]))

    def others(self) -> list[Callable[[], Way]]:
        """Return what builds the ways to which the ranks may vote to change; a collective call."""
        if not self._given["vote"]:
            return []
        plain = Way("all-reduce", reduce.all_reduce(self._group))
        return [functools.partial(self._along, "auto"), lambda: plain]

    def add_up(self, number: float) -> float:
        """Return the sum of a number over all ranks."""
        total = torch.tensor([number])
        distributed.all_reduce(total, group=self._group)
        return float(total)

    def _along(self, topology: str) -> Way:
        return Way(topology, reduce.along(topology, self._group))


def _is_on_cpus(ddp: Any) -> bool:
    cpu = torch.device("cpu")
    try:
        name = ddp.process_group._get_backend(cpu).name()
    except RuntimeError:  # it has none for CPUs
        return False
    return name == "gloo" and all(each.device == cpu for each in ddp.parameters())

"""The ways in which the ranks of one model can agree, and which of them a job file asks for."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed

from zeusrun.sync.rank import reduce
from zeusrun.sync.rank.averaging import Pairs, Parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.sync.rank.reduce import Reduce

distributed: Any = torch.distributed

SLOW_EVERY = 8
"""With ``on_slow: compress``: passes between two averages, where 16 bits are too many."""


class Way(NamedTuple):
    """One way in which ranks agree.

    Attributes:
        name: For people.
        reduce: Returns a future of what becomes the gradient on all ranks.
        is_mean: Whether that is the mean over the ranks.
        average: Called between two steps, with whether an epoch has ended; each rank has parameters
            of its own. Returns whether all of them are equal now. ``None``: they always are.
        averages_epochs: Whether it also averages at the end of an epoch.
    """

    name: str
    reduce: Reduce
    is_mean: bool = True
    average: Callable[[bool], bool] | None = None
    averages_epochs: bool = False


class Ways:
    """The ways of one ``DistributedDataParallel``.

    Args:
        ddp: The model.
        given: The section ``sync``.
        warn: Called with a problem of this rank.

    Attributes:
        group: The ranks.
        parameters: What is averaged.
        averages: Whether the ranks may come to have parameters of their own.

    Raises:
        RuntimeError: If the model cannot agree so.
    """

    def __init__(self, ddp: Any, given: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        self._given, self.group, self._warn = given, ddp.process_group, warn
        self._ddp = weakref.ref(ddp)  # ways live as long as it does, and must not keep it
        self.parameters = Parameters(ddp)
        self.averages = bool(given["every"] or given["method"] or given["on_slow"] == "compress")
        if self.averages and self.parameters.dtype.is_complex:
            raise RuntimeError(
                "zeusrun: the model has complex parameters, which cannot be averaged; take "
                "'every', 'method' or 'on_slow' out of sync in the job file"
            )
        for key in ("topology", "on_slow"):
            if given[key] not in {None, "keep"} and not _is_on_cpus(ddp):
                raise RuntimeError(
                    f"zeusrun: sync.{key} needs a model on CPUs and the backend gloo; remove "
                    f"{key!r} from sync in the job file"
                )

    def planned(self) -> list[tuple[int, Way]]:
        """Return the ways of the job file, each with the passes before it; a collective call."""
        given, group = self._given, self.group
        plain = Way("all-reduce", reduce.all_reduce(group))
        if given["every"] is not None:
            return [(0, plain), (given["warmup"], self._every(given["every"]))]
        if given["method"] == "sma":
            after = [] if given["switch_at"] is None else [(given["switch_at"], plain)]
            return [(0, self._sma(given["alpha"])), *after]
        if given["method"] == "pair":
            return [(0, self._pair())]
        if given["topology"] is not None:
            return [(0, self._along(given["topology"]))]
        if given["compress"] == "powersgd":
            powers = reduce.power_sgd(group, given["rank"], given["warmup"])
            return [(0, Way("powersgd", powers, is_mean=False))]
        return [(0, plain if given["compress"] == "none" else self._compressed(given["compress"]))]

    def fallbacks(self) -> list[Callable[[], Way]]:
        """Return what builds the ways to which the ranks may vote to change; a collective call."""
        given = self._given
        if given["on_slow"] == "compress":
            every = functools.partial(self._every, SLOW_EVERY)
            return [functools.partial(self._compressed, "bf16"), every]
        if given["vote"]:
            plain = Way("all-reduce", reduce.all_reduce(self.group))
            return [functools.partial(self._along, "auto"), lambda: plain]
        return []

    def gather(self, numbers: list[float]) -> list[list[float]]:
        """Return the numbers of each rank; a collective call."""
        device = self.parameters.trained[0].device
        own = torch.tensor(numbers, dtype=torch.float64, device=device)
        rows = [torch.empty_like(own) for _ in range(self.group.size())]
        distributed.all_gather(rows, own, group=self.group)
        return torch.stack(rows).tolist()

    def _along(self, topology: str) -> Way:
        return Way(topology, reduce.along(topology, self.group))

    def _compressed(self, kind: str) -> Way:
        return Way(kind, reduce.compressed(self.group, kind))

    def _every(self, every: int) -> Way:
        parameters, group, passes = self.parameters, self.group, 0

        def average(ends: bool) -> bool:
            nonlocal passes
            passes += 1
            if is_due := ends or passes >= every:
                passes = 0
                parameters.average(group)
            return is_due

        return Way(f"average every {every}", reduce.local, False, average, averages_epochs=True)

    def _sma(self, alpha: float) -> Way:
        parameters, group = self.parameters, self.group

        def average(_ends: bool) -> bool:
            parameters.average(group, alpha)
            return False

        return Way("sma", reduce.local, False, average)

    def _pair(self) -> Way:
        ddp: Any = self._ddp()
        pairs = Pairs(self.parameters, self.group, self._warn)
        if ddp.find_unused_parameters:
            self._warn(
                "method: pair: the model has find_unused_parameters=True, so ranks wait for each "
                "other in every step"
            )
        weakref.finalize(ddp, pairs.close)

        def average(_ends: bool) -> bool:
            pairs.step()
            return False

        return Way("pair", reduce.local, False, average)


def _is_on_cpus(ddp: Any) -> bool:
    cpu = torch.device("cpu")
    try:
        name = ddp.process_group._get_backend(cpu).name()
    except RuntimeError:  # it has none for CPUs
        return False
    return name == "gloo" and all(each.device == cpu for each in ddp.parameters())

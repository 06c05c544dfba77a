"""What a trace does not say of a workload: its default batch size and what it is to reach."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Literal, NamedTuple

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Workload(NamedTuple):
    """A dataset of a trace and how it is trained.

    Attributes:
        name: The dataset.
        default: The user's own batch size.
        target: Value of the metric to reach.
        max_epochs: Epochs that a run may take.
        mode: Whether a higher or a lower metric is better.
    """

    name: str
    default: int
    target: float
    max_epochs: int
    mode: Literal["max", "min"] = "max"


# The six workloads of You et al. (NSDI 2023), with the settings of their public simulator.
WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("cifar100", 1024, 0.60, 100),
        Workload("imagenet", 256, 0.65, 100),
        Workload("squad", 32, 84, 6),
        Workload("librispeech", 256, 40, 16, "min"),
        Workload("movielens-1m", 1024, 0.41, 100),
        Workload("sentiment140", 128, 0.84, 10),
    )
}

MAX_EPOCHS = 1_000_000  # every epoch of a run is simulated

FORM = "name:default:target:max_epochs[:min]"


def parse_workload(text: str) -> Workload:
    """Read ``--workload``: the name of a known one, or ``name:default:target:max_epochs[:min]``.

    Raises:
        UsageError: If it is neither; a name that nobody knows is only ever found to be wrong.
    """
    name, *rest = text.split(":")
    if not rest:
        if name not in WORKLOADS:
            hint = did_you_mean(name, WORKLOADS)
            raise UsageError(f"unknown workload {name!r}; {hint} Or describe it: {FORM}")
        return WORKLOADS[name]
    mode: Literal["max", "min"] = "max"
    if len(rest) == 4 and rest[3] in {"max", "min"}:
        mode = "min" if rest.pop() == "min" else "max"
    if len(rest) != 3 or not name:
        raise UsageError(f"--workload {text}: it is to read {FORM}")
    default = _number(text, "the default batch size", rest[0])
    target = _number(text, "the target", rest[1])
    max_epochs = _number(text, "max_epochs", rest[2])
    for what, value in (("the default batch size", default), ("max_epochs", max_epochs)):
        if value < 1 or not value.is_integer():
            raise UsageError(f"--workload {text}: {what} must be a whole number above 0")
    if max_epochs > MAX_EPOCHS:
        raise UsageError(f"--workload {text}: max_epochs must be at most {MAX_EPOCHS:,}")
    return Workload(name, int(default), target, int(max_epochs), mode)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what to say to a name that nobody knows."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names) or 'none'}."


def _number(text: str, what: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"--workload {text}: {what} is {cell!r}, not a number")
    return value

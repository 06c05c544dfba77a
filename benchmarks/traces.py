"""Builds jobs from traces in the public schema of the Zeus project.

``summary_train.csv`` contains the epochs after which each run reached each level of its metric;
``summary_power_<gpu>.csv``, time and power of an epoch under each power limit.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from zeusrun.errors import UsageError, did_you_mean
from zeusrun.simulate.engine import LearningCurve, Rate, SimulatedJob
from zeusrun.target import meets_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

TRAINING_COLUMNS = (
    "dataset", "network", "optimizer", "batch_size", "learning_rate", "run", "target_metric",
    "target_epoch",
)  # fmt: skip
POWER_COLUMNS = (
    "dataset", "network", "optimizer", "batch_size", "power_limit", "time_per_epoch",
    "average_power",
)  # fmt: skip
LARGEST, SMALLEST = 1e15, 1e-9  # allowed seconds, watts and shares, so that sums are finite
_PREFIX = "summary_power_"


class Workload(NamedTuple):
    """A dataset of a trace, with training settings that the trace does not contain."""

    name: str  # of the dataset
    default: int  # the user's own batch size
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


class TraceKey(NamedTuple):
    """The columns that the two traces share, without the batch size."""

    dataset: str
    network: str
    optimizer: str


Levels: TypeAlias = "dict[float, int | None]"
"""Epochs until a run reached each level of its metric; ``None`` if it never did."""
Runs: TypeAlias = "dict[tuple[str, str], Levels]"
"""The runs of a batch size, by learning rate and number."""


def _hint(name: str, known: Iterable[str]) -> str:
    names = list(known)
    return did_you_mean(name, names) or f"; there are {', '.join(names) or 'none'}."


def gpus(directory: Path) -> list[str]:
    """Return the GPUs of the power traces in a directory."""
    found = directory.glob(f"{_PREFIX}*.csv")
    return sorted(path.name.removeprefix(_PREFIX).removesuffix(".csv") for path in found)


def load_jobs(
    directory: Path, gpu: str | None, workloads: Sequence[Workload] = ()
) -> list[SimulatedJob]:
    """Build the jobs of some workloads on a GPU, by default the public ones in both traces.

    Raises:
        UsageError: If a file is missing or damaged, or does not contain the GPU or a workload.
    """
    power = _load_power(directory / f"{_PREFIX}{_gpu(directory, gpu)}.csv")
    training = _load_training(directory / "summary_train.csv")
    if not workloads:
        in_both = {key.dataset for key in training} & {key.dataset for key in power}
        workloads = [workload for name, workload in WORKLOADS.items() if name in in_both]
    if not workloads:
        datasets = ", ".join(sorted({key.dataset for key in training})) or "none"
        raise UsageError(f"{directory} has no known workload; it has {datasets}")
    every = (rates for arms in power.values() for rates in arms.values())
    max_power_w = max(limit for rates in every for limit in rates)
    return [_build_job(workload, training, power, max_power_w) for workload in workloads]


def _build_job(
    workload: Workload,
    training: Mapping[TraceKey, Mapping[int, Runs]],
    power: Mapping[TraceKey, Mapping[int, Mapping[float, Rate]]],
    max_power_w: float,
) -> SimulatedJob:
    """Build a job of the batch sizes in both traces; the default is at most the largest of them.

    If a dataset was trained in several ways, the way with the most batch sizes is used.
    """
    name = workload.name
    in_both = {
        key: sorted(training[key].keys() & power.get(key, {}).keys())
        for key in training
        if key.dataset == name
    }
    if not in_both:
        hint = _hint(name, dict.fromkeys(key.dataset for key in training))
        raise UsageError(f"the training trace has no dataset {name!r}{hint}")
    key, arms = max(in_both.items(), key=lambda item: len(item[1]))
    if not arms:
        raise UsageError(
            f"{name}: no batch size of the training trace ({key.network}, {key.optimizer}) is in "
            "the power trace of this GPU"
        )
    default = min(workload.default, arms[-1])
    if default not in arms:
        sizes = ", ".join(map(str, arms))
        raise UsageError(f"{name}: both traces have batch sizes {sizes}, not the default {default}")
    curves = {
        arm: [_build_curve(levels, workload) for levels in training[key][arm].values()]
        for arm in arms
    }
    return SimulatedJob(
        name=name,
        default=default,
        mode=workload.mode,
        target=workload.target,
        max_epochs=workload.max_epochs,
        max_power_w=max_power_w,  # of the whole power trace, as in the public simulator
        rates={arm: power[key][arm] for arm in arms},
        eras=[(1, curves)],
    )


def _build_curve(levels: Levels, workload: Workload) -> LearningCurve:
    """Return the levels in order, up to the target or to ``max_epochs``.

    The values around the target are interpolated: the levels that a run passed in one epoch divide
    this epoch evenly.
    """
    sign = -1 if workload.mode == "min" else 1
    passed = Counter(levels.values())
    before: Counter[int] = Counter()
    pace: dict[int, float] = {}
    times: list[tuple[float, float]] = []  # the epoch at which a level was passed, and the level
    for level in sorted(levels, key=lambda level: sign * level):
        epoch = levels[level]
        if epoch is None or epoch > workload.max_epochs:
            break
        pace[epoch] = level
        times.append((epoch - 1 + (before[epoch] + 0.5) / passed[epoch], level))
        before[epoch] += 1
        if meets_target(level, workload.target, workload.mode):
            times[-1] = times[-1][0], workload.target
            if pace.keys() - {epoch}:
                left = times[-1][0] - (epoch - 1)  # share of the last epoch until the target
                at, known = zip(*times, strict=True)
                pace[epoch - 1] = value = float(np.interp(epoch - 1, at, known))
                pace[epoch] = value + (workload.target - value) / left
            return LearningCurve(epoch, tuple(sorted(pace.items())))
    return LearningCurve(None, tuple(pace.items()))


def _gpu(directory: Path, gpu: str | None) -> str:
    known = gpus(directory)
    if not known:
        where = "no such directory" if not directory.is_dir() else f"no {_PREFIX}<gpu>.csv in it"
        raise UsageError(f"{directory} has no power traces: {where}")
    if gpu is None:
        raise UsageError(f"name the GPU; {directory} has {', '.join(known)}")
    for name in known:
        if name.lower() == gpu.lower():
            return name
    raise UsageError(f"{directory} has no power trace of {gpu!r}; it has {', '.join(known)}")


def _load_training(path: Path) -> Mapping[TraceKey, Mapping[int, Runs]]:
    traces: dict[TraceKey, dict[int, Runs]] = {}
    for row in read_rows(path, TRAINING_COLUMNS):
        cells = row.cells
        arms = traces.setdefault(TraceKey(*map(cells.__getitem__, TraceKey._fields)), {})
        runs = arms.setdefault(row.whole("batch_size"), {})
        levels = runs.setdefault((cells["learning_rate"], cells["run"]), {})
        never = cells["target_epoch"].strip().lower() in {"", "nan"}
        levels[row.number("target_metric")] = None if never else row.whole("target_epoch")
    return traces


def _load_power(path: Path) -> Mapping[TraceKey, Mapping[int, Mapping[float, Rate]]]:
    traces: dict[TraceKey, dict[int, dict[float, Rate]]] = {}
    for row in read_rows(path, POWER_COLUMNS):
        arms = traces.setdefault(TraceKey(*map(row.cells.__getitem__, TraceKey._fields)), {})
        rate = Rate(row.positive("time_per_epoch"), row.positive("average_power"))
        arms.setdefault(row.whole("batch_size"), {})[row.positive("power_limit")] = rate
    if not traces:
        raise UsageError(f"{path} has no rows")
    return traces


class TraceRow(NamedTuple):
    """The cells of a row by column, and the number of the line on which the row ends."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def error(self, text: str) -> UsageError:
        """Return an error whose text begins with the file and the line."""
        return UsageError(f"{self.path}:{self.line}: {text}")

    def number(self, column: str, least: float = -LARGEST) -> float:
        """Read a number of at least ``least``; anything else raises ``UsageError``."""
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= LARGEST:  # NaN compares as False
            raise self.error(f"{column} is {text!r}, not a number from {least:g} to {LARGEST:g}")
        return value

    def positive(self, column: str) -> float:
        """Read a number above 0; anything else raises ``UsageError``."""
        return self.number(column, SMALLEST)

    def whole(self, column: str) -> int:
        """Read a whole number above 0, such as ``64.0``; anything else raises ``UsageError``."""
        value = self.number(column, 1)
        if not value.is_integer():
            raise self.error(f"{column} is {self.cells[column]}, not a whole number")
        return int(value)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    """Yield every row of a ``.csv`` or ``.csv.xz`` file that has at least these columns.

    Raises:
        UsageError: If the file cannot be read or is not CSV, or if a column or a cell is missing.
    """
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        missing = [name for name in columns if name not in header]
        if missing:
            found = ", ".join(filter(None, header)) or "no header"
            raise UsageError(f"{path}:1: there is no column {missing[0]!r}; found {found}")
        for cells in reader:
            row = TraceRow(path, reader.line_num, cells)
            if any(cells[name] is None for name in columns):
                raise row.error(f"fewer cells than the {len(header)} of the header")
            yield row
    except csv.Error as error:
        where = f"{path}, after line {reader.line_num}"
        raise UsageError(f"{where}: not CSV: {error}; is a quote left open?") from error


def _read_text(path: Path) -> str:
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            return file.read()
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}") from error

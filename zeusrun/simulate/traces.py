"""Builds jobs from training and power traces in the public schema of the Zeus project.

``summary_train.csv`` says after how many epochs each run reached each level of its metric,
``summary_power_<gpu>.csv`` how long an epoch takes and what it draws under each power limit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zeusrun.errors import UsageError
from zeusrun.simulate.job import Course, Rate, SimulatedJob
from zeusrun.simulate.rows import read_rows
from zeusrun.simulate.workloads import FORM, WORKLOADS, Workload, did_you_mean
from zeusrun.target import meets_target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TRAINING_COLUMNS = (
    "dataset", "network", "optimizer", "batch_size", "learning_rate", "run", "target_metric",
    "target_epoch",
)  # fmt: skip
POWER_COLUMNS = (
    "dataset", "network", "optimizer", "batch_size", "power_limit", "time_per_epoch",
    "average_power",
)  # fmt: skip
_PREFIX = "summary_power_"


class Training(NamedTuple):
    """What is trained, and how: the columns that the two traces share, less the batch size."""

    dataset: str
    network: str
    optimizer: str


Levels: TypeAlias = "dict[float, int | None]"
"""Epochs until a run reached each level of its metric; ``None`` if it never did."""
Runs: TypeAlias = "dict[tuple[str, str], Levels]"
"""The runs of a batch size, by learning rate and number."""


def gpus(directory: Path) -> list[str]:
    """Return the GPUs of which a directory holds a power trace."""
    found = directory.glob(f"{_PREFIX}*.csv")
    return sorted(path.name.removeprefix(_PREFIX).removesuffix(".csv") for path in found)


def load_jobs(
    directory: Path, gpu: str | None, workloads: Sequence[Workload] = ()
) -> list[SimulatedJob]:
    """Build the jobs of some workloads on a GPU.

    Args:
        directory: Where the traces are.
        gpu: As in the name of its power trace, whatever the case.
        workloads: Which; none for those of the six public ones that both traces hold.

    Raises:
        UsageError: If a file is missing or damaged, or holds no such GPU or workload.
    """
    power = _load_power(directory / f"{_PREFIX}{_gpu(directory, gpu)}.csv")
    training = _load_training(directory / "summary_train.csv")
    if not workloads:
        in_both = {key.dataset for key in training} & {key.dataset for key in power}
        workloads = [workload for name, workload in WORKLOADS.items() if name in in_both]
    if not workloads:
        datasets = ", ".join(sorted({key.dataset for key in training})) or "none"
        raise UsageError(
            f"{directory} has none of the workloads known by name, but {datasets}; "
            f"describe one: --workload {FORM}"
        )
    every = (rates for arms in power.values() for rates in arms.values())
    max_power_w = max(limit for rates in every for limit in rates)
    return [build_job(workload, training, power, max_power_w) for workload in workloads]


def build_job(
    workload: Workload,
    training: Mapping[Training, Mapping[int, Runs]],
    power: Mapping[Training, Mapping[int, Mapping[float, Rate]]],
    max_power_w: float,
) -> SimulatedJob:
    """Build a job of the batch sizes that were both trained and measured.

    Each has the power limits that it was measured under. The default is at most the largest of
    them. If a dataset was trained in several ways, the one with most batch sizes counts.

    Args:
        workload: Which.
        training: The training trace.
        power: The power trace.
        max_power_w: The highest power limit of the whole power trace, as in the public simulator.

    Raises:
        UsageError: If that leaves nothing to simulate.
    """
    name = workload.name
    keys = [key for key in training if key.dataset == name]
    if not keys:
        hint = did_you_mean(name, dict.fromkeys(key.dataset for key in training))
        raise UsageError(f"the training trace has no dataset {name!r}; {hint}")
    key = max(keys, key=lambda key: len(training[key].keys() & power.get(key, {}).keys()))
    arms = sorted(training[key].keys() & power.get(key, {}).keys())
    if not arms:
        raise UsageError(
            f"{name}: no batch size of the training trace ({key.network}, {key.optimizer}) is in "
            "the power trace of this GPU"
        )
    default = min(workload.default, arms[-1])
    if default not in arms:
        sizes = ", ".join(map(str, arms))
        raise UsageError(
            f"{name}: the default, {default}, is no batch size of both traces: {sizes}"
        )
    courses = {
        arm: [build_course(levels, workload) for levels in training[key][arm].values()]
        for arm in arms
    }
    if not any(course.epochs for own in courses.values() for course in own):
        raise UsageError(
            f"{name}: no run reaches {workload.target:g} within {workload.max_epochs} epochs"
        )
    return SimulatedJob(
        name=name,
        default=default,
        mode=workload.mode,
        target=workload.target,
        max_epochs=workload.max_epochs,
        max_power_w=max_power_w,
        rates={arm: power[key][arm] for arm in arms},
        eras=[(1, courses)],
    )


def build_course(levels: Levels, workload: Workload) -> Course:
    """Return how a run learns: its levels in order, up to the target or to ``max_epochs``."""
    sign = -1 if workload.mode == "min" else 1
    pace: list[tuple[int, float]] = []
    for level in sorted(levels, key=lambda level: sign * level):
        epoch = levels[level]
        if epoch is None or epoch > workload.max_epochs:
            break
        if pace and pace[-1][0] == epoch:
            pace.pop()
        pace.append((epoch, level))
        if meets_target(level, workload.target, workload.mode):
            return Course(epoch, tuple(pace))
    return Course(None, tuple(pace))


def _gpu(directory: Path, gpu: str | None) -> str:
    known = gpus(directory)
    if not known:
        where = "no such directory" if not directory.is_dir() else f"no {_PREFIX}<gpu>.csv in it"
        raise UsageError(f"{directory} holds no power traces: {where}")
    if gpu is None:
        raise UsageError(f"say which GPU with --gpu; {directory} has {', '.join(known)}")
    for name in known:
        if name.lower() == gpu.lower():
            return name
    raise UsageError(f"{directory} has no power trace of {gpu!r}, but of {', '.join(known)}")


@lru_cache(maxsize=8)
def _load_training(path: Path) -> Mapping[Training, Mapping[int, Runs]]:
    traces: dict[Training, dict[int, Runs]] = {}
    for place, row in read_rows(path, TRAINING_COLUMNS):
        dataset, network, optimizer, size, learning_rate, run, metric, epoch = row
        runs = traces.setdefault(Training(dataset, network, optimizer), {}).setdefault(
            place.whole("batch_size", size), {}
        )
        levels = runs.setdefault((learning_rate, run), {})
        never = epoch.strip().lower() in {"", "nan"}
        level = place.number("target_metric", metric)
        levels[level] = None if never else place.whole("target_epoch", epoch)
    return traces


@lru_cache(maxsize=8)
def _load_power(path: Path) -> Mapping[Training, Mapping[int, Mapping[float, Rate]]]:
    traces: dict[Training, dict[int, dict[float, Rate]]] = {}
    for place, row in read_rows(path, POWER_COLUMNS):
        dataset, network, optimizer, size, limit, time, power = row
        rates = traces.setdefault(Training(dataset, network, optimizer), {}).setdefault(
            place.whole("batch_size", size), {}
        )
        rates[place.positive("power_limit", limit)] = Rate(
            place.positive("time_per_epoch", time), place.positive("average_power", power)
        )
    if not traces:
        raise UsageError(f"{path} has no rows")
    return traces

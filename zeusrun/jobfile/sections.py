"""The sections of a job file: every key, its default and its rule.

A new section is one class here and one line in ``spec.JobSpec``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from zeusrun.jobfile.section import NO_CANDIDATE, Section
from zeusrun.jobfile.validators import CatchUp, Overlap, StartBy, check_history, check_url
from zeusrun.jobfile.values import Duration, Event, PolicyName, Processes, TimeOfDay, goes_with

if TYPE_CHECKING:
    from collections.abc import Iterable


def _check_gpus(gpus: str, info: ValidationInfo) -> str:
    if gpus == "auto" and isinstance(info.data.get("nproc_per_node"), str):
        raise ValueError("cannot be auto unless nproc_per_node is a number: each takes one GPU")
    return gpus


def _check_distributed(distributed: bool, info: ValidationInfo) -> bool:
    if not distributed and info.data.get("nproc_per_node") != 1:
        raise ValueError("cannot be false unless nproc_per_node is 1; remove one of them")
    return distributed


def _check_torchrun(options: Mapping[str, Any]) -> Mapping[str, Any]:
    if options:
        from zeusrun.jobfile.torchrun_options import check_options  # noqa: PLC0415 - few jobs have any

        check_options(options)
    return options


class Launch(Section):
    """How torchrun starts the processes, in torchrun's own words."""

    nproc_per_node: Processes = Field(
        1, description="Processes on a machine: a number, or gpu, cpu or auto to count devices."
    )
    gpus: Annotated[Literal["all", "auto", "shared"], AfterValidator(_check_gpus)] = Field(
        "all",
        description="all: every visible GPU, one job at a time; auto: one free GPU for each "
        "process; shared: together with other jobs.",
    )
    distributed: Annotated[bool, AfterValidator(_check_distributed)] = Field(
        True,
        description="false: one process without torchrun's variables (RANK and the like), which "
        "some scripts take for a distributed training.",
    )
    nnodes: int | None = Field(
        None, ge=1, description="Machines, as many as run_on names; with slurm, any (null: 1)."
    )
    max_restarts: int = Field(
        0, ge=0, description="How many times torchrun may restart the processes within one trial."
    )
    grace_period_s: float = Field(
        30, ge=1, description="Seconds that the processes have to stop before they are killed."
    )
    torchrun: Annotated[Mapping[str, Any], AfterValidator(_check_torchrun)] = Field(
        {}, description="More options of torchrun: {log_dir: logs}."
    )


class Objective(Section):
    """What counts as done, and what it may cost."""

    metric: str = Field(min_length=1, description="Name of the metric, as the script reports it.")
    target: float = Field(description="Value of the metric at which the job is done.")
    mode: Literal["max", "min"] = Field(
        "max", description="max: the target is reached from below; min: from above."
    )
    max_epochs: int = Field(40, ge=1, description="Epochs after which the target counts as missed.")
    eta_knob: float = Field(
        0.5, ge=0, le=1, description="What cost means: 1 is energy only, 0 is time only."
    )
    on_target: Literal["stop", "continue"] = Field(
        "stop", description="When the target is reached, stop the script, or let it continue."
    )
    missing_metric: Literal["stop", "continue"] = Field(
        "stop", description="After three epochs without the metric, stop the run, or continue."
    )


def _check_candidates(sizes: tuple[int, ...]) -> tuple[int, ...]:
    twice = sorted({size for size in sizes if sizes.count(size) > 1})
    if twice:
        listed = ", ".join(map(str, twice))
        raise ValueError(f"must name each batch size once; given more than once: {listed}")
    return tuple(sorted(sizes))


def _check_default(default: int, info: ValidationInfo) -> int:
    sizes = info.data.get("candidates")
    if sizes is not None and default not in sizes:
        listed = ", ".join(map(str, sizes))
        raise PydanticCustomError(NO_CANDIDATE, f"one of the candidates ({listed})")
    return default


class BatchSizes(Section):
    """Global batch sizes: samples per optimizer step over all ranks."""

    candidates: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...], AfterValidator(_check_candidates)
    ] = Field(
        strict=False,
        min_length=1,
        description="Global batch sizes to choose from; kept in ascending order.",
    )
    default: Annotated[int, AfterValidator(_check_default)] = Field(
        64, ge=1, description="Batch size of the first run; one of the candidates."
    )
    apply: Literal["script", "dataloader"] = Field(
        "script",
        description="How it reaches the training. script: by an argument or a call; dataloader: a "
        "hook hands it to the DataLoader that draws batches of default ÷ ranks.",
    )
    per_device_max: Annotated[int | None, goes_with("apply", "script")] = Field(
        None,
        ge=1,
        le=1 << 20,
        description="The most samples of a process in a forward pass; null: no limit.",
    )

    def check_divisible(self, world_size: int) -> None:
        """Raise ``ValueError`` if so many processes cannot share every batch size evenly."""
        uneven = [str(size) for size in self.candidates if size % world_size]
        if uneven:
            raise ValueError(
                f"has candidates that {world_size} processes cannot share evenly: "
                f"{', '.join(uneven)}; use multiples of {world_size}, or another "
                "launch.nproc_per_node"
            )
        check_split(self.candidates, world_size, self.per_device_max)


class LearningRate(Section):
    """The learning rate at the default batch size, and how it grows with the batch size."""

    base: float = Field(gt=0, description="Learning rate at batch_size.default.")
    scale: Literal["linear", "sqrt", "none"] = Field(
        "linear",
        description="How the learning rate grows with the batch size, relative to the default "
        "batch size.",
    )
    apply: Literal["script", "optimizer"] = Field(
        "script",
        description="How it reaches the training. script: by an argument or a call; optimizer: a "
        "hook hands it to optimizers that are built with base.",
    )

    def at(self, ratio: float) -> float:
        """Return the rate at ``ratio`` times the default batch size.

        ``linear``: Goyal et al., arXiv:1706.02677; ``sqrt``: Krizhevsky, arXiv:1404.5997.
        """
        return self.base * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[self.scale]


class PolicySection(Section, title="Policy"):
    """The policy, which chooses the batch size."""

    name: PolicyName = Field(
        "auto",
        description="auto: the least cost over many runs; zeus: the policy of the NSDI 2023 "
        "paper; fixed: only the default; grid: each once, then the cheapest; or the name of an "
        "installed plugin.",
    )
    window: int | None = Field(
        None, ge=1, description="Learn from the last N trials of each batch size; null: from all."
    )
    control: int | None = Field(
        None,
        ge=2,
        description="Run the default batch size in every Nth recurrence, so that what others save "
        "stays known; null: only where the policy chooses it.",
    )
    seed: int = Field(0, ge=0, description="Seed of the choices: same history, same choice.")
    learn_from_shared: bool = Field(
        False,
        description="Also learn speed and cost from trials that shared their GPUs, or their CPUs, "
        "with other programs.",
    )


class EarlyStop(Section):
    """When a trial that costs too much is stopped."""

    cost_factor: float | None = Field(
        2.0,
        gt=1,
        description="Stop a run at this multiple of the cost of the best batch size; null: "
        "never. auto stops runs of other batch sizes earlier.",
    )


class PowerLimit(Section):
    """How the power limit of the GPUs is set."""

    mode: Literal["optimize", "fixed", "observe"] = Field(
        "optimize",
        description="optimize: find and hold the best limit; fixed: hold watts; observe: change "
        "nothing.",
    )
    watts: Annotated[float | None, goes_with("mode", "fixed", example="watts: 200")] = Field(
        None, gt=0, description="The power limit of each GPU in watts, with mode fixed."
    )
    objective: Annotated[
        Literal["cost", "energy", "time", "max_slowdown"],
        goes_with("mode", "optimize", usual="cost"),
    ] = Field(
        "cost",
        description="What optimize minimises. cost: the cost, by objective.eta_knob; energy: "
        "joules; time: seconds; max_slowdown: joules, but at most factor times slower.",
    )
    factor: Annotated[
        float | None, goes_with("objective", "max_slowdown", example="factor: 1.1")
    ] = Field(
        None,
        ge=1,
        description="With max_slowdown: the longest allowed time, relative to the time at the "
        "highest limit, such as 1.1.",
    )


class StallSection(Section, title="Stall"):
    """What zeusrun does if the training takes no more optimizer steps."""

    after_s: float = Field(
        60,
        gt=0,
        description="A pause of at most this many seconds between optimizer steps is never a "
        "stall.",
    )
    action: Literal["report", "restart", "off"] = Field(
        "report",
        description="report: warn, with all stacks; restart: also restart the ranks; off: neither.",
    )


def _check_window(value: str | None, info: ValidationInfo) -> str | None:
    if value not in {None, "price"} and info.data.get("start_within", "") is None:
        raise ValueError("only goes with start_within, such as start_within: 6h")
    return value


class ScheduleSection(Section, title="Schedule"):
    """When the job runs by itself."""

    cron: str | None = Field(
        None,
        min_length=1,
        description='Cron expression ("0 2 * * *") or macro (@daily); null: the one that '
        "schedule add is given.",
    )
    tz: str | None = Field(
        None, min_length=1, description="Time zone, such as Europe/Paris; null: the machine's own."
    )
    overlap: Overlap = Field(
        "forbid",
        description="If the job is already running. forbid: skip; queue: wait; replace: end it "
        "first; allow: start a second run.",
    )
    catch_up: CatchUp = Field(
        "none",
        description="Of the runs missed while the machine was off: run none, or the newest one.",
    )
    deadline: Duration | None = Field(
        None, description="An occurrence that cannot start within this time is missed: 30m, 2h, 1d."
    )
    start_within: Duration | None = Field(
        None,
        description="Delay each start by up to this time, to the moment when power is cheapest or "
        "cleanest: 6h; null: start at once.",
    )
    finish_by: Annotated[TimeOfDay | None, AfterValidator(_check_window)] = Field(
        None,
        description='With start_within: the time of day by which the run shall end: "07:30".',
    )
    by: Annotated[StartBy, AfterValidator(_check_window)] = Field(
        "price",
        description="With start_within: choose the start by the price of power, or by its carbon.",
    )


class Keep(Section):
    """Which run directories are kept; the history keeps all trials, and the best run stays."""

    last: int | None = Field(None, ge=1, description="Keep files of the newest N runs; null: all.")


class Notify(Section):
    """Where notices of how a run ended are sent."""

    command: tuple[str, ...] = Field(
        (), strict=False, description="Command that receives the notice as JSON on standard input."
    )
    url: Annotated[str, AfterValidator(check_url)] | None = Field(
        None, description="http(s) address to which the notice is posted as JSON."
    )
    on: tuple[Event, ...] = Field(
        ("missed", "failed", "lost", "regression", "recovered"),
        strict=False,
        description="Events that cause a notice: reached, missed, failed, lost, regression, "
        "recovered.",
    )
    timeout_s: float = Field(10, gt=0, le=600, description="Seconds that each try may take.")


class HistorySection(Section, title="History"):
    """Where the runs of the job are recorded."""

    url: Annotated[str, AfterValidator(check_history)] | None = Field(
        None,
        description="The server (https://...) that several machines share; null: the server of "
        "ZEUSRUN_HISTORY or of `zeusrun connect`, else the files of this machine.",
    )
    wait_s: float = Field(
        300, ge=0, description="How long a submit waits for a server that does not respond."
    )
    offline: Literal["fail", "cheapest"] = Field(
        "fail",
        description="What a submit does after that. fail: exit 6; cheapest: run the cheapest known "
        "batch size, and deliver the result later.",
    )


def read_short_form(value: object) -> object:
    """Return ``history: URL`` as a section."""
    return {"url": value} if isinstance(value, str) else value


def split_batch(local_batch_size: int, per_device_max: int | None) -> tuple[int, int]:
    """Return the micro-batch size, and the accumulation steps that make up the local batch size.

    The steps are the fewest with which the micro-batches are equal and fit ``per_device_max``.
    ``None`` is no limit: one step.
    """
    largest = local_batch_size if per_device_max is None else min(local_batch_size, per_device_max)
    micro = next(size for size in range(largest, 0, -1) if local_batch_size % size == 0)
    return micro, local_batch_size // micro


def can_split(local_batch_size: int, per_device_max: int | None) -> bool:
    """Whether micro-batches of more than one sample fit, or one sample is all that may fit."""
    micro, steps = split_batch(local_batch_size, per_device_max)
    return micro > 1 or steps == 1 or per_device_max == 1


def check_split(sizes: Iterable[int], world_size: int, per_device_max: int | None) -> None:
    """Check that the share of each process in every batch size can be split.

    Raises:
        ValueError: If not. The message continues a sentence that starts with the key.
    """
    whole = [str(size) for size in sizes if not can_split(size // world_size, per_device_max)]
    if whole:
        raise ValueError(
            "has candidates that cannot be split into equal micro-batches of 2 to "
            f"{per_device_max} samples for each of {world_size} "
            f"process{'es' * (world_size > 1)}: {', '.join(whole)}; replace them, or choose "
            "another per_device_max"
        )

"""The sections of a job file and their texts: every key, its default and its rule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from zeusrun.jobfile.schema import ANY_TEXT, ENV_TEXT
from zeusrun.jobfile.validators import (
    POLICY_NAMES,
    CatchUp,
    Overlap,
    check_candidates,
    check_duration,
    check_env_name,
    check_gpus,
    check_name,
    check_node_count,
    check_power_limit,
    check_process_count,
    check_size,
    check_template,
    check_url,
    listed,
)


def check_text(text: str, info: ValidationInfo) -> str:
    """Return a text with placeholders if it can be used beside the values before it."""
    # Absent when the section is itself wrong: then its own error is the one to show.
    has_learning_rate = info.data.get("learning_rate", ...) is not None
    return check_template(text, has_learning_rate=has_learning_rate)


Template = Annotated[str, AfterValidator(check_text)]
PassedText = Annotated[Template, WithJsonSchema(ANY_TEXT)]
EnvText = Annotated[Template, WithJsonSchema(ENV_TEXT)]
EnvName = Annotated[str, AfterValidator(check_env_name)]
PolicyName = Annotated[
    str,
    AfterValidator(lambda name: check_name(name, POLICY_NAMES, "zeusrun.policies")),
    WithJsonSchema({"anyOf": [{"enum": list(POLICY_NAMES)}, {"type": "string"}]}),
]
Processes = Annotated[
    int | Literal["gpu", "cpu", "auto"],
    BeforeValidator(check_process_count),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["gpu", "cpu", "auto"]}]}
    ),
]


Event = Literal["reached", "missed", "failed", "lost", "regression", "recovered"]
Size = Annotated[str, BeforeValidator(check_size)]
Duration = Annotated[str, BeforeValidator(check_duration)]


class Section(BaseModel):
    """Frozen, strict (``true`` is no 1, ``"1"`` no 1), closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


class Launch(Section):
    """How torchrun starts the processes, in torchrun's own words."""

    nproc_per_node: Processes = Field(
        1, description="Processes on this machine: a number, or gpu, cpu or auto to count devices."
    )
    gpus: Literal["all", "auto", "shared"] = Field(
        "all",
        description="all: the visible ones, one job at a time; auto: as many free ones as there "
        "are processes; shared: with other jobs.",
    )
    nnodes: Annotated[int, AfterValidator(check_node_count)] = Field(
        1, description="Machines. Only 1 is supported so far."
    )
    max_restarts: int = Field(
        0, ge=0, description="How often torchrun may restart the processes within one trial."
    )
    grace_period_s: float = Field(
        30, ge=1, description="Seconds between asking the processes to stop and killing them."
    )

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, gpus: str, info: ValidationInfo) -> str:
        check_gpus(gpus, info.data)
        return gpus


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
        "stop", description="At the target, tell the script to stop, or let it train on."
    )
    missing_metric: Literal["stop", "continue"] = Field(
        "stop", description="After three epochs without the metric, stop the run, or let it go on."
    )


_DEFAULT_BATCH_SIZE = 64


class BatchSizes(Section):
    """The arms: global batch sizes, samples per optimizer step over all ranks."""

    candidates: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(strict=False, min_length=1),
        AfterValidator(check_candidates),
    ] = Field(description="Global batch sizes to choose from; kept in ascending order.")
    default: int = Field(
        _DEFAULT_BATCH_SIZE, ge=1, description="Where exploration starts; one of the candidates."
    )

    @field_validator("default")
    @classmethod
    def _check_default(cls, default: int, info: ValidationInfo) -> int:
        sizes = info.data.get("candidates")
        if sizes is not None and default not in sizes:
            one = f"must be one of the candidates ({listed(sizes)})"
            if default == _DEFAULT_BATCH_SIZE:
                raise ValueError(f"{one}; where it is not given it is {default}")
            raise ValueError(f"{one}, not {default}")
        return default


class LearningRate(Section):
    """The learning rate at the default batch size, and how it follows the batch size."""

    base: float = Field(gt=0, description="Learning rate at batch_size.default.")
    scale: Literal["linear", "sqrt", "none"] = Field(
        "linear", description="How the rate grows with the batch size over the default."
    )


class PolicySection(Section, title="Policy"):
    """What chooses the batch size."""

    name: PolicyName = Field(
        "auto",
        description="auto: least cost over time; zeus: the NSDI 2023 paper's; fixed: only the "
        "default; grid: each once, then the cheapest; or the name of an installed plugin.",
    )
    window: int | None = Field(
        None, ge=1, description="Learn from the last so many trials per batch size; null: from all."
    )
    seed: int = Field(0, ge=0, description="Seed of the choices: same history, same choice.")
    learn_from_shared: bool = Field(
        False, description="Learn speed and cost from trials whose GPUs others used, too."
    )


class EarlyStop(Section):
    """When a trial is given up."""

    cost_factor: float | None = Field(
        2.0,
        gt=1,
        description="Stop past this many times the cost of the best batch size; null: never. "
        "auto stops others earlier.",
    )


class PowerLimit(Section):
    """What to do about the GPUs' power limit."""

    mode: Literal["optimize", "fixed", "observe"] = Field(
        "optimize",
        description="optimize: find and hold the best; fixed: hold watts; observe: leave it.",
    )
    watts: float | None = Field(None, gt=0, description="Watts per GPU, with mode fixed.")
    objective: Literal["cost", "energy", "time", "max_slowdown"] = Field(
        "cost",
        description="What optimize looks for. cost: by objective.eta_knob; energy: the fewest "
        "joules; time: the fastest; max_slowdown: the fewest joules within factor.",
    )
    factor: float | None = Field(
        None, ge=1, description="With max_slowdown: times the highest limit's time, such as 1.1."
    )

    @field_validator("watts", "objective", "factor")
    @classmethod
    def _check(cls, value: float | str | None, info: ValidationInfo) -> float | str | None:
        return check_power_limit(str(info.field_name), value, info.data)


class StallSection(Section, title="Stall"):
    """What to do about a training that takes no optimizer step any more."""

    after_s: float = Field(
        60, gt=0, description="Seconds without an optimizer step that are no stall in any case."
    )
    action: Literal["report", "restart", "off"] = Field(
        "report",
        description="report: warn, with all stacks; restart: restart the ranks, too; off: neither.",
    )


class ScheduleSection(Section, title="Schedule"):
    """When the job runs by itself."""

    cron: str = Field(
        min_length=1, description='Cron expression ("0 2 * * *"), macro (@daily), or @every 6h.'
    )
    tz: str | None = Field(
        None, min_length=1, description="Time zone, such as Europe/Paris; null: the machine's own."
    )
    overlap: Overlap = Field(
        "forbid",
        description="If the job runs already. forbid: skip; queue: wait; replace: end it first; "
        "allow: run beside it.",
    )
    catch_up: CatchUp = Field(
        "none", description="Of runs missed while the machine was off: run none, or one."
    )
    jitter: Duration | None = Field(
        None, description="Start up to so much later, the same for each time: 30s, 1h30m."
    )
    deadline: Duration | None = Field(
        None, description="What cannot start within it is missed: 30m, 2h, 1d."
    )


class Keep(Section):
    """Which run directories are kept; the history keeps all trials, and the best run stays."""

    last: int | None = Field(None, ge=1, description="The newest so many runs; null: all.")
    days: float | None = Field(
        None, gt=0, description="Runs that ended within so many days; null: all."
    )
    size: Size | None = Field(
        None, description="The newest runs that fit into so much: 500 MB, 20 GB; null: all."
    )


class Notify(Section):
    """Who is told how a run ended."""

    command: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Command that gets the notice as JSON on standard input."
    )
    url: Annotated[str, AfterValidator(check_url)] | None = Field(
        None, description="http(s) address that the notice is posted to as JSON."
    )
    on: Annotated[tuple[Event, ...], Field(strict=False)] = Field(
        ("missed", "failed", "lost", "regression", "recovered"),
        description="Of which events: reached, missed, failed, lost, regression, recovered.",
    )
    timeout_s: float = Field(10, gt=0, le=600, description="Seconds that each try may take.")


class Metrics(Section):
    """Where the metric is read."""

    source: Literal["sidecar"] = Field(
        "sidecar", description="sidecar: what the script passes to zeusrun.current().report()."
    )

"""The job file as a frozen value: every key, its default and its rule (docs/job-file.md).

The only module that imports pydantic. The room ``jobfile`` reads the YAML, knows the rules that
a type cannot say and the ``${...}`` placeholders, and words what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations at run time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from zeusrun.errors import JobFileError
from zeusrun.jobfile.document import read_job_file, write_job_yaml
from zeusrun.jobfile.paths import find_missing_paths, resolve_path
from zeusrun.jobfile.placeholders import expand_placeholders, find_placeholders
from zeusrun.jobfile.rules import (
    check_candidates,
    check_divisible,
    check_env_name,
    check_job_name,
    check_module,
    check_node_count,
    check_power_limit,
    check_process_count,
    check_stall,
    check_template,
    learning_rate_factor,
    listed,
)
from zeusrun.jobfile.schema import ANY_TEXT, ENV_TEXT, finish_schema
from zeusrun.jobfile.secrets import hide_problems, read_secrets, write_secrets
from zeusrun.jobfile.sentences import collect_problems, describe_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.document import JobDocument, Problem


def _check_template(text: str, info: ValidationInfo) -> str:
    # Absent when the section is itself wrong: then its own error is the one to show.
    has_learning_rate = info.data.get("learning_rate", ...) is not None
    return check_template(text, has_learning_rate=has_learning_rate)


_Template = Annotated[str, AfterValidator(_check_template)]
_PassedText = Annotated[_Template, WithJsonSchema(ANY_TEXT)]
_EnvText = Annotated[_Template, WithJsonSchema(ENV_TEXT)]
_EnvName = Annotated[str, AfterValidator(check_env_name)]
_Processes = Annotated[
    int | Literal["gpu", "cpu", "auto"],
    BeforeValidator(check_process_count),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["gpu", "cpu", "auto"]}]}
    ),
]


class _Section(BaseModel):
    """Frozen, strict (``true`` is no 1, ``"1"`` no 1), closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


class Launch(_Section):
    """How torchrun starts the processes, in torchrun's own words."""

    nproc_per_node: _Processes = Field(
        2, description="Processes on this machine: a number, or gpu, cpu or auto to count devices."
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


class Objective(_Section):
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


class BatchSizes(_Section):
    """The arms: global batch sizes, samples per optimizer step over all ranks."""

    candidates: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(strict=False, min_length=1),
        AfterValidator(check_candidates),
    ] = Field(description="Global batch sizes to choose from; kept in ascending order.")
    default: int = Field(64, ge=1, description="Where exploration starts; one of the candidates.")

    @field_validator("default")
    @classmethod
    def _check_default(cls, default: int, info: ValidationInfo) -> int:
        sizes = info.data.get("candidates")
        if sizes is not None and default not in sizes:
            raise ValueError(f"must be one of the candidates ({listed(sizes)}), not {default}")
        return default


class LearningRate(_Section):
    """The learning rate at the default batch size, and how it follows the batch size."""

    base: float = Field(gt=0, description="Learning rate at batch_size.default.")
    scale: Literal["linear", "sqrt", "none"] = Field(
        "linear", description="How the rate grows with the batch size over the default."
    )


class Policy(_Section):
    """What chooses the batch size."""

    name: Literal["auto", "zeus", "fixed", "grid"] = Field(
        "auto",
        description="auto: least cost over time; zeus: the NSDI 2023 paper's; fixed: only the "
        "default; grid: each once, then the cheapest.",
    )
    window: int | None = Field(
        None, ge=1, description="Learn from the last so many trials per batch size; null: from all."
    )
    seed: int = Field(0, ge=0, description="Seed of the choices: same history, same choice.")
    learn_from_shared: bool = Field(
        False, description="Learn speed and cost from trials whose GPUs others used, too."
    )


class EarlyStop(_Section):
    """When a trial is given up."""

    cost_factor: float | None = Field(
        2.0,
        gt=1,
        description="Stop past this many times the cost of the best batch size; null: never. "
        "auto stops others earlier.",
    )


class PowerLimit(_Section):
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


class Stall(_Section):
    """What to do about a training that takes no optimizer step any more."""

    after_s: float = Field(
        60, gt=0, description="Seconds without an optimizer step that are no stall in any case."
    )
    action: Literal["report", "restart", "off"] = Field(
        "report",
        description="report: warn, with all stacks; restart: restart the ranks, too; off: neither.",
    )


class Metrics(_Section):
    """Where the metric is read."""

    source: Literal["sidecar"] = Field(
        "sidecar", description="sidecar: what the script passes to zeusrun.current().report()."
    )


class JobSpec(_Section):
    """One recurring training job. Read it with ``load_spec``.

    ``learning_rate`` is declared before the texts that may use ``${learning_rate}``, and
    ``launch`` before ``batch_size``: a validator sees only the fields above it. A section is
    described by its class.
    """

    source: Path = Field(exclude=True, strict=False, description="The job file; absolute.")
    secrets: frozenset[str] = Field(frozenset(), exclude=True)  # the names in env
    name: Annotated[str, AfterValidator(check_job_name)] = Field(
        description="The recurring job; all runs of a name share one history."
    )
    learning_rate: LearningRate | None = Field(
        None, description="Without it, zeusrun leaves the learning rate to the script."
    )
    script: _Template | None = Field(
        None, min_length=1, description="Training script; relative to the job file."
    )
    module: str | None = Field(
        None, min_length=1, description="Module to run as with python -m, instead of a script."
    )
    args: Annotated[tuple[_PassedText, ...], Field(strict=False)] = Field(
        (), description="Arguments of the script; ${...} placeholders are filled in."
    )
    env: Annotated[
        Mapping[_EnvName, _EnvText], AfterValidator(MappingProxyType), PlainSerializer(dict)
    ] = Field(
        {}, repr=False, description="Environment variables of the script, beside the inherited."
    )
    workdir: Path = Field(
        Path(), strict=False, description="Where the script runs; relative to the job file."
    )
    instrument: bool = Field(
        True, description="Run the script under zeusrun's worker: step clock, causes, gentle stop."
    )
    launch: Launch = Launch()
    objective: Objective
    batch_size: BatchSizes
    policy: Policy = Policy()
    early_stop: EarlyStop = EarlyStop()
    attempts: int = Field(
        5, ge=1, description="Trials in one submit before the target counts as missed."
    )
    power_limit: PowerLimit = PowerLimit()
    stall: Stall = Stall()
    metrics: Metrics = Metrics()
    timeout_s: float | None = Field(
        None, gt=0, description="Seconds a trial may last at most; null: no bound."
    )

    @field_validator("module")
    @classmethod
    def _check_module(cls, module: str | None, info: ValidationInfo) -> str | None:
        return check_module(module, info.data)

    @field_validator("workdir")
    @classmethod
    def _make_workdir_absolute(cls, workdir: Path, info: ValidationInfo) -> Path:
        text = _check_template(str(workdir), info)
        return workdir if "$" in text else resolve_path(info.data["source"], text, escape=True)

    @field_validator("batch_size")
    @classmethod
    def _check_divisible(cls, sizes: BatchSizes, info: ValidationInfo) -> BatchSizes:
        launch = info.data.get("launch")
        if launch is not None and isinstance(launch.nproc_per_node, int):
            check_divisible(sizes.candidates, launch.nproc_per_node)
        return sizes

    @field_validator("stall")
    @classmethod
    def _check_stall(cls, stall: Stall, info: ValidationInfo) -> Stall:
        check_stall(stall.action, info.data)
        return stall

    def check_world_size(self, world_size: int) -> None:
        """Check that every candidate can be shared evenly by so many processes.

        Loading does it where ``nproc_per_node`` is a number; where it is counted from the devices,
        the count is known only at submit.

        Raises:
            JobFileError: If a candidate is not divisible by ``world_size``.
        """
        try:
            check_divisible(self.batch_size.candidates, world_size)
        except ValueError as error:
            raise JobFileError(f"{self.source}: 'batch_size' {error}") from error

    def learning_rate_for(self, global_batch_size: int) -> float | None:
        """Return the learning rate at a batch size; ``None`` without a learning_rate section."""
        if self.learning_rate is None:
            return None
        ratio = global_batch_size / self.batch_size.default
        return self.learning_rate.base * learning_rate_factor(self.learning_rate.scale, ratio)

    def script_path(self, values: Mapping[str, str]) -> Path | None:
        """Return the script's absolute path with placeholders filled in; ``None`` for a module.

        Raises:
            JobFileError: If a placeholder has no value.
        """
        if self.script is None:
            return None
        return resolve_path(self.source, expand_placeholders(self.script, values))

    def workdir_path(self, values: Mapping[str, str]) -> Path:
        """Return the working directory with placeholders filled in.

        The attribute ``workdir`` is absolute too, unless a placeholder stands in it.

        Raises:
            JobFileError: If a placeholder has no value.
        """
        return resolve_path(self.source, expand_placeholders(str(self.workdir), values))

    def to_yaml(self) -> str:
        """Return the job as understood, overrides applied and defaults spelt out.

        ``load_spec`` reads it from any directory as the same job, if no path holds a placeholder
        and no variable is secret.
        """
        record = self.model_dump(mode="json")
        write_secrets(record, self.secrets)
        del record["script" if self.script is None else "module"]
        if self.script is not None and not find_placeholders(self.script):
            record["script"] = str(resolve_path(self.source, self.script, escape=True))
        return write_job_yaml(record)


def load_spec(path: Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read a job file.

    Args:
        path: The job file.
        overrides: ``section.key=value`` each, the value in YAML; they win over the file.

    Raises:
        JobFileError: If anything is wrong, with all that is wrong in it, one per line as
            ``file:line: sentence`` or ``--set override: sentence``.
    """
    if path.suffix == ".py":
        raise JobFileError(f"{path}: is a Python script; name it as 'script' in a job file")
    document = read_job_file(path, overrides)
    source = Path(os.path.abspath(path))  # noqa: PTH100 - absolute() keeps "..", resolve() leaves links
    secrets = read_secrets(document)
    problems = [*document.problems, *find_missing_paths(document, source)]
    ours = _OWN_FIELDS & document.data.keys()
    problems += [_describe({"type": "extra_forbidden", "loc": (key,)}, document) for key in ours]
    try:
        values = {**document.data, "source": source, "secrets": secrets}
        spec = JobSpec.model_validate(values)
    except ValidationError as error:
        seen = {problem.path for problem in problems}
        described = [_describe(dict(e), document) for e in error.errors(include_url=False)]
        found = hide_problems(described, secrets)
        problems += [problem for problem in found if problem.path not in seen]
        # Without its cause, which quotes what was given.
        raise collect_problems(document, problems) from None
    if problems:
        raise collect_problems(document, problems)
    return spec


def spec_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, for editors: descriptions, defaults, no other keys."""
    return finish_schema(JobSpec.model_json_schema(), _OWN_FIELDS)


def _describe(error: Mapping[str, Any], document: JobDocument) -> Problem:
    return describe_error(error, _SECTIONS, document.label)


_OWN_FIELDS = frozenset({"source", "secrets"})  # of a job, and no keys of its file
_KEYS = [key for key in JobSpec.model_fields if key not in _OWN_FIELDS]
_SECTIONS: dict[str, list[str]] = {"": _KEYS} | {
    name: list(kind.model_fields)
    for name, field in JobSpec.model_fields.items()
    for kind in (field.annotation, *get_args(field.annotation))
    if isinstance(kind, type) and issubclass(kind, _Section)
}

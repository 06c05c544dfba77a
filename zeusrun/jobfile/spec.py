"""The job file as a frozen value: every key, its default and its rule (docs/job-file.md)."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations at run time
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    create_model,
)

from zeusrun.errors import JobFileError
from zeusrun.job_name import check_job_name
from zeusrun.jobfile.metrics_section import Metrics, find_metrics
from zeusrun.jobfile.placeholders import expand_placeholders, find_placeholders, find_shares
from zeusrun.jobfile.plugged import (
    Plugged,
    check_launch,
    count_ranks,
    find_section,
    plug,
    read_run_on,
)
from zeusrun.jobfile.secrets import Secret, hide_secret, mask_items, read_secrets, write_secrets
from zeusrun.jobfile.section import Section, validate
from zeusrun.jobfile.sections import (
    BatchSizes,
    EarlyStop,
    HistorySection,
    Keep,
    Launch,
    LearningRate,
    Notify,
    Objective,
    PolicySection,
    PowerLimit,
    ScheduleSection,
    StallSection,
    read_short_form,
)
from zeusrun.jobfile.values import (
    EnvName,
    PassedText,
    Pue,
    Template,
    can_run,
    check_path,
    check_text,
    resolve_path,
)
from zeusrun.jobfile.yaml_reader import read_job_file, write_job_yaml
from zeusrun.parts import PARTS
from zeusrun.trial import name_variant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.jobfile.plugged import PartSection
    from zeusrun.jobfile.run_on_section import Machines
    from zeusrun.jobfile.tariff_section import Carbon, Price

    _RunOn: TypeAlias = Machines | None
    _Price: TypeAlias = Price | None
    _Carbon: TypeAlias = Carbon | None
else:
    _RunOn = Annotated[Any, Plugged(partial(find_section, "run_on")), BeforeValidator(read_run_on)]
    _Price = Annotated[Any, Plugged(partial(find_section, "price"))]
    _Carbon = Annotated[Any, Plugged(partial(find_section, "carbon"))]


_Value = TypeVar("_Value")


def _first(values: Iterable[_Value | None]) -> _Value | None:
    """Return the first value that is not ``None``."""
    return next(filter(None, values), None)


def _check_instrument(instrument: bool, info: ValidationInfo) -> bool:
    rate = info.data.get("learning_rate")
    if rate is not None and rate.apply == "optimizer" and not instrument:
        raise ValueError("is false, so no hook runs for learning_rate.apply: optimizer")
    return instrument


def _check_batch_size(sizes: BatchSizes, info: ValidationInfo) -> BatchSizes:
    ranks = count_ranks(info.data)
    if ranks is not None:
        sizes.check_divisible(ranks)
        texts = [*info.data.get("args", ()), *info.data.get("env", {}).values()]
        _check_shares(sizes, texts, ranks)
    if sizes.apply == "dataloader" and info.data.get("instrument") is False:
        raise ValueError("has apply: dataloader, but no hook runs with instrument: false")
    return sizes


def _check_notify(notify: Notify, info: ValidationInfo) -> Notify:
    program = notify.command[0] if notify.command else ""
    if "/" in program and not program.startswith("/"):  # else it is found on PATH
        check_path(info, program.replace("$", "$$"), os.path.isfile, "has a command")
    return notify


def _check_stall(stall: StallSection, info: ValidationInfo) -> StallSection:
    launch = info.data.get("launch")
    if stall.action == "restart" and launch is not None and launch.max_restarts == 0:
        raise ValueError(
            "has action: restart, but torchrun may not restart the processes; "
            "set launch.max_restarts to 1 or more"
        )
    if stall.action == "restart" and info.data.get("instrument") is False:
        raise ValueError("has action: restart, but no step is seen with instrument: false")
    return stall


def _check_metrics(metrics: Metrics, info: ValidationInfo) -> Metrics:
    if metrics.path is not None:
        check_text(metrics.path, info)
    objective, groups = info.data.get("objective"), find_metrics(metrics.pattern)
    wanted = metrics.name or (objective.metric if objective else None)
    if metrics.pattern and wanted is not None and wanted not in groups:
        raise ValueError(
            f"has no group {wanted!r} in its pattern, which has "
            f"{', '.join(groups) or 'only counters'}; name the group of objective.metric so, "
            "or name it in metrics.name"
        )
    return metrics


def _check_script(script: str | None, info: ValidationInfo) -> str | None:
    if script is not None:
        if script.endswith(_NO_SCRIPT):
            raise ValueError(f"must be a Python script, not {script!r}")
        check_path(info, script, can_run, "names a file", " without a __main__.py")
    return script


def _check_module(module: str | None, info: ValidationInfo) -> str | None:
    if "script" in info.data:  # else it is itself wrong, and its own error counts
        if info.data["script"] is not None and module is not None:
            raise ValueError("cannot be used together with 'script'; keep one of them")
        if info.data["script"] is None and module is None:
            raise ValueError("or 'script' is missing; say what to run: script: train.py")
    if module is not None and not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)*", module):
        raise ValueError(f"must be a dotted name such as package.train, not {module!r}")
    return module


def _make_workdir_absolute(workdir: Path, info: ValidationInfo) -> Path:
    text = check_text(str(workdir), info)
    check_path(info, text, os.path.isdir, "names a directory")
    return workdir if "$" in text else resolve_path(info.data["source"], text, escape=True)


class _Job(Section):
    """One recurring training job; ``load_spec`` reads it.

    A validator sees the fields above its own: ``learning_rate``, then texts with placeholders,
    ``run_on``, ``launch``, ``batch_size``.
    """

    source: Path = Field(exclude=True, strict=False, description="The job file; absolute.")
    secrets: Mapping[Any, Secret] = Field({}, exclude=True, repr=False)  # by ("args", place), ...
    name: Annotated[str, AfterValidator(check_job_name)] = Field(
        description="The recurring job; all runs of a name share one history."
    )
    learning_rate: LearningRate | None = Field(
        None, description="Without it, zeusrun leaves the learning rate to the script."
    )
    script: Annotated[Template | None, AfterValidator(_check_script)] = Field(
        None,
        min_length=1,
        description="Training script, or a folder or zip file with a __main__.py; relative to the "
        "job file.",
    )
    module: Annotated[str | None, AfterValidator(_check_module)] = Field(
        None, min_length=1, description="Module to run as with python -m, instead of a script."
    )
    args: tuple[PassedText, ...] = Field(
        (),
        strict=False,
        repr=False,
        description="Arguments of the script; zeusrun fills in ${...} placeholders.",
    )
    env: Annotated[
        Mapping[EnvName, PassedText], AfterValidator(MappingProxyType), PlainSerializer(dict)
    ] = Field(
        {},
        repr=False,
        description="Environment variables of the script, in addition to the inherited ones.",
    )
    workdir: Annotated[Path, AfterValidator(_make_workdir_absolute)] = Field(
        Path(), strict=False, description="Where the script runs; relative to the job file."
    )
    instrument: Annotated[bool, AfterValidator(_check_instrument)] = Field(
        True,
        description="Run the script under zeusrun's worker, which counts steps, records the "
        "cause of a crash, and stops gently.",
    )
    run_on: _RunOn = Field(None, description="Machines of the job; local or null: this one alone.")
    launch: Annotated[Launch, AfterValidator(check_launch)] = Launch()
    objective: Objective
    batch_size: Annotated[BatchSizes, AfterValidator(_check_batch_size)]
    policy: PolicySection = PolicySection()
    early_stop: EarlyStop = EarlyStop()
    attempts: int = Field(
        5, ge=1, description="Attempts in one submit before the target counts as missed."
    )
    power_limit: PowerLimit = PowerLimit()
    stall: Annotated[StallSection, AfterValidator(_check_stall)] = StallSection()
    metrics: Annotated[Metrics, AfterValidator(_check_metrics)] = Metrics()
    schedule: ScheduleSection | None = Field(
        None, description="When it runs by itself; zeusrun schedule add turns it on."
    )
    price: _Price = None
    carbon: _Carbon = None
    pue: Pue | None = Field(None, description="Power usage effectiveness of the site.")
    history: Annotated[HistorySection, BeforeValidator(read_short_form)] = Field(
        HistorySection(), description="Where the runs are recorded: its URL, or a section."
    )
    keep: Keep = Keep()
    notify: Annotated[Notify, AfterValidator(_check_notify)] = Notify()
    timeout_s: float | None = Field(
        None, gt=0, description="Seconds that a trial may last at most; null: no limit."
    )

    def check_world_size(self, world_size: int) -> None:
        """Raise ``JobFileError`` if so many processes cannot share every candidate evenly.

        ``load_spec`` checks this itself if the job file says how many there are.
        """
        section = "batch_size"
        try:
            self.batch_size.check_divisible(world_size)
            _check_shares(self.batch_size, [*self.args, *self.env.values()], world_size)
            for section, part in self.parts.items():  # noqa: B007 - for the error
                part.check_divisible(world_size)
        except ValueError as error:
            raise JobFileError(f"{self.source}: '{section}' {error}") from error

    @property
    def parts(self) -> dict[str, PartSection]:
        """The parts of the job that change or watch its training, by the keys of the job file."""
        return {name: part for name in PARTS if (part := getattr(self, name)) is not None}

    @property
    def variant(self) -> str | None:
        """How the batch size adapts within a run, and the ranks agree; ``None`` for neither."""
        parts = self.parts.values()
        batch = _first(part.batch_variant for part in parts)
        return name_variant(batch, _first(part.sync_variant for part in parts))

    @property
    def adapts(self) -> bool:
        """Whether a policy changes the batch size within a run."""
        return any(part.adapts for part in self.parts.values())

    @property
    def most_ranks(self) -> int | None:
        """The largest number of ranks; ``None`` if their number does not change."""
        return _first(part.most_ranks for part in self.parts.values())

    def learning_rate_for(self, global_batch_size: int) -> float | None:
        """Return the learning rate at a batch size; ``None`` without a learning_rate section."""
        if self.learning_rate is None:
            return None
        return self.learning_rate.at(global_batch_size / self.batch_size.default)

    def script_path(self, values: Mapping[str, str]) -> Path | None:
        """Return the absolute path of the script, its placeholders expanded; ``None``: a module."""
        if self.script is None:
            return None
        return resolve_path(self.source, expand_placeholders(self.script, values))

    def workdir_path(self, values: Mapping[str, str]) -> Path:
        """Return the absolute working directory, its placeholders expanded."""
        return resolve_path(self.source, expand_placeholders(str(self.workdir), values))

    def notify_command(self) -> list[str]:
        """Return ``notify.command``, a path made absolute."""
        command = list(self.notify.command)
        if command and "/" in command[0]:
            command[0] = str(self.source.parent / command[0])
        return command

    def masked(self) -> JobSpec:
        """Return the job as it is shown, without its secrets."""
        args, env = mask_items(self.args, self.env, self.secrets)
        return self.model_copy(update={"args": tuple(args), "env": MappingProxyType(env)})

    def to_yaml(self) -> str:
        """Return the job with overrides applied and defaults written out.

        ``load_spec`` reads it from any directory as the same job, if no path has a placeholder
        and the job file contains no secret.
        """
        record = self.model_dump(mode="json")
        write_secrets(record, self.secrets)
        del record["script" if self.script is None else "module"]
        if self.script is not None and not find_placeholders(self.script):
            record["script"] = str(resolve_path(self.source, self.script, escape=True))
        if self.notify.command and "/" in self.notify.command[0]:
            record["notify"]["command"] = self.notify_command()
        for name, section in (("price", self.price), ("carbon", self.carbon)):
            if section is not None and section.csv is not None:
                record[name]["csv"] = str(section.csv_path(self.source.parent))
        if self.run_on is not None and self.run_on.hostfile is not None:
            record["run_on"]["hostfile"] = str(self.run_on.hostfile_path(self.source.parent))
        return write_job_yaml(record)


if TYPE_CHECKING:
    JobSpec = _Job
else:  # with a key for each part
    JobSpec = create_model("JobSpec", __base__=_Job, **{name: (plug(name), None) for name in PARTS})
    JobSpec.__doc__ = _Job.__doc__


def sketch_spec(
    name: str,
    objective: Mapping[str, Any],
    *,
    candidates: Sequence[int],
    default: int,
    cost_factor: float | None,
    window: int | None = None,
) -> JobSpec:
    """Return a job without a script, of values that are known to be valid: for choices alone."""
    return JobSpec.model_construct(
        source=Path(),
        name=name,
        objective=Objective.model_construct(**objective),
        batch_size=BatchSizes.model_construct(candidates=tuple(candidates), default=default),
        early_stop=EarlyStop.model_construct(cost_factor=cost_factor),
        policy=PolicySection.model_construct(window=window),
    )


def load_spec(path: Path, overrides: Sequence[str] = (), folder: Path | None = None) -> JobSpec:
    """Read a job file; ``overrides`` are ``section.key=value`` in YAML and win over the file.

    ``folder`` takes the place of the folder that the file is in.

    Raises:
        JobFileError: If anything is wrong. It names each problem on its own line, as
            ``file:line: sentence`` or ``--set override: sentence``.
    """
    if path.suffix == ".py":
        raise JobFileError(f"{path} is a Python script; name it as 'script' in a job file")
    document = read_job_file(path, overrides)
    source = Path(os.path.abspath(path if folder is None else folder / path.name))  # noqa: PTH100 - absolute() keeps "..", resolve() leaves links
    secrets = read_secrets(document, source.parent)
    values = {**document.data, "source": source, "secrets": secrets}
    hide = partial(hide_secret, secrets=secrets)
    try:
        return validate(JobSpec, document, values, OWN, hide)
    except JobFileError:
        if not overrides:
            raise
        with contextlib.suppress(JobFileError):
            load_spec(path)
            document.blame_overrides()  # the file alone is valid
    return validate(JobSpec, document, values, OWN, hide)  # the same, with other places


def load_keep(path: Path) -> Keep:
    """Read only the ``keep`` section of a job file, whatever else is wrong with the file."""
    try:
        return Keep.model_validate(read_job_file(path, ()).data.get("keep") or {})
    except ValidationError:
        raise JobFileError(f"{path}: its section 'keep' is not usable") from None


OWN = frozenset({"source", "secrets"})
"""Fields that are no keys of the file."""

_NO_SCRIPT = (".yaml", ".yml", ".json", ".sh", ".ipynb")


def _check_shares(sizes: BatchSizes, texts: Sequence[str], ranks: int) -> None:
    """Raise ``ValueError`` if a divided placeholder is no whole number for a candidate."""
    for name, share in (each for text in texts for each in find_shares(text)):
        count = ranks if name == "local_batch_size" else 1
        if uneven := [str(size) for size in sizes.candidates if size % (share * count)]:
            raise ValueError(
                f"has candidates for which ${{{name}/{share}}} is no whole number: "
                f"{', '.join(uneven)}; use multiples of {share * count}"
            )

"""Sections of a job file that are plugged in: their modules are imported if a job has them."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import AfterValidator, ValidationInfo
from pydantic_core import core_schema

from zeusrun.jobfile.hosts import parse_hosts
from zeusrun.jobfile.section import Section
from zeusrun.parts import load_part
from zeusrun.run_on.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema
    from typing_extensions import Self

    from zeusrun.jobfile.sections import BatchSizes, Launch
    from zeusrun.trial import Hardware, Trial


class Plugged:
    """The type of a field: a section that ``load`` imports, or nothing."""

    def __init__(self, load: Callable[[], type[Section]]) -> None:
        self.load = load

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kind = self.load()
        found = handler(core_schema.nullable_schema(kind.__pydantic_core_schema__))
        return {**found, "default": None, "description": kind.summary}

    def _read(self, value: object) -> Section | None:
        if value is None:
            return None
        return self.load().model_validate(value)


class Chosen(NamedTuple):
    """What was chosen for a trial, as far as parts need it.

    ``fitting`` is the largest global batch size that fits in memory, in samples; ``None``: use the
    limit of the job file. ``earlier``: the newest trials of the job, oldest first.
    """

    sizes: BatchSizes
    trial: Trial
    fitting: int | None
    earlier: Sequence[Trial] = ()

    @property
    def ranks(self) -> int:
        """How many there are at the start."""
        return self.trial.world_size


class PartSection(Section):
    """The section of a part, which changes or watches a training. See ``zeusrun/parts.py``."""

    key: ClassVar[str]
    """Of the part, in the job file."""
    adapts: ClassVar[bool] = False
    """Whether a policy of the part changes the batch size."""
    excludes: ClassVar[tuple[str, ...]] = ()
    """The parts that cannot be used together with it."""

    @classmethod
    def of(cls, parts: Mapping[str, PartSection]) -> Self | None:
        """Return this section of a job; ``None`` without it."""
        return next((part for part in parts.values() if isinstance(part, cls)), None)

    @property
    def batch_variant(self) -> str | None:
        """How the batch size changes within a run, for ``Trial.variant``."""
        return None

    @property
    def sync_variant(self) -> str | None:
        """How the ranks agree, for ``Trial.variant``."""
        return None

    @property
    def speed_variant(self) -> str | None:
        """What else the part does that changes the speed, for ``Trial.speed_variant``."""
        return None

    @property
    def most_ranks(self) -> int | None:
        """The largest number of ranks; ``None`` if the part does not change their number."""
        return None

    def explain(self, earlier: Sequence[Trial], hardware: Hardware) -> str | None:  # noqa: ARG002
        """Return what the next run does by itself, as a sentence; ``None``: nothing to say.

        ``earlier``: the newest trials of the job on this machine, oldest first.
        """
        return None

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if the values of other keys do not allow the section.

        ``data`` has the values of the keys above the section; a key with an error is missing.
        """

    def check_divisible(self, world_size: int) -> None:
        """Raise ``ValueError`` if a batch size of the part is not divisible by ``world_size``."""

    def warn_of(self, script: str) -> str | None:  # noqa: ARG002 - most need no script
        """Return what will probably go wrong with a script of this text."""
        return None

    def tell(self, chosen: Chosen) -> dict[str, Mapping[str, Any]]:  # noqa: ARG002 - some need it
        """Return the values for the rank side of the part, by its key, for ``RankPlan.parts``.

        By default, they are those of the section. If the part needs another part, it may return
        values for both; the job file may lack the section of the other part.
        """
        return {self.key: self.model_dump()}

    def starter(
        self,
        trial: Trial,  # noqa: ARG002 - see above
        max_restarts: int,  # noqa: ARG002
        others: Mapping[str, object],  # noqa: ARG002
    ) -> tuple[str, str] | None:
        """Return the program that starts the ranks in place of torchrun; ``None``: torchrun.

        The program is the name of a module with a function ``main``, and its plan in JSON.
        ``others``: how it finds the programs on the other hosts; empty with one host.
        """
        return None


def find_part(name: str) -> type[PartSection]:
    """Return the section of a part."""
    section: type[PartSection] = load_part(name, "section").SECTION
    return section


def plug(name: str) -> Any:  # noqa: ANN401 - the type of a field
    """Return the type of the key of a part, which checks the keys above it."""

    def check(section: PartSection | None, info: ValidationInfo) -> PartSection | None:
        if section is not None:
            if info.data.get("instrument") is False:
                raise ValueError("needs the hooks of zeusrun; remove instrument: false")
            section.check(info.data)
            for other in section.excludes:
                if info.data.get(other) is not None:
                    raise ValueError(f"cannot be used together with {other!r}; keep one of them")
        return section

    return Annotated[Any, Plugged(partial(find_part, name)), AfterValidator(check)]


LOCAL = "local"
"""``run_on: local`` is the same as no section: this machine alone."""


def read_run_on(value: object) -> object:
    """Return what the short forms stand for: ``local``, and ``slurm`` for ``{slurm: {}}``.

    Raises:
        ValueError: If the value is another text, or a list.
    """
    if isinstance(value, str) and value in BACKENDS:
        return {value: {}}
    if isinstance(value, (str, list)) and value != LOCAL:
        forms = ", ".join(f"{{{name}: ...}}" for name in BACKENDS)
        raise ValueError(
            f"must be local, or a section such as {{hosts: [a, b]}}, {forms}, not {value!r}"
        )
    return None if value == LOCAL else value


SECTIONS = {
    "run_on": ("run_on_section", "RunOn"),
    "price": ("tariff_section", "Price"),
    "carbon": ("tariff_section", "Carbon"),
}
"""Sections of this package that few jobs have: the module and the class."""


def find_section(key: str) -> type[Section]:
    """Return one of ``SECTIONS``."""
    module, kind = SECTIONS[key]
    section: type[Section] = getattr(importlib.import_module(f"zeusrun.jobfile.{module}"), kind)
    return section


def check_launch(launch: Launch, info: ValidationInfo) -> Launch:
    """Return ``launch`` if a job can be launched so on the machines of ``run_on``."""
    if "run_on" not in info.data:  # it is itself wrong, and its own error counts
        return launch
    if info.data["run_on"] is not None:
        info.data["run_on"].check_launch(launch)
    elif launch.nnodes not in {None, 1}:
        raise ValueError(
            f"has nnodes: {launch.nnodes}, but no machines are named; add run_on: slurm, or "
            "{hosts: [a, b]}"
        )
    return launch


def count_ranks(values: Mapping[str, Any]) -> int | None:
    """Return the processes of ``launch`` on all machines of ``run_on``.

    ``None`` if the job file alone does not say it, or one of the two is absent because it is wrong.
    """
    launch, run_on = values.get("launch"), values.get("run_on")
    if launch is None or "run_on" not in values:
        return None
    if run_on is None or run_on.scheduler is not None:
        counts = [launch.nproc_per_node] * (launch.nnodes or 1)
    else:  # a hostfile may have changed
        counts = [host.slots or launch.nproc_per_node for host in parse_hosts(run_on.hosts)]
    return sum(counts) if counts and all(isinstance(each, int) for each in counts) else None

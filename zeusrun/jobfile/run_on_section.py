"""The section ``run_on`` of a job file: the machines of a job, and how they are reached."""

from __future__ import annotations

import contextlib
import re
import shlex
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, create_model, model_validator

from zeusrun.errors import JobFileError
from zeusrun.jobfile.hosts import Host, parse_host, parse_hostfile, parse_hosts
from zeusrun.jobfile.plugged import LOCAL, Plugged
from zeusrun.jobfile.section import Section
from zeusrun.jobfile.validators import check_one
from zeusrun.jobfile.values import read_by, user_path
from zeusrun.jobfile.yaml_reader import read_text
from zeusrun.run_on.registry import BACKENDS, load

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from zeusrun.jobfile.sections import Launch

JOIN = "join"
"""``fan_out: join`` starts nothing: a person runs ``zeusrun join`` on each other host."""

SSH = "ssh -o BatchMode=yes {host}"
"""How other hosts are reached if ``fan_out`` does not say it."""

_MAX_BYTES = 1 << 20  # of a hostfile: 10,000 hosts with a line for each of eight slots


def _check_nic(nic: str) -> str:
    if not re.fullmatch(r"[^\s/-][^\s/]{0,14}", nic):  # as Linux: IFNAMSIZ is 16, with the NUL
        raise ValueError(f"must be the name of a network interface, such as eth0, not {nic!r}")
    return nic


def _read_ports(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1024 <= first < last <= 65535:
        raise ValueError(f"must be two ports from 1024 to 65535, such as 29400-29499, not {text!r}")
    return first, last


def _check_fan_out(text: str) -> str:
    words: list[str] = []
    with contextlib.suppress(ValueError):  # a quote that does not end
        words = shlex.split(text)
    if words != [JOIN] and not any("{host}" in word for word in words[1:]):
        raise ValueError(f"must be join, or a command such as 'ssh {{host}}', not {text!r}")
    return text


class SchedulerSection(Section):
    """What is asked of a scheduler; the section of a backend inherits it."""

    fan_out: ClassVar[str] = SSH
    """How the other hosts of a job are reached if ``run_on.fan_out`` does not say it."""
    ports: ClassVar[tuple[int, int] | None] = None
    """The first and the last port to listen on, if ``run_on.port_range`` does not say it."""
    joins_alone: ClassVar[bool] = False
    """Whether the other hosts join by themselves, as soon as they can."""

    @classmethod
    def of(cls, run_on: Machines | None) -> Self:
        """Return this section of ``run_on``; raise ``JobFileError`` if the job does not have it."""
        section = None if run_on is None else run_on.scheduled
        if not isinstance(section, cls):
            raise JobFileError(f"'run_on' does not name {cls.__name__} any more; submit it again")
        return section

    @property
    def python_words(self) -> list[str]:
        """The words that start Python on another host; empty: those of this host."""
        return []

    def find_address(self, host: str) -> str:
        """Return the address of a host whose name has none here; the name if it is unknown."""
        return host

    def check_nodes(self, nodes: int) -> None:
        """Raise ``ValueError`` if the section does not go with so many nodes."""


class Machines(Section):
    """The machines of a job, this one among them, and how the others are reached."""

    hosts: Annotated[
        tuple[Annotated[str, read_by(parse_host)], ...],
        AfterValidator(lambda hosts: (parse_hosts(hosts), hosts)[1]),
    ] = Field(
        (),
        strict=False,
        description="The machines, this one among them: [a, b:4]. The number is that of the "
        "processes there, instead of launch.nproc_per_node.",
    )
    hostfile: str | None = Field(
        None,
        min_length=1,
        description="Instead of hosts: a file with a host on each line, relative to the job file.",
    )
    nic: Annotated[str, AfterValidator(_check_nic)] | None = Field(
        None, description="Network interface; null: the one that leads to the other hosts."
    )
    port_range: Annotated[str, read_by(_read_ports)] | None = Field(
        None, description="TCP ports to listen on, such as 29400-29499; null: any free ones."
    )
    fan_out: Annotated[str, AfterValidator(_check_fan_out)] | None = Field(
        None,
        description="Command that runs the words after it on {host}, quoted for a shell; join: "
        f"start nothing. null: {SSH}; in Slurm, srun; in Kubernetes, join.",
    )
    heartbeat_s: float = Field(
        60, ge=2, description="Seconds without an answer after which a host counts as lost."
    )

    @model_validator(mode="after")
    def _check_ways(self) -> Self:
        ways: dict[str, object] = {"hosts": self.hosts or None, "hostfile": self.hostfile}
        ways |= {name: getattr(self, name) for name in BACKENDS}
        check_one(ways, "; write {} for an empty section")
        return self

    def check_launch(self, launch: Launch) -> None:
        """Raise ``ValueError`` if a job cannot be launched so on these machines."""
        several = launch.nnodes not in {None, 1}
        if self.scheduled is not None:
            self.scheduled.check_nodes(launch.nnodes or 1)
        if self.scheduler and not several:
            return
        if self.hosts and launch.nnodes not in {None, len(self.hosts)}:
            raise ValueError(
                f"has nnodes: {launch.nnodes}, but run_on.hosts has {len(self.hosts)}; "
                "remove nnodes"
            )
        key = f"nnodes: {launch.nnodes}" if self.scheduler else "run_on"
        if not launch.distributed:
            raise ValueError(
                f"has distributed: false, which is for one process; remove it, or {key}"
            )
        if launch.gpus != "all":
            raise ValueError(f"has gpus: {launch.gpus}, but with {key}, only gpus: all is possible")

    @property
    def scheduler(self) -> str | None:
        """The name of the scheduler that chooses the machines; ``None``: the job file does."""
        return next((name for name in BACKENDS if getattr(self, name) is not None), None)

    @property
    def scheduled(self) -> SchedulerSection | None:
        """What is asked of the scheduler, if there is one."""
        section: SchedulerSection | None = getattr(self, self.scheduler or "", None)
        return section

    @property
    def ports(self) -> tuple[int, int] | None:
        """The first and the last port of ``port_range``."""
        if self.port_range is None:
            return None if self.scheduled is None else self.scheduled.ports
        return _read_ports(self.port_range)

    def fan_out_command(self, host: Host) -> list[str] | None:
        """Return the words that start the words after them on a host; ``None``: ``join``."""
        default = SSH if self.scheduled is None else self.scheduled.fan_out
        words = shlex.split(self.fan_out or default)
        return None if words == [JOIN] else [word.replace("{host}", host.name) for word in words]

    def hostfile_path(self, folder: Path) -> Path | None:
        """Return the absolute path of the hostfile; ``folder`` is that of the job file."""
        if self.hostfile is None:
            return None
        return user_path(folder, self.hostfile)

    def host_list(self, folder: Path, nnodes: int | None = None) -> tuple[Host, ...]:
        """Return the hosts, those of the hostfile as it is now; none yet if a scheduler has them.

        ``folder`` is that of the job file, ``nnodes`` the number that ``launch`` wants, if any.

        Raises:
            JobFileError: If the hostfile cannot be read, a line of it is wrong, or it has another
                number of hosts.
        """
        path = self.hostfile_path(folder)
        if path is None:
            return parse_hosts(self.hosts)
        try:
            hosts = parse_hostfile(read_text(path, _MAX_BYTES, "hostfile"), f"{path}:")
        except (JobFileError, ValueError) as error:
            raise JobFileError(f"'run_on.hostfile': {error}") from error
        if nnodes not in {None, len(hosts)}:
            raise JobFileError(f"{path} has {len(hosts)} hosts, but launch.nnodes is {nnodes}")
        return hosts


def _find_section(backend: str) -> type[SchedulerSection]:
    section: type[SchedulerSection] = load(backend, "section").SECTION
    return section


if TYPE_CHECKING:
    RunOn = Machines
else:  # with a key for each scheduler
    RunOn = create_model(
        "RunOn",
        __base__=Machines,
        **{
            name: (Annotated[Any, Plugged(partial(_find_section, name))], None) for name in BACKENDS
        },
    )
    RunOn.__doc__ = Machines.__doc__


def list_words() -> list[str]:
    """Return the short forms of ``run_on``: ``local``, and schedulers of which nothing is asked."""
    fields = {name: _find_section(name).model_fields.values() for name in BACKENDS}
    return [
        LOCAL,
        *(name for name, values in fields.items() if not any(f.is_required() for f in values)),
    ]

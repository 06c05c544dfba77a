"""Reads lists of hosts: those of a job file, and the hostfiles of other tools and schedulers.

One parser for all of them: ``host:4`` (KungFu, ``mpiexec -H``), ``host slots=4`` (Open MPI,
DeepSpeed), a line for each slot (``PBS_NODEFILE``, ``LSB_DJOB_HOSTFILE``), and plain lists of names
or addresses (SkyPilot, ``scontrol show hostnames``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORMS = "a, b:4, 10.0.0.2:4 or [fe80::1]:2"
# The user, an IPv6 address in brackets or a name, and the slots; nothing that a shell would obey. A
# number alone would be the slots of another format.
_HOST = re.compile(
    r"(\w[\w.-]{0,63}@)?(?:\[([0-9a-f]*:[0-9a-f]*:[0-9a-f:.]*(?:%[\w.-]+)?)\]|(?!\d+(?::|$))(\w[\w.-]*))"
    r"(?::([1-9]\d{0,4}))?",
    re.ASCII | re.IGNORECASE,
)
_SLOTS = ("slots", "cpu", "count")  # Open MPI's words for it


class Host(NamedTuple):
    """A machine of a job."""

    name: str  # as ssh takes it: a name or an address, after ``user@`` if a user was given
    slots: int | None  # processes there; ``None``: as launch.nproc_per_node says

    @property
    def address(self) -> str:
        """The name or address without the user."""
        return self.name.rpartition("@")[2]


def parse_host(text: str) -> Host:
    """Return the host of ``a``, ``b:4``, ``user@b:4``, ``10.0.0.2:4`` or ``[fe80::1]:2``.

    Raises:
        ValueError: If it is none of these. The message continues a sentence that starts with what
            the text is: ``'run_on.hosts[1]' must be written as ...``.
    """
    match = _HOST.fullmatch(text)
    if match is None:
        raise ValueError(f"must be written as {_FORMS}, not {text!r}")
    user, address, name, slots = match.groups()
    return Host(f"{user or ''}{address or name}", int(slots) if slots else None)


def parse_hosts(texts: Iterable[str]) -> tuple[Host, ...]:
    """Return the hosts of a list that names each once.

    Raises:
        ValueError: If a text is no host, or a host is named twice, also for another user.
    """
    hosts = tuple(map(parse_host, texts))
    names = [host.address.lower() for host in hosts]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"must name each host once; given more than once: {', '.join(twice)}; write the number "
            f"of processes as {twice[0]}:{names.count(twice[0])}"
        )
    return hosts


def parse_hostfile(text: str, label: str = "line ") -> tuple[Host, ...]:
    """Return the hosts of a hostfile, in the order of their first lines.

    Commas and spaces separate hosts. The slots of a host that is named several times add up, and
    then a mention without slots is one. Other settings, such as ``max_slots=8``, have no meaning
    here.

    Args:
        text: Its content.
        label: Stands before the line number in an error.

    Raises:
        ValueError: If a word is no host, or there is none.
    """
    found: dict[str, list[Host]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            for host in _read_line(line):
                found.setdefault(host.address.lower(), []).append(host)
        except ValueError as error:
            raise ValueError(f"{label}{number}: a host {error}") from None
    if not found:
        raise ValueError(f"{label}1: there is no host; write one on each line, such as {_FORMS}")
    return tuple(
        each[0] if len(each) == 1 else Host(each[0].name, sum(host.slots or 1 for host in each))
        for each in found.values()
    )


def _read_line(line: str) -> list[Host]:
    hosts: list[Host] = []
    line = re.sub(r"\s*=\s*", "=", line.partition("#")[0])
    for word in filter(None, re.split(r"[\s,]+", line)):
        name, equals, value = word.partition("=")
        if not equals:
            hosts.append(parse_host(word))
        elif not hosts:
            raise ValueError(f"must stand before its settings, as in b slots=4, not {word!r}")
        elif name in _SLOTS:
            if hosts[-1].slots is not None or not re.fullmatch(r"0*[1-9][0-9]{0,4}", value):
                raise ValueError(
                    f"must have its slots once, such as b slots=4, not {line.strip()!r}"
                )
            hosts[-1] = hosts[-1]._replace(slots=int(value))
    return hosts

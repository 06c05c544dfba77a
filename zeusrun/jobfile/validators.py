"""The rules of a job file that a type cannot say, as plain functions.

Each raises ``ValueError`` with a message that continues a sentence starting with the key:
``'env.1X'`` + ``is no name for an environment variable``.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Literal

from zeusrun.jobfile.placeholders import find_placeholders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Overlap = Literal["forbid", "allow", "replace", "queue"]
"""What to do when the job runs already: not begin, run beside it, end it first, or wait for it."""

CatchUp = Literal["none", "once"]
"""Of runs missed while the machine was off: run none, or the newest."""


def duration_s(value: str | float) -> float:
    """Return the seconds of a text such as ``90s``, ``5m``, ``1h30m`` or ``1d``.

    Raises:
        ValueError: If it is none, as a number without a unit; the message continues a sentence.
    """
    match = _DURATION.fullmatch(str(value).strip())
    if match is None or not match[0]:
        raise ValueError(
            f"must be a number with s, m, h or d, such as 90s, 5m or 1h30m, not {value!r}"
        )
    parts = zip(match.groups(), (86400.0, 3600.0, 60.0, 1.0), strict=True)
    return sum(float(number) * unit_s for number, unit_s in parts if number is not None)


def check_duration(value: object) -> object:
    """Return ``value`` if it is a duration, or of a type that cannot be one at all."""
    if isinstance(value, (str, int, float)):
        duration_s(value)
    return value


_DURATION = re.compile(
    r"(?:([0-9]{1,6})\s*d\s*)?(?:([0-9]{1,6})\s*h\s*)?(?:([0-9]{1,6})\s*m\s*)?(?:([0-9]{1,6})\s*s)?"
)
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def size_bytes(value: str | float) -> int:
    """Return the bytes of a text such as ``500 MB`` or ``20 GiB``.

    Raises:
        ValueError: If it is none, as a number without a unit; the message continues a sentence.
    """
    units = "|".join(_UNITS)
    match = re.fullmatch(rf"([0-9]{{1,6}}(?:\.[0-9]{{1,3}})?)\s*({units})", str(value).strip())
    if match is None:
        raise ValueError(f"must be a number with {', '.join(_UNITS)}, such as 20 GB, not {value!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def check_size(value: object) -> object:
    """Return ``value`` if it is a size, or of a type that cannot be one at all."""
    if isinstance(value, (str, int, float)):
        size_bytes(value)
    return value


def check_url(text: str) -> str:
    """Return ``text`` if a notice can be posted to it."""
    if not re.fullmatch(r"https?://[^\s/]+\S*", text):
        raise ValueError("must begin with http:// or https:// and name a host")
    if "@" in re.split(r"[/?#]", text.partition("://")[2])[0]:
        raise ValueError(
            "must not hold a user name or password, which every copy of the job file would keep; "
            "post with notify.command (`curl --netrc` reads them from a file of yours)"
        )
    return text


def check_module(module: str | None, others: Mapping[str, Any]) -> str | None:
    """Return ``module`` if it is what is to be run and ``python -m`` could take it, or no script.

    Args:
        module: What was given; ``None`` for nothing.
        others: The values before it; a script that is itself wrong is absent.
    """
    if "script" in others:
        script = others["script"]
        if script is not None and module is not None:
            raise ValueError("cannot stand beside 'script'; keep one of them")
        if script is None and module is None:
            raise ValueError("or 'script' is missing; say what to run: script: train.py")
    if module is not None and not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)*", module):
        raise ValueError(f"must be a dotted name such as package.train, not {module!r}")
    return module


def check_env_name(name: str) -> str:
    """Return ``name`` if a job may set an environment variable of that name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("is no name for an environment variable: letters, digits and _ only")
    if name.startswith("ZEUSRUN_"):
        raise ValueError("must not begin with ZEUSRUN_: zeusrun sets those itself")
    return name


def check_process_count(value: object) -> object:
    """Return ``value`` if torchrun's ``--nproc-per-node`` takes it."""
    if value in ("gpu", "cpu", "auto") or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number from 1, or gpu, cpu or auto")


def check_gpus(gpus: str, others: Mapping[str, Any]) -> None:
    """Check that it is known how many GPUs are to be chosen."""
    if gpus == "auto" and isinstance(others.get("nproc_per_node"), str):
        raise ValueError("cannot be auto unless nproc_per_node is a number: one GPU each is taken")


def check_node_count(nnodes: int) -> int:
    """Return ``nnodes`` if zeusrun can start so many."""
    if nnodes != 1:
        raise ValueError(f"must be 1, not {nnodes}: several nodes are not supported yet")
    return nnodes


def check_template(text: str, *, has_learning_rate: bool) -> str:
    """Return ``text`` if it can be expanded and then handed to a process."""
    if "\0" in text:
        raise ValueError("holds a NUL character, which no argument, variable or path can carry")
    if "learning_rate" in find_placeholders(text) and not has_learning_rate:
        raise ValueError(
            "uses '${learning_rate}', but the job has no learning_rate; "
            "add for example learning_rate: {base: 0.05, scale: linear}"
        )
    return text


def check_candidates(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the batch sizes in ascending order if each stands there once."""
    twice = sorted({size for size in sizes if sizes.count(size) > 1})
    if twice:
        raise ValueError(f"must name each batch size once; given more than once: {listed(twice)}")
    return tuple(sorted(sizes))


_OBJECTIVE_UNLESS_GIVEN = "cost"
# Key of power_limit: the key and the choice that it goes with, and what it may look like.
_GOES_WITH = {
    "watts": ("mode", "fixed", "watts: 200"),
    "objective": ("mode", "optimize", "objective: energy"),
    "factor": ("objective", "max_slowdown", "factor: 1.1"),
}


def check_power_limit(
    name: str, value: float | str | None, others: Mapping[str, Any]
) -> float | str | None:
    """Return a value of ``power_limit`` that goes with one choice of another, and is needed there.

    Args:
        name: Its key.
        value: What was given, or the default.
        others: The values before it; one that is itself wrong is absent, and its own error is the
            one to show.
    """
    key, wanted, example = _GOES_WITH[name]
    chosen = others.get(key)
    if chosen == wanted and value is None:
        raise ValueError(f"is missing: {key} {wanted} needs it, for example {example}")
    given = value not in (None, _OBJECTIVE_UNLESS_GIVEN)
    if chosen not in (None, wanted) and given:
        raise ValueError(f"only goes with {key}: {wanted}, not {chosen}")
    return value


def check_stall(action: str, others: Mapping[str, Any]) -> None:
    """Check that a training that has stalled can be restarted, if that is what is to be done.

    Args:
        action: Of the section ``stall``.
        others: The values before it; one that is itself wrong is absent.
    """
    if action != "restart":
        return
    launch = others.get("launch")
    if launch is not None and launch.max_restarts == 0:
        raise ValueError(
            "has action: restart, but torchrun may not restart the processes; "
            "set launch.max_restarts to 1 or more"
        )
    if others.get("instrument") is False:
        raise ValueError("has action: restart, but no step is seen with instrument: false")


def check_divisible(sizes: Sequence[int], world_size: int) -> None:
    """Check that so many processes can share every batch size evenly."""
    uneven = [size for size in sizes if size % world_size]
    if uneven:
        raise ValueError(
            f"has candidates that {world_size} processes cannot share evenly: {listed(uneven)}; "
            f"use multiples of {world_size}, or another launch.nproc_per_node"
        )


def learning_rate_factor(scale: str, ratio: float) -> float:
    """Return what the learning rate is multiplied by where the batch size is, by ``ratio``.

    ``linear`` keeps rate over batch size constant (Goyal et al., arXiv:1706.02677), ``sqrt`` keeps
    the gradient noise's scale (Krizhevsky, arXiv:1404.5997), ``none`` the rate itself.
    """
    return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scale]


def listed(numbers: Sequence[int]) -> str:
    """Return ``16, 32, 64``."""
    return ", ".join(str(number) for number in numbers)

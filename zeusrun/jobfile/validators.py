"""The rules for texts of a job file that a type cannot express. They need no pydantic.

Each raises ``ValueError`` with a message that continues a sentence starting with the key:
``'env.1X'`` + ``is not a valid name for an environment variable``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from zeusrun.errors import did_you_mean
from zeusrun.plugins import BUILT_IN, plugin_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidationInfo

    from zeusrun.plugins import Group

Overlap = Literal["forbid", "allow", "replace", "queue"]
"""If the job already runs: skip this run, start a second one, end the first one, or wait."""

CatchUp = Literal["none", "once"]
"""Of runs missed while the machine was off: run none, or the newest."""

StartBy = Literal["price", "carbon"]
"""By what the start within ``start_within`` is chosen."""

_DURATION = re.compile(
    r"(?:([0-9]{1,6})\s*d\s*)?(?:([0-9]{1,6})\s*h\s*)?(?:([0-9]{1,6})\s*m\s*)?(?:([0-9]{1,6})\s*s)?"
)
_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def duration_s(text: str) -> float:
    """Return the seconds of ``90s``, ``5m``, ``1h30m`` or ``1d``; a number needs a unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not match[0]:
        raise ValueError(
            f"must be a number with s, m, h or d, such as 90s, 5m or 1h30m, not {text!r}"
        )
    parts = zip(match.groups(), (86400.0, 3600.0, 60.0, 1.0), strict=True)
    return sum(float(number) * unit_s for number, unit_s in parts if number is not None)


def duration_text(seconds: float) -> str:
    """Return seconds as a user writes them: ``90s``, ``5m``, ``30h``, ``2d``."""
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        number, rest = divmod(seconds, size_s)
        if rest == 0 and number > (unit == "d"):  # one day is 24h
            return f"{number:.0f}{unit}"
    return f"{seconds:g}s"


def time_of_day(text: str) -> tuple[int, int]:
    """Return hour and minute of ``07:30``."""
    match = _TIME_OF_DAY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'must be a time of day such as "07:30", not {text!r}')
    return int(match[1]), int(match[2])


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


def check_history(text: str) -> str:
    """Return ``text`` if it names a history that a job file may name."""
    if "://" not in text:
        if re.search(r"[.:/]", text):
            raise ValueError(
                f"must begin with https:// or http:// if it is a server, such as http://{text}"
            )
        return check_name(text, "zeusrun.histories")
    if not re.fullmatch(r"https?://\S+", text):
        raise ValueError(
            "must be the address of a server (https://...); to use a database, start "
            "`zeusrun serve --database-url URL`"
        )
    if "@" in text:
        raise ValueError(
            "must not contain a user name or a password, because every copy of the job file "
            "would contain them; set ZEUSRUN_TOKEN to a token instead"
        )
    return text


def check_env_name(name: str) -> str:
    """Return ``name`` if a job may set an environment variable of that name."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            "is not a valid name for an environment variable: letters, digits and _ only"
        )
    if name.startswith("ZEUSRUN_"):
        raise ValueError("must not begin with ZEUSRUN_: zeusrun sets those itself")
    return name


def check_name(name: str, group: Group) -> str:
    """Return ``name`` if zeusrun knows it or an installed plugin of the group has it."""
    known = [*BUILT_IN[group]]
    if name in known or name in (plugins := plugin_names(group)):
        return name
    hint = did_you_mean(name, [*known, *plugins]) or ", and no plugin has that name"
    names = " or ".join(filter(None, (", ".join(map(repr, known[:-1])), repr(known[-1]))))
    raise ValueError(f"must be {names}, not {name!r}{hint}")


CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""A class of the user, as ``module:Class``."""


def read_pairs(text: str, entry: re.Pattern[str], key: str, what: str) -> dict[int, int]:
    """Return the values of ``"10:64,20:128"`` by their keys.

    Args:
        text: What the job file has.
        entry: The form of a pair, with two groups.
        key: What a key is, in a word.
        what: What a pair is, with an example.

    Raises:
        ValueError: If the text is not such a list, or its keys do not increase.
    """
    matches = [entry.fullmatch(part) for part in text.split(",")]
    pairs = [(int(match[1]), int(match[2])) for match in matches if match is not None]
    if len(pairs) < len(matches):
        raise ValueError(f"must be pairs of {what}, not {text!r}")
    if [first for first, _ in pairs] != sorted({first for first, _ in pairs}):
        raise ValueError(f"must name each {key} once, in ascending order, not {text!r}")
    return dict(pairs)


def check_max(highest: int | None, info: ValidationInfo) -> int | None:
    """Raise ``ValueError`` if the key ``max`` of a section is less than its ``min``."""
    lowest = info.data.get("min")
    if highest is not None and lowest is not None and highest < lowest:
        raise ValueError(f"is {highest}, less than min ({lowest})")
    return highest


def check_one(ways: Mapping[str, object], hint: str = "") -> None:
    """Raise ``ValueError`` unless exactly one of the keys in ``ways`` has a value."""
    used = [name for name, value in ways.items() if value is not None]
    if len(used) != 1:
        given = " and ".join(used) or "none of them"
        raise ValueError(f"takes exactly one of {', '.join(ways)}; it has {given}{hint}")

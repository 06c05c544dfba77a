"""Finds what other installed packages add to zeusrun, by entry points."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from zeusrun.errors import UsageError, ZeusrunError

if TYPE_CHECKING:
    from collections.abc import Iterator

Group = Literal[
    "zeusrun.policies", "zeusrun.devices", "zeusrun.metric_sources", "zeusrun.histories"
]


def plugin_names(group: Group) -> list[str]:
    """Return the names that installed packages declare in a group; imports none of them."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 20 ms, and few need it

    return sorted(entry_points(group=group).names)


def create_plugin(group: Group, name: str, kind: type, *arguments: object) -> Any:  # noqa: ANN401
    """Call what an installed package declares under a name; ``None`` if none declares it.

    Call this only for names that zeusrun does not know: reading the metadata of every installed
    package takes time, and no package may replace a part of zeusrun.

    Raises:
        UsageError: If the plugin cannot be imported, fails, or returns no ``kind``.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 20 ms, and few need it

    entry = next(iter(entry_points(group=group, name=name)), None)
    if entry is None:
        return None
    package = entry.dist.name if entry.dist else "an unknown package"
    with blame(f"the plugin {name!r} ({entry.value}, of the package {package}) failed"):
        made = entry.load()(*arguments)
        if not isinstance(made, kind):
            raise TypeError(f"it returned {made!r}, which is no {kind.__name__}")
        return made


@contextmanager
def blame(failure: str) -> Iterator[None]:
    """Turn an exception of a plugin into a ``UsageError`` that begins with ``failure``."""
    try:
        yield
    except ZeusrunError:
        raise
    except Exception as error:
        raise UsageError(
            f"{failure}: {type(error).__name__}: {error}; repair or uninstall that package"
        ) from error


def check_extra(user: str, extra: str, *modules: str) -> None:
    """Raise ``UsageError`` if a package is missing that an extra of zeusrun installs."""
    from importlib.util import find_spec  # noqa: PLC0415 - few need it

    for module in modules:
        if find_spec(module) is None:
            raise UsageError(f"{user} needs {module}; {how_to_add(extra)}")


def how_to_add(extra: str) -> str:
    """Return what installs an extra; zeusrun is in no package index."""
    return f"install zeusrun with its extra {extra!r}: pip install '/path/to/zeusrun[{extra}]'"

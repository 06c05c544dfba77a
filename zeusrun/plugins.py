"""Finds what other installed packages add to zeusrun, by entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group = Literal[
    "zeusrun.policies", "zeusrun.devices", "zeusrun.metric_sources", "zeusrun.histories"
]


def has_plugin(group: Group, name: str) -> bool:
    """Whether an installed package declares the name; nothing of that package is imported."""
    return _find(group, name) is not None


def load_plugin(group: Group, name: str) -> object | None:
    """Import what an installed package declares under a name; ``None`` if none declares it.

    Call it only for names that zeusrun does not know: reading the metadata of every installed
    package takes time, and no package may replace a part of zeusrun.

    Raises:
        UsageError: If a package declares the name and it cannot be imported.
    """
    entry = _find(group, name)
    if entry is None:
        return None
    try:
        loaded: object = entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else "an unknown package"
        raise UsageError(
            f"the plugin {name!r} ({entry.value}, of the package {package}) cannot be imported: "
            f"{type(error).__name__}: {error}; repair or uninstall that package"
        ) from error
    return loaded


def plugin_names(group: Group) -> list[str]:
    """Return the names that installed packages declare in a group, for "did you mean"."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 20 ms, and few need it

    return sorted(entry_points(group=group).names)


def _find(group: Group, name: str) -> EntryPoint | None:
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 20 ms, and few need it

    return next(iter(entry_points(group=group, name=name)), None)

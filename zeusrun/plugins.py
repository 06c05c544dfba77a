"""Finds what a job file names: built-ins (``BUILT_IN``), or plugins (entry points of packages)."""

from __future__ import annotations

import importlib
import re
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from zeusrun.errors import UsageError, ZeusrunError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution, EntryPoint

Group = Literal[
    "zeusrun.policies", "zeusrun.devices", "zeusrun.metric_sources", "zeusrun.histories"
]

BUILT_IN: dict[Group, dict[str, str]] = {
    "zeusrun.policies": {
        "auto": "zeusrun.bandit.auto.policy:Auto",
        "zeus": "zeusrun.bandit.zeus.policy:Zeus",
        "fixed": "zeusrun.bandit.baselines:Fixed",
        "grid": "zeusrun.bandit.baselines:Grid",
    },
    "zeusrun.metric_sources": {
        "auto": "zeusrun.metrics.stdout:open_source",
        "sidecar": "zeusrun.metrics.base:SidecarReader",
        "stdout": "zeusrun.metrics.stdout:open_source",
        "csv": "zeusrun.metrics.lines:open_source",
        "jsonl": "zeusrun.metrics.lines:open_source",
    },
    "zeusrun.histories": {"tinydb": "zeusrun.history.tinydb.store:open_in"},
    "zeusrun.devices": {},  # by nproc_per_node, besides NVIDIA's GPUs and the CPU
}
"""The function or class for each name in a job file. Its module is imported on use."""

_used: dict[str, tuple[str, str]] = {}  # entry point and package of each plugin by name


def load_built_in(group: Group, name: str) -> Any:  # noqa: ANN401 - as in the table
    """Import and return the built-in with a name."""
    module, _, attribute = BUILT_IN[group][name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def plugin_names(group: Group) -> list[str]:
    """Return the names that installed packages declare in a group; imports none of them."""
    return sorted(_find_entries(group))


def device_kinds() -> list[str]:
    """Return the kinds of devices that are in the table, or of plugins."""
    return [*BUILT_IN["zeusrun.devices"], *plugin_names("zeusrun.devices")]


def create_plugin(group: Group, name: str, kind: type, *arguments: object) -> Any:  # noqa: ANN401
    """Call what an installed package declares under a name; ``None`` if none declares it.

    Call this only for names that zeusrun does not know: reading the metadata of every installed
    package takes time, and no package may replace a part of zeusrun.

    Raises:
        UsageError: If the plugin cannot be imported, fails, or returns no ``kind``.
    """
    entry = _find_entries(group).get(name)
    if entry is None:
        return None
    package = _name_package(entry.dist) if entry.dist else "an unknown package"
    _used[name] = entry.value, package
    with blame("plugin", name):
        made = entry.load()(*arguments)
        if not isinstance(made, kind):
            raise TypeError(f"it returned {made!r}, which is no {kind.__name__}")
        return made


def find_damaged_packages() -> dict[str, str]:
    """Return what is wrong with each installed package whose entry points cannot be read."""
    return _read_packages()[1]


def _find_entries(group: Group) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; the first on ``sys.path`` counts.

    Damaged packages are not searched; `zeusrun doctor` lists them.
    """
    entries, _ = _read_packages()
    return {entry.name: entry for entry in reversed(entries) if entry.group == group}


def _read_packages() -> tuple[list[EntryPoint], dict[str, str]]:
    """Return all entry points, and what is wrong with each damaged package.

    ``importlib.metadata.entry_points`` raises an error if one of all packages is damaged.
    """
    from importlib.metadata import distributions  # noqa: PLC0415 - takes 20 ms, and few need it

    entries: list[EntryPoint] = []
    damaged: dict[str, str] = {}
    for package in distributions():
        try:
            entries += package.entry_points
        except Exception as error:  # noqa: BLE001 - a damaged package can raise anything
            folder = package.locate_file("")
            damaged[_name_package(package)] = (
                f"its entry_points.txt in {folder} cannot be read ({error}); "
                "reinstall or uninstall that package"
            )
    return entries, damaged


def _name_package(package: Distribution) -> str:
    """Return the name of a package, which may be damaged: then that of its folder."""
    with suppress(Exception):
        if name := package.metadata["Name"]:
            return name
    path = getattr(package, "_path", None)
    return str(getattr(path, "name", "without a name"))


@contextmanager
def blame(kind: str, name: str, method: str = "", *passed: type[Exception]) -> Iterator[None]:
    """Turn an exception of a plugin that was created into a ``UsageError`` that names it.

    ``SystemExit`` is turned, too; Ctrl-C and the types that are ``passed`` are not.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, (ZeusrunError, KeyboardInterrupt, *passed)):
            raise
        raise _failed(kind, name, method, error) from error


def find_culprit(error: BaseException) -> UsageError | None:
    """Return an error that names the plugin whose code is in the traceback, if there is one."""
    plugins = {re.split("[.:]", entry)[0]: name for name, (entry, _) in _used.items()}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if module in plugins and module != "zeusrun":  # an entry point may name a part of it
            return _failed("plugin", plugins[module], "", error)
    return None


def _failed(kind: str, name: str, method: str, error: BaseException) -> UsageError:
    entry, package = _used[name]
    where = f" in {method}" if method else ""
    return UsageError(
        f"the {kind} {name!r} ({entry}, of the package {package}) failed{where}: "
        f"{type(error).__name__}: {error}; repair or uninstall that package"
    )


def check_extra(user: str, extra: str, *modules: str) -> None:
    """Raise ``UsageError`` if a package is missing that an extra of zeusrun installs."""
    from importlib.util import find_spec  # noqa: PLC0415 - few need it

    for module in modules:
        if find_spec(module) is None:
            raise UsageError(f"{user} needs {module}; {how_to_add(extra)}")


def how_to_add(extra: str) -> str:
    """Return what installs an extra; zeusrun is in no package index."""
    return f"install zeusrun with its extra {extra!r}: pip install '/path/to/zeusrun[{extra}]'"

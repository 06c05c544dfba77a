"""Calls a function with a module right after the script has imported it."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Finder:
    def __init__(self, names: Iterable[str], then: Callable[[ModuleType], None]) -> None:
        self._pending, self._then = set(names), then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module's file, with a loader that calls the function afterwards."""
        if name not in self._pending:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            if name in self._pending:
                self._pending.remove(name)
                self._then(module)

        loader.exec_module = execute_and_call
        return spec


def after_import(names: Iterable[str], then: Callable[[ModuleType], None]) -> None:
    """Call a function with each of the modules, now or once it is imported."""
    for name in names:
        if name in sys.modules:
            then(sys.modules[name])
    sys.meta_path.insert(0, _Finder(names, then))

"""How hooks get into modules, process groups, and the interpreters of ``multiprocessing``.

Each such interpreter imports this, so it imports little.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_BEGIN = """
try:
    from zeusrun.worker.hooks.child import begin
    begin({})
except Exception:
    pass
"""


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


def reach_children(spawn: Any, launched_ranks: int) -> None:
    """Let ``child.py`` begin in each interpreter that ``multiprocessing.spawn`` starts.

    It comes with the data that multiprocessing sends to it, so that the command stays as it is.
    """
    prepare = spawn.get_preparation_data

    @replaces(spawn, "get_preparation_data")
    def add_begin(name: Any) -> Any:
        return {**prepare(name), "zeusrun": _Begin(launched_ranks)}


class _Begin:
    """Runs ``child.py`` when it is unpickled, in an interpreter that has zeusrun."""

    def __init__(self, launched_ranks: int) -> None:
        self._code = _BEGIN.format(launched_ranks)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._code, {})


def after_joining(c10d: Any, join: Callable[[], None]) -> None:
    """Call a function whenever this process has joined its default process group."""
    initialize = c10d.init_process_group

    @functools.wraps(initialize)
    def init_process_group(*args: Any, **options: Any) -> Any:
        result = initialize(*args, **options)
        with contextlib.suppress(Exception):  # not the script's problem
            join()
        return result

    replace_in_distributed(c10d, init_process_group)


def replace_in_distributed(c10d: Any, new: Any) -> None:
    """Replace a function of the name of ``new`` in ``torch.distributed``, too."""
    old, package = getattr(c10d, new.__name__), sys.modules.get("torch.distributed")
    setattr(c10d, new.__name__, new)
    if getattr(package, new.__name__, None) is old:  # imported before
        setattr(package, new.__name__, new)


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Decorate a function that replaces one of a class or module, and looks like it.

    With its name and module, it can be pickled as before; libraries inspect its parameters.
    """
    return lambda new: setattr(owner, name, functools.wraps(getattr(owner, name))(new))


def refuse(owner: Any, name: str, why: Callable[..., str | None]) -> None:
    """Raise ``RuntimeError`` with the sentence that ``why`` returns for the arguments of a call.

    If that is ``None``, the function is called.
    """
    original = getattr(owner, name)

    @replaces(owner, name)
    def refused(*args: Any, **options: Any) -> Any:
        if (problem := why(*args, **options)) is not None:
            raise RuntimeError(f"zeusrun: {problem}")
        return original(*args, **options)


def wrap(owner: Any, name: str, after: Callable[..., None]) -> None:
    """Call ``after`` with a function's arguments whenever the function has returned.

    Args:
        owner: The class or module that has the function.
        name: The function's name.
        after: Its exceptions are ignored: they must not end the training.

    Raises:
        AttributeError: If there is no such function.
    """
    original = getattr(owner, name)

    @replaces(owner, name)
    def wrapped(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        with contextlib.suppress(Exception):  # for example, the signature has changed
            after(*args, **options)
        return result

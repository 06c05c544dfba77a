"""Runs a script as Python's own ``main`` does: the same steps in the same order.

One difference stays: a stack of the script begins with frames of zeusrun.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pkgutil import get_importer
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import TracebackType

_FILE_INPUT = 257  # Py_file_input of Python.h
_NO_SCRIPT = 2  # the exit code of Python


def run_script(arguments: list[str], known: frozenset[str]) -> BaseException | None:
    """Run ``-m MODULE [ARG ...]`` or ``SCRIPT [ARG ...]`` as ``__main__``.

    Args:
        arguments: A script is a file, or a folder or an archive with a ``__main__.py``.
        known: The modules that every Python has imported when a script begins.

    Returns:
        The exception that ended the script, less zeusrun's frames in its traceback; ``None`` at
        the end of a file.
    """
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main["__doc__"] = None
    sys.orig_argv = [sys.executable, "-u", *arguments]
    sys.argv = arguments
    try:
        if arguments[0] == "-m":
            _run_module(arguments[1], os.getcwd(), known, ["-m", *arguments[2:]])  # noqa: PTH109
        if get_importer(arguments[0]) is not None:  # a folder or an archive
            _run_module("__main__", arguments[0], known)
        _run_file(arguments[0], main, known)
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is its result
        error.__traceback__ = _of_script(error.__traceback__)
        return error
    finally:
        for name in ("stderr", "stdout"):
            with contextlib.suppress(Exception):  # the script may have replaced or closed it
                getattr(sys, name).flush()
    return None


def _run_module(
    name: str, folder: str, known: frozenset[str], argv: list[str] | None = None
) -> NoReturn:
    """Run a module as ``-m`` does, or the ``__main__`` of a folder or an archive."""
    import runpy  # noqa: PLC0415 - most scripts are files

    if argv is None:
        _set_first_path(folder, known, safe=False)
    else:
        sys.argv = argv
        _set_first_path(folder, known)
    # What Python's main calls; public functions leave another module as __main__ afterwards.
    runpy._run_module_as_main(name, alter_argv=argv is not None)  # type: ignore[attr-defined] # noqa: SLF001
    raise SystemExit  # Python's main would take __file__ out of __main__ at the end of our file


def _run_file(path: str, main: dict[str, Any], known: frozenset[str]) -> None:
    path = os.path.join(os.getcwd(), path.removeprefix("./"))  # noqa: PTH109, PTH118
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(os.fsencode(path), b"rb")
    if not file:
        number = ctypes.get_errno()
        print(  # noqa: T201 - as Python does
            f"{sys.executable}: can't open file {path!r}: [Errno {number}] {os.strerror(number)}",
            file=sys.stderr,
        )
        raise SystemExit(_NO_SCRIPT)
    _set_first_path(os.path.dirname(os.path.realpath(path)), known)  # noqa: PTH120
    main["__file__"] = path
    if path.endswith(".pyc"):
        libc.fclose(ctypes.c_void_p(file))
        main["__loader__"] = loader = SourcelessFileLoader("__main__", path)
        exec(loader.get_code("__main__"), main)  # type: ignore[arg-type] # noqa: S102
        return
    main["__loader__"] = SourceFileLoader("__main__", path)
    run = ctypes.pythonapi.PyRun_FileExFlags
    run.restype = ctypes.py_object
    run.argtypes = [
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object),
        *(ctypes.c_int, ctypes.c_void_p),
    ]
    run(file, os.fsencode(path), _FILE_INPUT, main, main, 1, None)


def _set_first_path(folder: str, known: frozenset[str], *, safe: bool = True) -> None:
    """Put the script's folder first on ``sys.path``, in the place of this file's.

    A module of that folder hides one of the standard library, even if zeusrun has imported the
    latter.
    """
    if not getattr(sys.flags, "safe_path", False):  # since 3.11
        sys.path[0] = folder
    elif safe:
        return
    else:
        sys.path.insert(0, folder)
    imported = {name.partition(".")[0] for name in sys.modules.keys() - known} - {"zeusrun"}
    for name in imported & _modules_in(folder):
        for each in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[each]


def _modules_in(folder: str) -> set[str]:
    """Return the names of the modules that a folder may contain; none for an archive."""
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return set()
    packages = {
        name
        for name in names
        if os.path.exists(os.path.join(folder, name, "__init__.py"))  # noqa: PTH110, PTH118
    }
    return packages | {name.partition(".")[0] for name in names if name.endswith((".py", ".so"))}


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames of this module, with which the traceback begins."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def show_failure(error: BaseException | None) -> BaseException | None:
    """Print an exception as Python does; return what ends the process.

    That is another exception if ``sys.excepthook`` exits. A ``SystemExit`` is not printed here.
    """
    if error is None or isinstance(error, SystemExit):
        return error
    trace = error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):  # before, Python does not clear it when it ends
        sys.last_exc = error
    shown = (type(error), error, trace)
    if not hasattr(sys, "excepthook"):
        print("sys.excepthook is missing", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(*shown)
        return error
    try:
        sys.excepthook(*shown)
    except SystemExit as exits:
        return exits
    except BaseException as failed:  # noqa: BLE001 - as Python does
        failed.__traceback__ = _of_script(failed.__traceback__)
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(*shown)
    return error

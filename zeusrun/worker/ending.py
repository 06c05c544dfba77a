"""How a rank ends: with its parent, at SIGTERM, or as Python ends, without the abort of gloo."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import sys
import threading
import time
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

SIGTERM_EXIT_CODE = 143  # 128 + SIGTERM: ended by one that zeusrun did not send
_FLUSH_FAILED = 120  # the exit code of Python if the last output cannot be written
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_BUFFERED = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}
_INSTALLED = ("site-packages", "dist-packages")
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)  # what a ``__del__`` calls


def exit_code(error: BaseException | None) -> int:
    """Return the exit code of a script that this exception ended, as Python's main computes it."""
    if not isinstance(error, SystemExit):
        return int(error is not None)
    code = error.code
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    return int(code is not None)


def leave(_signal: int, _frame: object) -> NoReturn:
    """Let the script end at a ``LEAVE_SIGNAL``."""
    raise SystemExit


def end(error: BaseException | None, beside_gloo: bool, grace_s: float) -> None:
    """End the process.

    Args:
        error: What ended the script; shown already, but the text of a ``SystemExit`` is not.
        beside_gloo: Whether the process has had a process group over gloo. Then the end of the
            interpreter can abort ("terminate called without an active exception", torch 2.13),
            and a finished training would count as failed. So only the modules of the script are
            cleared.
        grace_s: Seconds that this may take, after the exit hooks.
    """
    if beside_gloo:
        _end_beside_gloo(error, grace_s)
    if error is None:
        return
    if not isinstance(error, SystemExit):
        trace, hook = error.__traceback__, getattr(sys, "excepthook", None)

        def shown_already(_: object, value: BaseException, __: object) -> None:
            sys.excepthook = hook  # type: ignore[assignment]
            sys.last_traceback = value.__traceback__ = trace

        sys.excepthook = shown_already
    try:
        raise error
    finally:
        del error  # this frame is in its traceback


def _end_beside_gloo(error: BaseException | None, grace_s: float) -> NoReturn:
    """Do what Python's main does at its end, but leave installed packages as they are."""
    code = exit_code(error)
    interrupted = type(error) is KeyboardInterrupt
    if isinstance(error, SystemExit) and not isinstance(error.code, (int, type(None))):
        with contextlib.suppress(Exception):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
    wait_for_threads = getattr(threading, "_shutdown", None)  # joins executors' threads, too
    if wait_for_threads is not None:
        try:
            wait_for_threads()
        except BaseException as raised:  # noqa: BLE001 - of a signal handler; Python goes on, too
            print(f"Exception ignored in: {threading!r}", file=sys.stderr)  # noqa: T201
            sys.__excepthook__(type(raised), raised, raised.__traceback__)
    atexit._run_exitfuncs()  # noqa: SLF001 - public since never, the same since 2.0
    if not _flush_output():
        code = _FLUSH_FAILED

    def give_up() -> None:
        time.sleep(grace_s)
        os._exit(code)

    for number in signal.valid_signals():  # as Python does: a handler would find no names
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=give_up, daemon=True).start()
    threading.excepthook = lambda _: None  # Python stops daemon threads here; they find no names
    groups = _process_groups()
    _take_down(error)
    del groups
    if not _flush_output():
        code = _FLUSH_FAILED
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _flush_output() -> bool:
    """Flush both streams; return whether standard output could be."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    try:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
    except Exception:  # noqa: BLE001 - the script may have replaced it
        return False
    return True


def _process_groups() -> list[object]:
    """Return the process groups that exist: destroying one could cause the abort."""
    groups: list[object] = []
    with contextlib.suppress(Exception):  # torch may have moved them
        groups += sys.modules["torch.distributed.distributed_c10d"]._world.pg_map  # noqa: SLF001
        model: type = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
        for each in gc.get_objects():
            if issubclass(type(each), model):  # isinstance would run the script's own __class__
                groups.append(vars(each).get("process_group"))
    return groups


def _take_down(error: BaseException | None) -> None:
    """Clear the modules of the script, so that its open files are closed and its objects finalized.

    The variables of the functions that an ``error`` has ended are dropped, too.

    Python collects whole modules, so that ``__del__`` still finds the names of its own. Here the
    names are dropped instead, with imports, functions and classes last.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        setattr(sys, name, None)
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
    own = [(name, module) for name, module in [*sys.modules.items()] if _is_of_script(name, module)]
    namespaces = [vars(module) for _, module in own]
    for name, _ in own:
        sys.modules[name] = None  # type: ignore[assignment] # as Python does
    del own
    for kinds in (_CODE, ()):  # imports, functions and classes: second
        for names in reversed(namespaces):
            _drop(names, kept=kinds)
        gc.collect()
    for candidate in gc.get_objects():  # files that installed packages hold
        if type(candidate) in _BUFFERED:
            with contextlib.suppress(Exception):  # closed, detached, a full disk, a raw of its own
                candidate.flush()


def _is_of_script(name: str, module: object) -> bool:
    if name == "__main__":
        return True
    if not issubclass(type(module), ModuleType):
        return False
    path = vars(module).get("__file__")
    ours = (os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120
    return (
        isinstance(path, str)
        and not path.startswith(tuple(f"{folder}/" for folder in ours))
        and not any(each in path for each in _INSTALLED)
    )


def _drop(names: dict[str, Any], kept: tuple[type, ...]) -> None:
    """Set the names of a module to ``None``, the newest first, but those with values of a kind."""
    for name in reversed(list(names)):  # no variable may hold a value: it ends while names are left
        if not isinstance(name, str) or name.startswith("__"):
            continue
        if not issubclass(type(names.get(name)), kept):
            names[name] = None


def catch_sigterm(stop: Callable[[], None], watch: Callable[[], None]) -> None:
    """Let SIGTERM stop the training of a rank; a handler of the script wins.

    Args:
        stop: Called in the main thread.
        watch: Called in a thread of its own, also if the main thread is stuck; not while the script
            has replaced the handler by one of its own.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    rank_pid = os.getpid()

    def on_sigterm(_signal: int, _frame: object) -> None:
        if os.getpid() != rank_pid:  # a forked child is no rank
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        stop()

    signal.signal(signal.SIGTERM, on_sigterm)
    others = signal.set_wakeup_fd(-1)
    if others != -1:
        signal.set_wakeup_fd(others)  # it belongs to an event loop of the script
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _leave_forks_out(on_sigterm)

    def wait() -> None:
        while number := os.read(reader, 1):  # of any signal with a handler
            is_ours = signal.getsignal(signal.SIGTERM) is on_sigterm
            if number == bytes([signal.SIGTERM]) and is_ours:
                watch()

    threading.Thread(target=wait, daemon=True).start()


def _leave_forks_out(on_sigterm: Callable[..., None]) -> None:
    """Give forked children, which are no ranks, the default handler, and no pipe to write to.

    A SIGTERM that a child gets meanwhile is blocked, as Python would lose it. The mask belongs to
    the thread that forks.
    """
    before = threading.local()

    def hold() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def resume() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def forget() -> None:
        signal.set_wakeup_fd(-1)  # the thread that forked is the main one of the child
        if signal.getsignal(signal.SIGTERM) is on_sigterm:  # not the script's own by now
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resume()

    os.register_at_fork(before=hold, after_in_parent=resume, after_in_child=forget)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (prctl(2)).

    The setting survives ``execve`` and is not inherited by children.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

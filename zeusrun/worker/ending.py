"""How a rank ends: with its parent, at SIGTERM, or as Python ends, without the abort of gloo."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import gc
import io
import os
import signal
import socket
import sys
import threading
from time import sleep  # a script may replace the name in its module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

SIGTERM_EXIT_CODE = 143  # 128 + SIGTERM: ended by one that zeusrun did not send
_FLUSH_FAILED = 120  # the exit code of Python if the last output cannot be written
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_AGENT = "ZEUSRUN_AGENT"  # the pid of the process that starts a rank; the rank removes it
_BUFFERED = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}
_INSTALLED = ("site-packages", "dist-packages")
_SWITCH_S = 0.02  # every thread that does not wait for something has run by then
_PEERS_SAVE_S = 1.0  # in which the other ranks may save; Python takes as long to clear torch
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


def end(error: BaseException | None, beside_gloo: bool, grace_s: float, pid: int) -> None:
    """Let the interpreter end the process.

    Args:
        error: What ended the script; shown already, but the text of a ``SystemExit`` is not.
        beside_gloo: Whether the process has had a process group over gloo. Then the end of the
            interpreter can abort ("terminate called without an active exception", torch 2.13),
            and a finished training would count as failed. So only the modules of the script are
            cleared.
        grace_s: Seconds that this may take, after the exit hooks.
        pid: Of the rank; a process that the script has forked has another one.
    """
    if beside_gloo:
        _end_in_exit_hook(exit_code(error), type(error) is KeyboardInterrupt, grace_s, pid)
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


def _end_in_exit_hook(code: int, interrupted: bool, grace_s: float, pid: int) -> None:
    """Register an exit hook that runs the others, and ends the process as Python does after them.

    By then no frame of the script or of its caller is left.
    """
    others_have_run = threading.Event()

    def give_up() -> None:
        others_have_run.wait()
        sleep(grace_s)
        os._exit(code)

    # Here, because an exit hook cannot start a thread; ``threading`` must not list it, because an
    # exit hook of the script may join all threads.
    timer = _thread.start_new_thread(give_up, ())

    def finish() -> NoReturn:
        nonlocal code
        atexit.unregister(finish)
        atexit._run_exitfuncs()  # noqa: SLF001 - public since never, the same since 2.0
        if not _flush_output():
            code = _FLUSH_FAILED
        _stop_handlers_and_threads(besides={threading.get_ident(), timer})
        others_have_run.set()
        groups = _process_groups()
        _take_down()
        del groups
        if code != _FLUSH_FAILED and not _flush_output():
            code = _FLUSH_FAILED
        alone = "ZEUSRUN_SLOT" in os.environ or os.environ.get("WORLD_SIZE") == "1"
        if code and os.getpid() == pid and not alone:
            _close_connections()
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)

    atexit.register(finish)


def _stop_handlers_and_threads(besides: AbstractSet[int]) -> None:
    """Stop what may run while the names of modules go, as Python does: daemon threads, too."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    threading.excepthook = lambda _: None
    for ident in sys._current_frames().keys() - besides:  # noqa: SLF001
        stop = ctypes.pythonapi.PyThreadState_SetAsyncExc
        stop(ctypes.c_ulong(ident), ctypes.py_object(SystemExit))
    sleep(_SWITCH_S)


def _flush_output() -> bool:
    """Flush both streams; return whether standard output could be."""
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    try:
        if sys.stdout is not None and not getattr(sys.stdout, "closed", False):
            sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 - the script may have replaced it
        with contextlib.suppress(Exception):
            ignored = f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}"
            print(ignored, file=sys.stderr)  # noqa: T201 - as Python does
        return False
    return True


def _close_connections() -> None:
    """Close the connections of a rank that fails, and give the other ranks time to save.

    They notice the failure now. torchrun ends them as soon as this process has ended.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError), socket.fromfd(int(name), socket.AF_INET6, 0) as each:
            if isinstance(each.getpeername(), tuple):  # else it is no socket, listens, is of Unix
                each.shutdown(socket.SHUT_RDWR)
    sleep(_PEERS_SAVE_S)


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


def _take_down() -> None:
    """Clear the modules of the script, so that its open files are closed and its objects finalized.

    As in Python, whole modules are collected first, so that a ``__del__`` still finds their names.
    Files are closed after that, so that none loses what a ``__del__`` writes. If something
    installed refers to a module, its names are dropped; classes, imports and functions come last.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        setattr(sys, name, None)
    of_script = [name for name in [*sys.modules] if _is_of_script(name, sys.modules[name])]
    places = {id(vars(sys.modules[name])): n for n, name in enumerate(of_script)}
    for name in of_script:
        sys.modules[name] = None  # type: ignore[assignment] # as Python does
    files = [each for each in gc.get_objects() if type(each) in _BUFFERED]
    gc.collect()
    while files:
        files.pop()  # one that nothing else refers to is closed
    left = [each for each in gc.get_objects() if type(each) is dict and id(each) in places]
    modules = (each for each in left if "__name__" in each)  # no other dictionary at that address
    namespaces = sorted(modules, key=lambda names: places[id(names)])
    for kinds in (_CODE, _CODE[:-1], ()):  # classes second, imports and functions last
        for names in reversed(namespaces):
            _drop(names, kept=kinds)
        gc.collect()
    for candidate in gc.get_objects():  # files that installed packages hold
        if type(candidate) in _BUFFERED:
            with contextlib.suppress(Exception):  # closed, detached, a full disk, a raw of its own
                candidate.flush()


def _is_of_script(name: str, module: object) -> bool:
    if not issubclass(type(module), ModuleType):
        return False
    if name in {"__main__", "__mp_main__"}:  # multiprocessing gives it the second name
        return True
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

    The setting survives ``execve`` and is not inherited by children. If the agent has died before
    this call, the rank exits at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    agent = os.environ.pop(_AGENT, None)
    if agent is not None and _is_dead(agent):
        os._exit(1)


def announce_agent() -> None:
    """Write the pid of this process into its environment, which its ranks inherit."""
    os.environ[_AGENT] = str(os.getpid())


def _is_dead(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes longer
            return file.read().rpartition(b")")[2].split()[0] in {b"Z", b"X"}
    except OSError:
        return True

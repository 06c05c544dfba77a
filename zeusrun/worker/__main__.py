"""One rank: ``worker/__main__.py [--plain] (-m MODULE | SCRIPT) [ARG ...]``, started by torchrun.

Runs the user's script or module as ``__main__``, its output in the rank's own log. With
``--plain`` this process only redirects the output and then becomes the script.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import io
import os
import runpy
import signal
import sys
import threading
import time
import types
from typing import TYPE_CHECKING, NoReturn

from zeusrun.files.private import open_for_writing
from zeusrun.sidecar.events import Ended, EventWriter, Started
from zeusrun.sidecar.orders import ENDING, STACK_SIGNAL
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.worker.collectives import is_grouped
from zeusrun.worker.context import SIGTERM_EXIT_CODE, current_run
from zeusrun.worker.failure import record_failure
from zeusrun.worker.hooks.install import install_hooks
from zeusrun.worker.parent_death import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_BUFFERED = {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom}


def main() -> NoReturn:
    """Run the rank; never returns."""
    end_with_parent()
    if "SLURM_JOB_ID" not in os.environ:  # Slurm may send it to every process of a step
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # torchrun ignores it, and children inherit
    arguments = sys.argv[1:]
    run_dir, rank = os.environ["ZEUSRUN_RUN_DIR"], int(os.environ.get("RANK", "0"))
    sidecar = os.environ["ZEUSRUN_SIDECAR"]  # read now: the script may change its environment
    log = os.path.join(run_dir, "logs", f"rank{rank}")  # noqa: PTH118
    with _going_on("this rank has no log of its own"):
        _redirect_output(f"{log}.log")
    if arguments[0] == "--plain":
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-u", *arguments[1:]])  # noqa: S606 - that is --plain
    pid, restart = os.getpid(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    with _going_on("stacks cannot be dumped"):
        _dump_stacks_on_signal(f"{log}.stack")
    tick = _no_tick
    with _going_on("steps are not counted"):
        tick = StepClock(os.path.join(run_dir, "clock", f"rank{rank}")).tick  # noqa: PTH118
    hooks = install_hooks(tick)
    _record(sidecar, Started(time.monotonic(), rank, pid, restart))
    error = _run_script(arguments)
    code = 0 if error is None else _exit_code(error)
    if os.getpid() != pid:  # a process that the script forked is not the rank
        _exit(code)
    hooks.flush()
    if code == 0:
        error, code = _end_of_run()
    if error is not None and code != 0:
        path = os.path.join(run_dir, "error.json")  # noqa: PTH118
        record_failure(path, rank, restart, error)
    _record(sidecar, Ended(time.monotonic(), rank, code, _was_grouped()))
    _exit(0 if _is_ended_by_zeusrun(run_dir) else code)


@contextlib.contextmanager
def _going_on(problem: str) -> Iterator[None]:
    """Print a problem of the disk and go on: it must not end the training."""
    try:
        yield
    except OSError as error:
        print(f"zeusrun: {problem}: {error}", file=sys.stderr)  # noqa: T201


def _is_ended_by_zeusrun(run_dir: str) -> bool:
    """Whether zeusrun is ending the ranks.

    Then this rank exits with 0 even if it failed: at a failure torchrun would end the other ranks,
    which may still be saving, and start all of them again. The sidecar has the true exit code.
    """
    try:
        with open(os.path.join(run_dir, "stop"), "rb") as file:  # noqa: PTH118, PTH123
            return file.read(len(ENDING)) == ENDING
    except OSError:
        return False


def _record(sidecar: str, event: Started | Ended) -> None:
    with _going_on("could not record an event"):
        writer = EventWriter(sidecar)
        writer.write(event)
        writer.close()


def _redirect_output(path: str) -> None:
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _dump_stacks_on_signal(path: str) -> None:
    """Append the stacks of all threads to a file at each ``STACK_SIGNAL``.

    The handler is written in C, so it works while the main thread waits in a collective.
    """
    if STACK_SIGNAL is not None:
        descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)


def _no_tick() -> None:
    pass


def _was_grouped() -> bool:
    """Whether this rank is or was in a process group of ``torch.distributed``."""
    try:
        return current_run().grouped or is_grouped()
    except Exception:  # noqa: BLE001 - it is only for a warning, and the script may change anything
        return False


def _end_of_run() -> tuple[BaseException | None, int]:
    """Return the failure of a script that ended well, if any, and the exit code."""
    run = current_run()
    if run.external_sigterm:
        return None, SIGTERM_EXIT_CODE
    try:
        run.send()
    except OSError as error:
        print(f"zeusrun: could not record the metrics: {error}", file=sys.stderr)  # noqa: T201
        return error, 1
    return None, 0


def _run_script(arguments: list[str]) -> BaseException | None:
    """Run the script as ``__main__``; return the exception that ended it, if any."""
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            _set_first_path(os.getcwd())  # noqa: PTH109
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            _run_file(arguments)
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is its result
        trace = _users_trace(error.__traceback__)
        error.__traceback__ = trace
        if not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, trace)
        elif error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
        return error
    return None


def _run_file(arguments: list[str]) -> None:
    path = arguments[0]
    sys.argv = arguments
    _set_first_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = module  # so that pickle and multiprocessing find the script's names
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec", dont_inherit=True)  # not our __future__
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what this is for


def _set_first_path(folder: str) -> None:
    """Put the script's folder first on ``sys.path``, in the place of this file's."""
    if not getattr(sys.flags, "safe_path", False):  # since 3.11
        sys.path[0] = folder


def _users_trace(trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames above the script, so that the traceback reads as under plain Python."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _exit(code: int) -> NoReturn:
    """End the process as Python does, but with torch without taking the interpreter down.

    That aborts in about half of all runs after DDP with gloo ("terminate called without an active
    exception", torch 2.13), and would turn a finished training into a failed one.
    """
    if "torch" not in sys.modules:
        sys.exit(code)
    wait_for_threads = getattr(threading, "_shutdown", None)  # joins executors' threads, too
    if wait_for_threads is not None:
        wait_for_threads()
    atexit._run_exitfuncs()  # noqa: SLF001 - public since never, the same since 2.0
    for candidate in gc.get_objects():
        if type(candidate) in _BUFFERED:  # isinstance would run the script's own __class__
            with contextlib.suppress(Exception):  # closed, detached, a full disk, a raw of its own
                candidate.flush()
    with contextlib.suppress(Exception):  # the script may have replaced them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

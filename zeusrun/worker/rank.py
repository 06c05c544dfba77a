"""Runs a rank: redirects its output to the log, counts steps, runs the script, records its end.

With ``--plain`` the process only redirects the output and then becomes the script.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_writing
from zeusrun.sidecar.events import Ended, EventWriter, Started
from zeusrun.sidecar.orders import ENDING, STACK_SIGNAL
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.worker.context import SIGTERM_EXIT_CODE, current_run
from zeusrun.worker.ending import end, exit_code
from zeusrun.worker.failure import record_failure
from zeusrun.worker.hooks.install import install_hooks
from zeusrun.worker.parent_death import end_with_parent
from zeusrun.worker.script import run_script, show_failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.worker.hooks.install import Hooks


def main(known: frozenset[str]) -> None:
    """Run the rank.

    Args:
        known: The modules that every Python has imported when a script begins.
    """
    end_with_parent()
    end(*_run(known))  # no variable: the exception holds the variables of the script's functions


def _run(known: frozenset[str]) -> tuple[BaseException | None, bool, float]:
    """Run the script and record how it ended; return the arguments of ``end``."""
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
    run, hooks = current_run(), install_hooks(tick)
    _record(sidecar, Started(time.monotonic(), rank, pid, restart))
    error = show_failure(run_script(arguments, known))
    with contextlib.suppress(Exception):  # the script may have replaced what this needs
        if os.getpid() == pid:  # else the script has forked this process, which is not the rank
            error, failure = _send_last(error, hooks)
            code = exit_code(error)
            if failure is not None:
                path = os.path.join(run_dir, "error.json")  # noqa: PTH118
                record_failure(path, rank, restart, failure)
            _record(sidecar, Ended(time.monotonic(), rank, code, run.had_group()))
            if code and _is_ended_by_zeusrun(run_dir):
                error = SystemExit(0)
    return error, run.had_group(gloo=True), run.grace_period_s


def _send_last(
    error: BaseException | None, hooks: Hooks
) -> tuple[BaseException | None, BaseException | None]:
    """Send what is not sent yet; return what ends the rank, and its failure if it is one."""
    run = hooks.run
    hooks.flush()
    if exit_code(error):
        return error, error
    if run.external_sigterm:
        return SystemExit(SIGTERM_EXIT_CODE), None
    try:
        run.send()
    except OSError as failure:
        print(f"zeusrun: could not record the metrics: {failure}", file=sys.stderr)  # noqa: T201
        return SystemExit(1), failure
    return error, None


@contextlib.contextmanager
def _going_on(problem: str) -> Iterator[None]:
    """Print an error of the disk and continue: it must not end the training."""
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

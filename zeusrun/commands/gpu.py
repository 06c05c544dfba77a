"""The verbs ``gpu``, ``gpu watch`` and ``measure`` of the ``zeusrun`` command."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from zeusrun.commands.options import AsJson, console
from zeusrun.errors import ExitCode, UsageError
from zeusrun.files.home import home_directory
from zeusrun.gpu.snapshot import open_gpus, read_cpu, read_status
from zeusrun.gpu.watch import MOST_BETWEEN_LOOKS_S, GpuWatch
from zeusrun.launcher.machine import job_devices
from zeusrun.launcher.power.control import held_by
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.maintenance.measure import measure as run_measured
from zeusrun.view.export import print_json
from zeusrun.view.gpu import WATCH_COLUMNS, gpu_sheet, no_gpu_line, watch_lines, watch_sheet
from zeusrun.view.measure import measurement_sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zeusrun.gpu.snapshot import OpenGpu
    from zeusrun.gpu.watch import WatchedGpu

gpu_app = typer.Typer(rich_markup_mode=None, add_completion=False)
measure_app = typer.Typer(rich_markup_mode=None, add_completion=False)

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TICK_S = 0.1

Everything = Annotated[bool, typer.Option("--all", help=f"Include GPUs that {_VISIBLE} hides.")]


@gpu_app.callback(invoke_without_command=True)
def gpu(context: typer.Context, *, everything: Everything = False, as_json: AsJson = False) -> None:
    """Show this machine's GPUs as a new job would see them."""
    if context.invoked_subcommand is not None:
        if everything or as_json:
            raise UsageError(f"options of gpu {context.invoked_subcommand} come after its name")
        return
    with _opened(everything=everything) as gpus:
        statuses = [read_status(each, _held_by()) for each in gpus]
    if as_json:
        print_json([status.to_json() for status in statuses])
    elif statuses:
        shown = console()
        shown.print(gpu_sheet(statuses, shown.width), highlight=False)
    else:
        _print_no_gpu(everything=everything)


@gpu_app.command()
def watch(
    *,
    period: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
    everything: Everything = False,
) -> None:
    """Show them again and again until Ctrl-C; piped: as CSV."""
    shown = console()
    with CaughtSignals() as signals, _opened(everything=everything) as gpus:
        if not gpus:
            _print_no_gpu(everything=everything)
            return
        looks = _looks(gpus, period, signals.received)
        if shown.is_terminal:
            with Live(console=shown, auto_refresh=False) as live:
                for elapsed_s, watched in looks:
                    live.update(watch_sheet(watched, elapsed_s, shown.width), refresh=True)
        else:
            shown.out(",".join(WATCH_COLUMNS), highlight=False)
            for elapsed_s, watched in looks:
                shown.out(watch_lines(watched, elapsed_s), highlight=False)
    ended_by = signals.received[0]
    raise typer.Exit(0 if ended_by == signal.SIGINT else ExitCode.SIGNAL_BASE + ended_by)


# Options after the name of the measured command belong to that command.
@measure_app.command(context_settings={"allow_interspersed_args": False})
def measure(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command to run, without a shell.")
    ],
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, as the last line of standard output.")
    ] = False,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Measure the CPU instead of the GPUs.")
    ] = False,
) -> None:
    """Run any command and report its time and energy."""
    devices, _ = job_devices("cpu" if cpu else "auto", os.environ)
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
        measured = run_measured(command, devices)
        # Print before closing the devices: a driver may hang while it closes.
        if as_json:
            console().out()  # the last line of the command may lack a newline
            print_json(measured.to_json())
        else:
            sheet = measurement_sheet(command, measured)
            console(stderr=True).print(sheet, highlight=False)
    raise typer.Exit(measured.exit_code)


@contextlib.contextmanager
def _opened(*, everything: bool) -> Iterator[list[OpenGpu]]:
    gpus = open_gpus(os.environ, everything=everything)
    try:
        yield gpus
    finally:
        for each in gpus:
            each.close()


def _looks(
    gpus: Sequence[OpenGpu], period_s: float, signals: Sequence[int]
) -> Iterator[tuple[float, list[WatchedGpu]]]:
    """Yield what the GPUs do, and seconds since the first look, until a signal has come."""
    watch = GpuWatch(gpus, _held_by())
    looks_each = math.ceil(period_s / MOST_BETWEEN_LOOKS_S)  # of which one is shown
    looked = 0
    began_s = due_s = time.monotonic()
    while not signals:
        now_s = time.monotonic()
        if now_s >= due_s:
            due_s = max(due_s + period_s / looks_each, now_s)
            watched = watch.look(now_s)
            if looked % looks_each == 0:
                yield now_s - began_s, watched
            looked += 1
        time.sleep(min(_TICK_S, max(0.0, due_s - time.monotonic())))


def _held_by() -> Callable[[str], str | None]:
    """Return a function: the UUID of a GPU to the trial that holds its power limit."""
    return functools.partial(held_by, home_directory(os.environ))


def _print_no_gpu(*, everything: bool) -> None:
    visible = None if everything else os.environ.get(_VISIBLE)
    console().print(no_gpu_line(read_cpu(os.environ), visible), highlight=False)

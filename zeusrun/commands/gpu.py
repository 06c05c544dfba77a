"""The verbs ``gpu`` and ``measure`` of the ``zeusrun`` command."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Annotated

import typer

from zeusrun.commands.options import AsJson, console
from zeusrun.energy.cpu import cpu_device
from zeusrun.errors import UsageError
from zeusrun.files.home import home_directory
from zeusrun.gpu.snapshot import open_gpus, read_status
from zeusrun.launcher.machine import job_devices
from zeusrun.launcher.power.control import held_by
from zeusrun.maintenance.measure import measure as run_measured
from zeusrun.view.export import print_json
from zeusrun.view.gpu import gpu_sheet, no_gpu_line
from zeusrun.view.measure import measurement_sheet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeusrun.gpu.snapshot import OpenGpu

gpu_app = typer.Typer(rich_markup_mode=None, add_completion=False)
measure_app = typer.Typer(rich_markup_mode=None, add_completion=False)

_VISIBLE = "CUDA_VISIBLE_DEVICES"

Everything = Annotated[bool, typer.Option("--all", help=f"Include GPUs that {_VISIBLE} hides.")]


@gpu_app.callback(invoke_without_command=True)
def gpu(context: typer.Context, *, everything: Everything = False, as_json: AsJson = False) -> None:
    """Show this machine's GPUs as a new job would see them."""
    if context.invoked_subcommand is not None:
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


@gpu_app.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def watch() -> None:
    """Refuse: this verb was removed."""
    raise UsageError("`gpu watch` was removed; nvitop shows the GPUs live: pip install nvitop")


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


def _held_by() -> Callable[[str], str | None]:
    """Return a function: the UUID of a GPU to the trial that holds its power limit."""
    return functools.partial(held_by, home_directory(os.environ))


def _print_no_gpu(*, everything: bool) -> None:
    visible = None if everything else os.environ.get(_VISIBLE)
    console().print(no_gpu_line(cpu_device(os.environ), visible), highlight=False)

"""The verbs ``gpu`` and ``measure``."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from typing import Annotated

import typer
from typer import Argument, Option

from zeusrun.commands.options import AsJson, console
from zeusrun.energy.cpu import cpu_device
from zeusrun.files.home import home_directory
from zeusrun.gpu.registry import job_devices
from zeusrun.gpu.snapshot import read_gpus
from zeusrun.launcher.power.control import held_by
from zeusrun.maintenance.measure import measure as run_measured
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json
from zeusrun.view.gpu import gpu_sheet, measurement_sheet, no_gpu_line

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpu(
    *,
    everything: Annotated[
        bool, Option("--all", help=f"Include GPUs that {_VISIBLE} hides.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show this machine's GPUs as a new job would see them."""
    holder_of = functools.partial(held_by, home_directory(os.environ))
    statuses = read_gpus(os.environ, holder_of, everything=everything)
    shown = console()
    if as_json:
        print_json([status.to_json() for status in statuses])
    elif statuses:
        shown.print(gpu_sheet(statuses, shown.width))
    else:
        visible = None if everything else os.environ.get(_VISIBLE)
        shown.print(no_gpu_line(cpu_device(os.environ), visible))


def measure(
    command: Annotated[
        list[str], Argument(metavar="COMMAND", help="The command to run, without a shell.")
    ],
    *,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON, as the last line of standard output.")
    ] = False,
    cpu: Annotated[bool, Option("--cpu", help="Measure the CPU instead of the GPUs.")] = False,
) -> None:
    """Run any command and report its time and energy."""
    devices, _ = job_devices("cpu" if cpu else "auto", os.environ)
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
        measured = run_measured(command, devices)
        # Print before closing the devices: a driver may hang while it closes.
        if as_json:
            typer.echo()  # the last line of the command may lack a newline
            print_json(measured.to_json())
        else:
            sheet = measurement_sheet(command, measured)
            lasting_console(sys.stderr).print(sheet)
    raise typer.Exit(measured.exit_code)

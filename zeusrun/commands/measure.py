"""The verb ``measure``."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer
from typer import Argument, Option

from zeusrun.gpu.registry import job_devices
from zeusrun.maintenance.measure import measure as run_measured
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json
from zeusrun.view.gpu import measurement_sheet


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

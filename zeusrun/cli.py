"""The ``zeusrun`` command: parse, call, show, exit code. The only exit."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from zeusrun.commands.gpu import MEASURE_SETTINGS, gpu_app, measure
from zeusrun.commands.job import explain, schema, validate
from zeusrun.commands.runs import cancel, history, logs, show, status
from zeusrun.commands.schedule import schedule_app
from zeusrun.commands.simulate import simulate
from zeusrun.commands.submit import rerun, submit
from zeusrun.commands.upkeep import doctor, prune, repair
from zeusrun.errors import ExitCode, ZeusrunError, describe_shortage
from zeusrun.plain_text import plain_text

# What a command imports and reads stays; Python's own 700 would look through it all for a tenth
# of the start.
_OBJECTS = 200_000

app = typer.Typer(
    name="zeusrun",
    help="A torchrun that learns: every run of a recurring training job picks the batch size "
    "that reaches the target for the least energy and time.",
    no_args_is_help=True,
    context_settings={"max_content_width": 100},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

app.command()(submit)
app.command()(rerun)
app.command()(history)
app.command()(show)
app.command()(explain)
app.command()(validate)
app.command()(schema)
app.command()(doctor)
app.command()(simulate)
app.add_typer(gpu_app, name="gpu")
app.add_typer(schedule_app, name="schedule")
app.command(context_settings=MEASURE_SETTINGS)(measure)
app.command()(repair)
app.command("gc")(prune)
app.command()(status)
app.command()(cancel)
app.command()(logs)


def _version(wanted: bool) -> None:
    if wanted:
        from zeusrun import __version__  # noqa: PLC0415

        typer.echo(f"zeusrun {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command and exit; the one place where an error becomes words and a code."""
    gc.set_threshold(_OBJECTS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no "✓" gets a "?"
    try:
        app()
    except ZeusrunError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # 'zeusrun history | head': typer and rich make an exit with 1 of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.REACHED)
    except Exception as error:  # noqa: BLE001 - a traceback is for us, not for a user
        shortage = describe_shortage(error)
        _say(shortage or _report_bug(error))
        sys.exit(ExitCode.LAUNCH if shortage else ExitCode.BUG)
    sys.exit(ExitCode.REACHED)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or it goes to a disk that is full
        print(plain_text(f"zeusrun: {text}"), file=sys.stderr, flush=True)  # noqa: T201


def _report_bug(error: Exception) -> str:
    """Keep the traceback of a bug in a file; return what to say."""
    import tempfile  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="zeusrun-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        where = f"The traceback is in {file.name}; please report it."
    except OSError as problem:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = (
            f"Its traceback could not be written ({problem.strerror}); it ends in "
            f"{last.filename}:{last.lineno}. Please report it."
        )
    return (
        f"this is a bug in zeusrun: {type(error).__name__}: {error}. What had been recorded is "
        f"kept. {where}"
    )

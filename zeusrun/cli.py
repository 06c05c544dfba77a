"""The ``zeusrun`` command: parse, call, show, exit code. The only exit."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from zeusrun import __version__
from zeusrun.errors import ExitCode, ZeusrunError, describe_shortage
from zeusrun.plain_text import plain_text

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "zeusrun": {
        "submit": ("submit.submit", "Run the job once: choose, launch, meter, record."),
        "rerun": ("submit.rerun", "Run the job of a trial as it was then, with the same choice."),
        "history": ("runs.history", "Show what was run, what it cost, and what it saved."),
        "show": ("runs.show", "Show everything about one trial."),
        "explain": ("job.explain", "Show what the policy believes, and what it would choose next."),
        "validate": ("job.validate", "Check a job file."),
        "schema": ("job.schema", "Print the JSON Schema of job files, for editors."),
        "doctor": ("upkeep.doctor", "Check Python, torch, devices and home; say what to do."),
        "simulate": ("simulate.simulate", "Replay recorded or made-up jobs through the policies."),
        "measure": (
            "gpu.measure_app",
            "Run any command, and tell the time and the energy that it took.",
        ),
        "repair": ("upkeep.repair", "Put right what dead processes have left; restore histories."),
        "gc": ("upkeep.prune", "Remove the files of old runs; never the history."),
        "status": ("runs.status", "Show what runs now, and what waits for its turn."),
        "cancel": ("runs.cancel", "Stop a running trial, or keep a preempted one from going on."),
        "logs": ("runs.logs", "Print what the ranks of a trial printed."),
        "gpu": ("gpu.gpu_app", "Show this machine's GPUs as a job started now would see them."),
    },
    "schedule": {
        "add": ("schedule.add", "Have a job run by itself; again, change how."),
        "list": ("schedule.list_", "Show what is scheduled: the next times, and the last outcome."),
        "next": ("schedule.next_", "Show when a job runs next."),
        "pause": ("schedule.pause", "Start a job no more, until it is resumed; what runs goes on."),
        "resume": ("schedule.resume", "Start a paused job again from its next time on."),
        "remove": (
            "schedule.remove",
            "Have a job run by itself no more; its history and its log stay.",
        ),
        "run-now": ("schedule.run_now", "Run a job now as its schedule would, and watch it."),
        "export": ("schedule.export", "Print the schedules as systemd units."),
        "daemon": (
            "tick.daemon",
            "Run all schedules in the foreground, where there is no cron.",
        ),
        "tick": ("tick.tick", ""),
        "fire": ("submit.fire", ""),
    },
}
"""Where in ``zeusrun.commands`` the verbs of each group are, and what ``--help`` says of them.

A verb without a help text is hidden.
"""

# What a command imports and reads stays; Python's own 700 would look through it all for a tenth
# of the start.
_OBJECTS = 200_000

_new_app = functools.partial(
    typer.Typer, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
)


class LazyGroup(TyperGroup):
    """A group that imports the module of a verb when the verb is used.

    Until then each verb is a command with a name and a help text: ``--help``, shell completion
    and "did you mean" need no more.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's or, from 0.26 on, Typer's own
        """Return the name, the command and the arguments of the verb that is used."""
        name, command, rest = super().resolve_command(ctx, args)
        place, _ = VERBS[self.name or ""].get(name or "", ("", ""))
        return name, get_command(_import_verb(place)) if place else command, rest


def _import_verb(place: str) -> typer.Typer:
    module, name = place.split(".")
    verb = getattr(importlib.import_module(f"zeusrun.commands.{module}"), name)
    if isinstance(verb, typer.Typer):
        return verb
    single = _new_app()
    single.command()(verb)
    return single


def _build_group(name: str, text: str) -> typer.Typer:
    group = _new_app(
        name=name,
        help=text,
        cls=LazyGroup,
        no_args_is_help=True,
        context_settings={"max_content_width": 100},
    )
    for verb, (_, verb_text) in VERBS[name].items():
        group.command(verb, help=verb_text, hidden=not verb_text)(_not_imported)
    return group


def _not_imported() -> None:
    """Stand for a verb in its group; never called."""


app = _build_group(
    "zeusrun",
    "A torchrun that learns: every run of a recurring training job picks the batch size that "
    "reaches the target for the least energy and time.",
)
app.add_typer(
    _build_group("schedule", "Run jobs by themselves: every night, every week, from cron.")
)


def _version(wanted: bool) -> None:
    if wanted:
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
        # 'zeusrun history | head': typer makes an exit with 1 of it
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
    import tempfile  # noqa: PLC0415 - hardly ever needed

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

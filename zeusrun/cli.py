"""The ``zeusrun`` command: the table of verbs, the one error boundary, the one exit."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import os
import sys
import traceback
import types
from typing import Annotated, Any, NoReturn

import typer
from typer import Option
from typer.core import TyperGroup
from typer.main import get_command

from zeusrun import __version__
from zeusrun.errors import ExitCode, ZeusrunError, describe_shortage
from zeusrun.plain_text import plain_text
from zeusrun.plugins import find_culprit

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "zeusrun": {
        "init": ("job.init", "Write a job file for a command that you run today."),
        "submit": ("submit.submit", "Run the job once: choose, launch, meter, record."),
        "history": ("runs.history", "Show past runs, what they cost and what they saved."),
        "show": ("runs.show", "Show everything about one run."),
        "status": ("current.status", "Show what runs, what waits, and what starts later."),
        "logs": ("runs.logs", "Print the output of the ranks of a run."),
        "cancel": ("current.cancel", "Stop a run, or give up a preempted one."),
        "explain": ("next_runs.explain", "Show what the next run would use, and why."),
        "report": ("report.report", "Write a page about past runs, or its numbers as JSON."),
        "export": ("export.export", "Export runs to MLflow or Prometheus."),
        "validate": ("job.validate", "Check a job file."),
        "schema": ("job.schema", "Print the JSON Schema of job files, for editors."),
        "doctor": ("upkeep.doctor", "Check this machine, the home, histories and schedules."),
        "scale": ("scale.scale", "Compare the throughput of several numbers of ranks."),
        "simulate": ("next_runs.simulate", "Replay a job with other settings."),
        "repair": ("upkeep.repair", "Clean up after dead processes; restore histories."),
        "gc": ("upkeep.prune", "Remove the files of old runs; the history stays."),
        "uninstall": ("uninstall.uninstall", "Remove everything of zeusrun but its package."),
        "resize": ("elastic.verb.resize", "Change the number of ranks of an elastic training."),
        "join": ("run_on.hosts.verbs.join", "Give this host to a job that waits for it."),
        "connect": ("connect.connect", "Let this machine use the history of a server."),
        "node": ("run_on.hosts.verbs.node", ""),
        "inside": ("follow.inside", ""),
        "serve": ("server.serve", "Serve one history to many machines, with a page to look at it."),
    },
    "db": {
        "create": ("server.create_database", "Create the tables, if they are not there."),
        "restored": ("server.restored", "Say that the database was restored from a backup."),
    },
    "token": {
        "create": ("server.new_token", "Create a token, and print it: nobody can read it later."),
        "list": ("server.list_", "List all tokens: what each permits, and when it was last used."),
        "revoke": ("server.revoke", "Make a token invalid for ever."),
    },
    "schedule": {
        "add": ("schedule.add", "Schedule a job, or change its schedule."),
        "list": ("schedule.list_", "Show all schedules: the next times and the last outcome."),
        "pause": ("schedule.pause", "Pause a schedule; a run that has started continues."),
        "resume": ("schedule.resume", "Resume a paused schedule from its next time on."),
        "remove": ("schedule.remove", "Remove a schedule; the history and the log stay."),
        "run-now": ("schedule.run_now", "Submit a scheduled job now, as its schedule would."),
        "daemon": ("tick.daemon", "Run all schedules in the foreground, without cron."),
        "tick": ("tick.tick", ""),
        "fire": ("tick.fire", ""),
    },
}
"""The function of each verb, by group, and its help text.

A name with one dot is a function in a module of ``zeusrun.commands``.
A verb without a help text is hidden. ``--help`` lists them in this order.
"""

SIMILAR = {"list": "history", "ls": "history", "run": "submit", "start": "submit", "stop": "cancel"}
"""What people type, and the verb that they mean; the letters alone would suggest another one."""

_new_app = functools.partial(
    typer.Typer, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False
)


class LazyGroup(TyperGroup):
    """A group that imports the module of a verb when the verb is used.

    Until then each verb is a command with a name and a help text: ``--help``, shell completion
    and "did you mean" need no more.
    """

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - see resolve_command
        """Run a verb; without pydantic's prefix in the message on a wrong choice."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's or, from 0.26 on, Typer's own
        """Return the name, the command and the arguments of the verb that is used."""
        meant = SIMILAR.get(args[0]) if self.name == "zeusrun" else None
        if meant is not None and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{meant}'?")
        name, command, rest = super().resolve_command(ctx, args)
        place, _ = VERBS[self.name or ""].get(name or "", ("", ""))
        return name, get_command(_import_verb(place)) if place else command, rest


def _import_verb(place: str) -> typer.Typer:
    module, _, name = place.rpartition(".")
    package = "zeusrun" if "." in module else "zeusrun.commands"
    verb = getattr(importlib.import_module(f"{package}.{module}"), name)
    single = _new_app()
    # Options after the name of a command belong to that command.
    single.command(context_settings={"allow_interspersed_args": name != "init"})(verb)
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
    _build_group("schedule", "Run jobs on a schedule: every night, every week, from cron.")
)
app.add_typer(_build_group("db", "Create the tables of a server's database."))
app.add_typer(_build_group("token", "Say who may use a server."))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zeusrun {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_command = get_command(app)


def main() -> NoReturn:
    """Run the command and exit: the one place that turns errors into messages and exit codes."""
    # What a command creates at start-up lives until it exits. With Python's threshold of 700, the
    # garbage collector would scan it again and again: a tenth of the start-up time.
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)  # the process ends: what it held needs no collecting
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "✓" shows "?"
    _ignore_other_plugins()
    try:
        _command()
    except ZeusrunError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        raise
    except SystemExit as end:
        _end_for_plugin(end)
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # 'zeusrun history | head': typer turns the closed pipe into exit code 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.REACHED)
    except BaseException as error:  # noqa: BLE001 - a user sees a message, and the traceback goes to a file
        _end_for_plugin(error)
        shortage = describe_shortage(error)
        _print_error(shortage or _report_bug(error))
        sys.exit(ExitCode.LAUNCH if shortage else ExitCode.BUG)
    sys.exit(ExitCode.REACHED)


def _print_error(text: str) -> None:
    lines = [f"zeusrun: {line}" for line in plain_text(text).split("\n")]
    with contextlib.suppress(OSError):  # a closed pipe or a full disk
        print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201


def _end_for_plugin(error: BaseException) -> None:
    """Exit with the code for wrong usage if a plugin raised an error or tried to exit."""
    failure = find_culprit(error)
    if failure is not None:
        _print_error(str(failure))
        sys.exit(failure.exit_code)


def _ignore_other_plugins() -> None:
    """Prevent pydantic from looking for plugins: a damaged package could stop zeusrun.

    pydantic's own switch is an environment variable, which the training would inherit.
    """
    loader = types.ModuleType("pydantic.plugin._loader")
    loader.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules.setdefault(loader.__name__, loader)


def _report_bug(error: BaseException) -> str:
    """Write the traceback of a bug to a file; return the message."""
    import tempfile  # noqa: PLC0415 - hardly ever needed

    lines = traceback.format_exception(error)
    try:
        descriptor, path = tempfile.mkstemp(".txt", "zeusrun-bug-")
        # The message may quote a file name that is not UTF-8.
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123 - a descriptor
            file.writelines(lines)
        where = f"The traceback is in {path}"
    except OSError as full:
        where = (
            f"The traceback could not be written ({full.strerror}); it ends in {lines[-2].strip()}"
        )
    return (
        f"this is a bug in zeusrun: {type(error).__name__}: {error}. Everything recorded so far is "
        f"kept. {where}; please report it."
    )

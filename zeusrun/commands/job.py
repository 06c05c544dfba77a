"""The verbs about a job file: ``init``, ``validate`` and ``schema``."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zeusrun.clock import read_clock
from zeusrun.commands.options import JobFile, Overrides, open_home, tell
from zeusrun.errors import JobFileError, UsageError, ZeusrunError
from zeusrun.gpu.registry import job_devices
from zeusrun.jobfile.guess.command import read_command
from zeusrun.jobfile.guess.draft import job_name, write_draft
from zeusrun.jobfile.guess.guess import build_guess
from zeusrun.jobfile.guess.script import Script, module_paths, read_text
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.secrets import find_exposed
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.launcher.processes.command import find_torchrun
from zeusrun.launcher.script_warnings import find_script_warnings
from zeusrun.plain_text import plain_text
from zeusrun.plugins import BUILT_IN
from zeusrun.schedule.build import build_schedule
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from zeusrun.jobfile.guess.command import Launched
    from zeusrun.jobfile.guess.guess import Guess


def validate(job: JobFile, *, overrides: Overrides = None) -> None:
    """Check a job file."""
    spec = load_spec(job, overrides or [])
    load_tariffs(spec)  # raises if a file of rates is wrong
    warnings: list[str] = []
    if spec.schedule is not None:
        when = spec.schedule.cron or "@yearly"  # else `schedule add` is given one
        try:
            schedule = build_schedule(spec, when, {}, names=(), known=None, now=read_clock())
        except UsageError as error:
            raise JobFileError(f"{job}: in 'schedule': {error}") from None
        if schedule.rules.may_defer:
            from zeusrun.schedule.deferral import check_outlook  # noqa: PLC0415 - imports numpy

            warnings += check_outlook(spec, schedule.rules)
    if spec.policy.name not in BUILT_IN["zeusrun.policies"]:
        from zeusrun.bandit.registry import create_policy  # noqa: PLC0415 - imports numpy

        create_policy(spec.policy.name)
    arms = ", ".join(map(str, spec.batch_size.candidates))
    typer.echo(f"{job}: job '{spec.name}' is well-formed; batch sizes {arms}")
    warnings += find_exposed(spec.secrets, spec.source)
    for text in [*warnings, *find_script_warnings(spec)]:
        tell(f"warning: {job}: {text}")


def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    print_json(spec_json_schema())


def init(
    command: Annotated[
        list[str],
        Argument(metavar="COMMAND", help="What you run today, such as torchrun train.py --lr 0.1."),
    ],
    *,
    output: Annotated[
        Path | None,
        Option("--output", "-o", metavar="JOB.yaml", help="The file to write; it must not exist."),
    ] = None,
    try_it: Annotated[
        bool,
        Option("--try", help="Run it once for an epoch, and propose a metric and a target."),
    ] = False,
) -> None:
    """Write a job file for a command that you run today."""
    if any("\ud800" <= character <= "\udfff" for word in command for character in word):
        raise UsageError(
            "the command contains bytes that are not UTF-8; a job file cannot contain them"
        )
    known = frozenset[str]()
    with contextlib.suppress(ZeusrunError):  # torch need not be installed here
        known = find_torchrun().flags
    launched = read_command(command, known)
    target = launched.script or str(launched.module).removesuffix(".__main__").replace(".", "/")
    path = output or Path(f"{Path(target).stem}.yaml")
    guess = build_guess(
        launched, Script(_read_text(launched), launched.args), **_count_devices(launched)
    )
    workdir = os.path.relpath(Path.cwd(), path.parent)
    write = functools.partial(write_draft, words=command, path=path, workdir=workdir)
    text = write(guess)
    _create(path, text)
    head = f"Wrote {path}. The comments say what init guessed, and why:"
    typer.echo(plain_text(f"{head}\n\n{text}"))
    _warn(path, guess)
    if try_it:
        from zeusrun.commands.try_run import try_job  # noqa: PLC0415 - imports numpy

        raise typer.Exit(try_job(guess, path, text, write))
    typer.echo(
        f"Next: write metric and target under 'objective' in {path} (probably "
        f"{guess.metric}; `zeusrun init --try` lists the metrics), then run: zeusrun submit {path}"
    )


def _count_devices(launched: Launched) -> dict[str, int]:
    """Return how many GPUs and CPUs a job has here; GPUs are looked for only if it matters."""
    gpus = 0
    if launched.nproc_per_node in {None, "gpu", "auto"}:
        devices, _ = job_devices("auto", {**os.environ, **launched.env})
        gpus = sum(device.is_gpu for device in devices)
        for device in devices:
            device.close()
    return {"gpus": gpus, "cpus": len(os.sched_getaffinity(0))}


def _read_text(launched: Launched) -> str:
    """Return the text of the script, and of the files that nanoGPT reads after it."""
    script = launched.script
    if script is None:  # it need not be in the working directory
        return read_text(*module_paths(Path(), str(launched.module)))
    if (Path(script) / "__main__.py").is_file():  # Python runs such a folder
        script = f"{script}/__main__.py"
    if not Path(script).is_file():
        if Path(script).exists():
            raise UsageError(f"{script} is not a file; give the path of the script itself")
        raise UsageError(
            f"there is no script {script}; run init in the directory in which the command runs"
        )
    text = read_text(Path(script))
    if text.startswith("#!") and "python" not in text.partition("\n")[0]:
        raise UsageError(f"{script} is not a Python script; give the command that it runs")
    settings = launched.args if "configurator.py" in text else ()
    return "\n".join([text, *(read_text(Path(word)) for word in settings if word.endswith(".py"))])


def _create(path: Path, text: str) -> None:
    made = False
    try:
        with path.open("x", encoding="utf-8") as file:
            made = True
            file.write(text)
    except FileExistsError as error:
        if read_text(path) == text:  # of a try that failed
            return
        raise UsageError(
            f"{path} exists, and init overwrites nothing; name another file with -o before the "
            "command: zeusrun init -o OTHER.yaml -- COMMAND"
        ) from error
    except OSError as error:
        if made:  # by now a part of it
            path.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _warn(path: Path, guess: Guess) -> None:
    warnings, name = list(guess.warnings), job_name(path)
    with contextlib.suppress(ZeusrunError):  # the guess does not depend on it
        if name in open_home()[1].jobs():
            warnings.append(
                f"a job called {name!r} has a history, which this job would continue; change its "
                "name unless it is the same job"
            )
    for each in warnings:
        tell(f"warning: {path}: {each}")

"""The verb ``init``: from a command to a job file."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zeusrun.commands.options import open_home
from zeusrun.errors import UsageError, ZeusrunError
from zeusrun.jobfile.guess.command import read_command
from zeusrun.jobfile.guess.draft_file import DraftFile
from zeusrun.jobfile.guess.guess import build_guess
from zeusrun.jobfile.guess.script import read_script
from zeusrun.launcher.context import job_devices
from zeusrun.plain_text import plain_text

if TYPE_CHECKING:
    from zeusrun.jobfile.guess.command import Launched

_MAX_BYTES = 1 << 20


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
        raise UsageError("the command contains bytes that are not UTF-8; a job file cannot")
    launched = read_command(command)
    path = output or Path(f"{_stem(launched)}.yaml")
    guess = build_guess(launched, read_script(_read_text(launched)), **_count_devices(launched))
    draft = DraftFile(path, command, guess)
    draft.create()
    _say_guesses(draft)
    if try_it:
        from zeusrun.commands.try_run import try_job  # noqa: PLC0415 - imports numpy

        raise typer.Exit(try_job(draft))
    metric = guess.metric[0]
    missing = "target" if guess.is_reported else "metric and target"
    typer.echo(
        f"Next: write {missing} under 'objective' in {path} (likely {metric}; `zeusrun init --try` "
        f"finds out), then run: zeusrun submit {path}"
    )


def _stem(launched: Launched) -> str:
    if launched.script is None:
        return str(launched.module).removesuffix(".__main__").rpartition(".")[2]
    return Path(launched.script).stem


def _count_devices(launched: Launched) -> dict[str, int]:
    """Return how many GPUs and CPUs a job has here; GPUs are looked for only if it matters."""
    gpus = 0
    if launched.nproc_per_node in {None, "gpu", "auto"}:
        devices, _ = job_devices("auto", {**os.environ, **launched.env})
        gpus = sum(device.is_gpu for device in devices)
        for device in devices:
            device.close()
    return {"gpus": gpus, "cpus": len(os.sched_getaffinity(0))}


def _read_text(launched: Launched) -> str | None:
    """Return the text of the script, and of the files that nanoGPT reads after it.

    ``None`` if a module is not found, or if it is no text. Raises ``UsageError`` if there is no
    such script.
    """
    if launched.script is None:
        folder = Path(*str(launched.module).split("."))
        paths = [folder.with_suffix(".py"), folder / "__main__.py"]
    else:
        paths = [Path(launched.script)]
        if not paths[0].is_file():
            raise UsageError(
                f"there is no script {launched.script}; run init in the directory in which the "
                "command runs"
            )
    text = next(filter(None, map(_read, paths)), None)
    if text is not None and text.startswith("#!") and "python" not in text.partition("\n")[0]:
        raise UsageError(f"{launched.script} is no Python script; give the command that it runs")
    if text is not None and "configurator.py" in text:
        settings = [Path(word) for word in launched.args if word.endswith(".py")]
        text = "\n".join([text, *filter(None, map(_read, settings))])
    return text


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        if path.is_file():  # reading a pipe would block
            with path.open("rb") as file:
                return file.read(_MAX_BYTES).decode()
    return None


def _say_guesses(draft: DraftFile) -> None:
    guess = draft.guess
    lines = [f"{draft.path}: written; these are guesses:"]
    if guess.batch is None:
        lines.append("  batch size: none was found; see the comment in the file")
    else:
        sizes = ", ".join(map(str, guess.batch.candidates(guess.ranks)))
        lines.append(f"  batch size {guess.batch.default}, from {guess.batch.why}")
        lines.append(f"  candidates {sizes}")
    if guess.learning_rate is not None:
        rate, scale, why = guess.learning_rate
        lines.append(f"  learning rate {rate:g}, scale {scale}, from {why}")
    if guess.max_epochs is not None:
        lines.append(f"  at most {guess.max_epochs[0]} epochs, from {guess.max_epochs[1]}")
    typer.echo(plain_text("\n".join(lines)))
    warnings = list(guess.warnings)
    with contextlib.suppress(ZeusrunError):  # the guess does not depend on it
        if draft.name in open_home()[1].jobs():
            warnings.append(
                f"a job called {draft.name!r} has a history, which this job would continue; "
                "change its name unless it is the same job"
            )
    for text in warnings:
        typer.echo(plain_text(f"zeusrun: warning: {draft.path}: {text}"), err=True)

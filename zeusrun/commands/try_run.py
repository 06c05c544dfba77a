"""``init --try``: one short run of a drafted job, in a home of its own, to see its metrics."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zeusrun.commands.compose import compose
from zeusrun.commands.options import console, open_home
from zeusrun.errors import ExitCode, UsageError
from zeusrun.files.atomic import replace_file
from zeusrun.files.tail import LineTail
from zeusrun.history.registry import open_history
from zeusrun.jobfile.guess.guess import Batch, correct_batch, reveal
from zeusrun.jobfile.guess.script import read_text
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.events import Advanced, Printed
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import admitted, check_not_ended
from zeusrun.launcher.recurrence import submit
from zeusrun.launcher.redact import mask_job
from zeusrun.metrics.propose import propose
from zeusrun.metrics.propose_pattern import propose_pattern
from zeusrun.metrics.rows import Run
from zeusrun.metrics.seen import describe_alone, describe_spawned
from zeusrun.metrics.sight import Sight
from zeusrun.metrics.stdout import split_states
from zeusrun.plain_text import plain_text
from zeusrun.trial import TrialStatus
from zeusrun.view.console import lasting_console
from zeusrun.view.live import SubmitView
from zeusrun.view.sheets import metrics_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.jobfile.guess.guess import Guess
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial

_MAX_PRINTED_BYTES = 256 << 10
_TRY_S = 120  # if the number of epochs cannot be set
_NOTHING_SEEN = (
    "The run produced no metric that zeusrun can see. In the job file, write under 'metrics' where "
    "zeusrun can read them (stdout, csv, jsonl, tensorboard, ...), or call run.report() in the "
    "script: docs/metrics.md"
)


def try_job(guess: Guess, path: Path, text: str, write: Callable[..., str]) -> int:
    """Run a drafted job for one epoch, show its metrics, and add a proposal to the file.

    ``text`` is that of the file; ``write`` returns it with another guess and an objective.
    """
    spec = load_spec(path, [*_overrides(guess), *reveal(guess)])
    limit = "" if guess.max_epochs else f", at most {_TRY_S} s"
    typer.echo(f"Running it once: one epoch{limit}. This run is not recorded in the history.")
    trial, code, progress, printed = _run(spec)
    sight = Sight.of(progress) if progress is not None else None
    if sight is not None and sight.metrics:
        console().print(metrics_table(sight, trial.metric))
    spawned = () if progress is None else progress.ranks.spawned.values()
    if (started := describe_spawned(spawned)) is not None:
        typer.echo(f"zeusrun: warning: {path}: {started}", err=True)
    # A run that only lacks the metric has failed, too, but without a cause.
    failed = trial.status is TrialStatus.FAILED and trial.cause is not None
    stopped = code == ExitCode.BUSY or code >= ExitCode.SIGNAL_BASE
    if progress is None or sight is None or stopped or failed or trial.status is TrialStatus.OOM:
        reason = plain_text(trial.reason or "it was stopped")
        then = f"{path} stays as it is. Correct the cause, then give the same command again"
        typer.echo(f"zeusrun: the run failed: {reason}; {then}", err=True)
        return code
    guess = _check_batch(
        replace(guess, seen_rate=max(sight.learning_rates, default=None)), path, sight, progress
    )
    proposal = propose(progress.seen, guess.metric)
    shape = None if proposal else propose_pattern(printed, guess.metric)
    if shape is not None:
        proposal, guess = shape.proposal, replace(guess, pattern=shape.pattern)
    if proposal is None:
        stepped = progress.steps or progress.ranks.spawned
        idle = "" if stepped else "The run made no optimizer step: see its output above. "
        lines, objective = [idle + _NOTHING_SEEN], None
    else:
        metric, source, mode, target, last = proposal
        better = "at most" if mode == "min" else "at least"
        objective = (
            metric,
            mode,
            target,
            f"it was {last:.6g} in the run of --try; source: {source}",
        )
        read = f" It is read from lines such as: {plain_text(shape.line.strip())}" if shape else ""
        best = " It is at its best after one epoch: choose the target yourself."
        lines = [
            f"Proposed: {metric} {better} {target:g}.{best if target == last else ''}{read}",
            f"Next: set the target to what you need, then run: zeusrun submit {path}",
        ]
    changed = _replace(path, text, write(guess, objective=objective))
    typer.echo("\n".join([f"{path} {changed}.", *lines]))
    return ExitCode.REACHED


def _check_batch(guess: Guess, path: Path, sight: Sight, progress: Progress) -> Guess:
    """Return the guess with the batch size that the run trained with; warn if it was another."""
    size, batch = sight.batch_size, guess.batch
    if (alone := describe_alone(progress.observed)) is not None:
        typer.echo(f"zeusrun: warning: {path}: {alone}", err=True)
    elif batch is None and size and size % guess.ranks == 0:
        return replace(guess, batch=Batch(size, "the run of --try", by_hook=True))
    elif batch is not None and size == batch.default:
        checked = f"{batch.why.partition(': assumed')[0]}; checked by --try"
        return replace(guess, batch=replace(batch, why=checked))
    elif batch is not None and size:
        corrected = correct_batch(guess, size)
        then = "'batch_size' and 'args' are corrected"
        if corrected is None:
            then = "correct 'batch_size' and 'args'"
        wrong = f"the run trained with a batch size of {size}, not with {batch.default}"
        typer.echo(f"zeusrun: warning: {path}: {wrong}; {then}", err=True)
        return corrected or guess
    return guess


def _replace(path: Path, text: str, new: str) -> str:
    """Replace the file's text, unless somebody has edited it; return what happened to it."""
    if read_text(path) != text:
        return "was edited meanwhile, so init has not changed it"
    if new == text:
        return "stays as it is"
    _write(path, new)
    return "is updated with what the run has shown"


def _write(path: Path, text: str) -> None:
    try:
        mode = path.stat().st_mode
        replace_file(path, text.encode())
        path.chmod(mode)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}; it stays as it is"
        raise UsageError(why) from error


def _overrides(guess: Guess) -> list[str]:
    """Return what makes one short run of the job, whatever its metrics are."""
    size = guess.ranks if guess.batch is None else guess.batch.default
    return [
        f"objective.metric={guess.metric}",
        "objective.target=0",
        "objective.on_target=continue",
        "objective.missing_metric=continue",
        "objective.max_epochs=1",
        f"batch_size.default={size}",
        f"batch_size.candidates=[{size}]",
        "policy.name=fixed",
        "attempts=1",
        "early_stop.cost_factor=null",
        "power_limit.mode=observe",
        "stall.action=off",
        *([] if guess.max_epochs else [f"timeout_s={_TRY_S}"]),
    ]


def _run(spec: JobSpec) -> tuple[Trial, int, Progress | None, list[str]]:
    """Run the job once; the user's home lends the GPUs and records nothing.

    The last item is what rank 0 printed at the end, without colours.
    """
    home, history = open_home()
    progress = None
    with (
        CaughtSignals() as signals,
        SubmitView(lasting_console(sys.stdout), quiet=False) as view,
        tempfile.TemporaryDirectory(prefix="zeusrun-try-", ignore_cleanup_errors=True) as folder,
    ):

        def consume(event: SubmitEvent) -> None:
            nonlocal progress
            if isinstance(event, Advanced):
                progress = event.progress
            elif isinstance(event, Printed):  # warnings would be about the overrides
                view.show(event)

        with admitted(
            spec,
            home,
            history,
            {**os.environ, **spec.env},
            overlap="allow",
            wait_for_gpus=False,
            until=None,
            signals=signals.received,
            show=lambda _: None,
        ) as gpus:
            scratch = Path(folder)
            submission = compose(spec, None, gpus, place=(scratch, open_history(scratch, {})))
            environment = {**submission.environment, "ZEUSRUN_HOME": folder}
            submission = replace(submission, environment=environment)
            with contextlib.closing(submission):
                check_not_ended(spec.name, signals.received)
                result = submit(submission, consume)
            mask = mask_job(spec, {})
            printed = _read_printed(Run(Path(result.trials[-1].run_dir), scratch).log(0))
            printed = [line for line in printed if mask.text(line) == line]
    return result.trials[-1], result.exit_code, progress, printed


def _read_printed(log: Path) -> list[str]:
    tail, printed = LineTail(log), list[str]()
    tail.skip_backlog(_MAX_PRINTED_BYTES)
    with contextlib.suppress(OSError):
        while lines := tail.read_lines(final=True):
            printed += (state for line in lines for state in split_states(line))
    return [*dict.fromkeys(printed)]

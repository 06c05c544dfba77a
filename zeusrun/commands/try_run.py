"""``init --try``: one short run of a drafted job, to see its metrics, and a rehearsal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from zeusrun.commands.options import console
from zeusrun.commands.short_run import TRY_S, overrides, run_shortly
from zeusrun.errors import ExitCode, UsageError
from zeusrun.files.atomic import replace_file
from zeusrun.jobfile.guess.guess import Batch, correct_batch, reveal
from zeusrun.jobfile.guess.script import read_text
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.rundir.failure import is_permanent
from zeusrun.metrics.audit import describe_choice
from zeusrun.metrics.propose_pattern import list_likely
from zeusrun.metrics.seen import describe_alone, describe_spawned
from zeusrun.metrics.sight import Sight
from zeusrun.plain_text import plain_text
from zeusrun.view.sheets import metrics_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zeusrun.commands.short_run import Tried
    from zeusrun.jobfile.guess.guess import Guess
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Observed

_NOTHING_SEEN = (
    "The run produced no metric that zeusrun can see. In the job file, write under 'metrics' where "
    "zeusrun can read them (stdout, csv, jsonl, tensorboard, ...), or call run.report() in the "
    "script: docs/metrics.md"
)
_LIKELY = "These lines look most like a result; metrics.pattern reads a number of them as follows:"


def try_job(guess: Guess, path: Path, text: str, write: Callable[..., str]) -> int:
    """Run a drafted job for one epoch, show its metrics, and add a proposal to the file.

    ``text`` is that of the file; ``write`` returns it with another guess and an objective.
    """
    epochs, trained_epochs = guess.max_epochs, 1
    limit = "" if epochs else f", at most {TRY_S} s"
    typer.echo(f"Running it once: one epoch{limit}. This run is not recorded in the history.")
    tried = run_shortly(
        load_spec(path, [*overrides(guess), *reveal(guess)]), whole=epochs is not None
    )
    proposal, shape = tried.propose(guess.metric)
    if epochs is not None and epochs.value > 1 and proposal is None and _may_be_too_short(tried):
        own = f"{epochs.written} {epochs.value:g}"
        typer.echo(
            f"zeusrun: the run failed: {tried.reason}. zeusrun had set {epochs.written} 1: running "
            f"it with {own}, and stopping it after an epoch, or after {TRY_S} s",
            err=True,
        )
        trained_epochs = int(epochs.value)
        longer = [*overrides(guess, trained_epochs), *reveal(guess)]
        tried = run_shortly(load_spec(path, longer), whole=False)
        proposal, shape = tried.propose(guess.metric)
    trial, code, progress, printed, ended = tried
    sight = Sight.of(progress) if progress is not None else None
    if sight is not None and sight.metrics:
        console().print(metrics_table(sight, trial.metric))
    spawned = () if progress is None else progress.ranks.spawned.values()
    if (started := describe_spawned(spawned)) is not None:
        typer.echo(f"zeusrun: warning: {path}: {started}", err=True)
    if progress is None or sight is None or ended or (tried.failed and proposal is None):
        then = f"{path} stays as it is. Correct the cause, then give the same command again"
        typer.echo(f"zeusrun: the run failed: {tried.reason}; {then}", err=True)
        return code
    guess = _check_batch(
        replace(guess, seen_rate=max(sight.learning_rates, default=None)), path, sight, progress
    )
    if shape is not None:
        guess = replace(guess, pattern=shape.pattern)
    if proposal is None:
        stepped = progress.steps or progress.ranks.spawned
        idle = "" if stepped else "The run made no optimizer step: see its output above. "
        lines, objective = [idle + _NOTHING_SEEN, *_describe_likely(tried)], None
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
            *describe_choice(proposal, progress.seen, printed),
            f"Proposed: {metric} {better} {target:g}.{best if target == last else ''}{read}",
            f"Next: set the target to what you need, then run: zeusrun submit {path}",
        ]
    new = write(guess, objective=objective)
    changed = _replace(path, text, new)
    if not tried.failed and proposal is not None and read_text(path) == new:
        seen = progress.observed.get(0)
        stopped = _rehearse(replace(guess, metric=proposal.metric), path, trained_epochs, seen)
        if stopped is not None:
            return stopped
    typer.echo(plain_text("\n".join([f"{path} {changed}.", *lines])))
    if tried.failed:
        then = "the proposal is from what it had shown before. Correct the cause first"
        typer.echo(f"zeusrun: the run failed: {tried.reason}; {then}", err=True)
        return code
    return ExitCode.REACHED if proposal else ExitCode.TRAINING_FAILED


def _may_be_too_short(tried: Tried) -> bool:
    """Whether a run may have crashed because it was to train for a single epoch."""
    reason, cause = tried.trial.reason or "", tried.trial.cause
    return (
        cause is not None and not tried.ended and not is_permanent(reason, cause, same_choice=False)
    )


def _describe_likely(tried: Tried) -> Iterator[str]:
    """Yield the lines that look most like a result, each with what to write to read it."""
    if names := tried.in_each_step:
        yield f"{', '.join(names[:5])}: printed in every step: no result, but that of one batch."
    elif likely := list_likely(tried.printed):
        yield _LIKELY
        for line, pattern in likely:
            yield f"  {plain_text(line.strip())}"
            quoted = pattern.replace("'", "''")
            yield f"    metrics: {{source: stdout, pattern: '{quoted}'}}"


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


def _rehearse(guess: Guess, path: Path, epochs: int, before: Observed | None) -> int | None:
    """Run a few steps with another batch size, and say whether it arrives.

    ``before``: what rank 0 saw with the default. Returns the exit code if the user has ended it.
    """
    batch, ranks = guess.batch, guess.ranks
    if batch is None:
        return None
    default = batch.default
    halves = default % (2 * ranks) == 0 and default >= 4 * ranks  # one sample may be too few
    other = default // 2 if halves else 2 * default
    typer.echo(f"Rehearsing batch size {other} for a few steps:")
    sizes = f"batch_size.candidates=[{min(default, other)}, {max(default, other)}]"
    rehearsal = [*overrides(guess, epochs), *reveal(guess), sizes, f"timeout_s={TRY_S}"]
    tried = run_shortly(load_spec(path, rehearsal), whole=False, size=other)
    if tried.ended:
        return tried.code
    size = Sight.of(tried.progress).batch_size if tried.progress is not None else None
    if size == other:
        now = tried.progress.observed.get(0) if tried.progress is not None else None
        _compare_steps(path, other, before, now)
    elif tried.failed:
        why = f"with batch size {other}, the run failed: {tried.reason}"
        typer.echo(f"zeusrun: warning: {path}: {why}", err=True)
    elif size is not None:
        why = f"batch size {other} does not arrive: the run trained with {size}"
        typer.echo(f"zeusrun: warning: {path}: {why}", err=True)
    else:
        typer.echo(f"Whether batch size {other} arrives cannot be seen: no loader shows it.")
    return None


def _compare_steps(path: Path, size: int, before: Observed | None, now: Observed | None) -> None:
    """Say that a batch size arrives, and whether the steps of an epoch change with it."""
    steps = None if now is None else now.steps_per_epoch
    usual = None if before is None else before.steps_per_epoch
    if before is None or now is None or steps is None or usual is None:
        typer.echo(f"Batch size {size} arrives in the training.")
        return
    shares = now.samples or 0, before.samples or 0  # of a step
    if abs(steps * shares[0] - usual * shares[1]) <= sum(shares):  # the last batches may differ
        typer.echo(
            f"Batch size {size} arrives in the training: {steps} steps an epoch, not {usual}."
        )
        return
    why = (
        f"batch size {size} arrives, but an epoch has {steps} steps with it and {usual} before, so "
        "an epoch is not the same number of samples for every batch size"
    )
    typer.echo(f"zeusrun: warning: {path}: {why}", err=True)


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

"""``init --try``: one short run of a drafted job, in a home of its own, to see its metrics."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
from zeusrun.launcher.events import Advanced, Noted, Printed, TrialStarts
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import admitted, check_not_ended
from zeusrun.launcher.recurrence import submit
from zeusrun.launcher.redact import mask_job
from zeusrun.launcher.rundir.failure import is_permanent
from zeusrun.metrics.audit import describe_choice, is_alike
from zeusrun.metrics.propose import propose
from zeusrun.metrics.propose_pattern import list_likely, propose_pattern, shows_evaluation
from zeusrun.metrics.rows import Run
from zeusrun.metrics.seen import (
    describe_alone,
    describe_spawned,
    names_an_evaluation,
)
from zeusrun.metrics.sight import Sight
from zeusrun.metrics.stdout import split_states
from zeusrun.plain_text import plain_text
from zeusrun.sidecar.events import REPORT
from zeusrun.trial import TrialStatus
from zeusrun.view.console import lasting_console
from zeusrun.view.live import SubmitView
from zeusrun.view.sheets import metrics_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from zeusrun.jobfile.guess.guess import Guess
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.metrics.progress import Progress
    from zeusrun.metrics.propose import Proposal
    from zeusrun.metrics.propose_pattern import Shape
    from zeusrun.trial import Trial

_MAX_PRINTED_BYTES = 256 << 10
_TRY_S = 120  # if the number of epochs cannot be set
_REHEARSED = 50  # steps, if no loader shows the batch size
_NOTHING_SEEN = (
    "The run produced no metric that zeusrun can see. In the job file, write under 'metrics' where "
    "zeusrun can read them (stdout, csv, jsonl, tensorboard, ...), or call run.report() in the "
    "script: docs/metrics.md"
)
_LIKELY = "These lines look most like a result; metrics.pattern reads a number of them as follows:"


class _Tried(NamedTuple):
    """What a run has shown."""

    trial: Trial
    code: int
    progress: Progress | None
    printed: list[str]  # by rank 0 at the end, in training where its steps are seen; no colours
    ended: bool  # by the user, or by another zeusrun

    @property
    def failed(self) -> bool:
        """Whether it crashed; a run that only lacks the metric has failed, too, but by no cause."""
        crashed = self.trial.status is TrialStatus.FAILED and self.trial.cause is not None
        return crashed or self.trial.status is TrialStatus.OOM

    @property
    def reason(self) -> str:
        """Why it ended, for people."""
        return plain_text(self.trial.reason or "it was stopped")

    def propose(self, likely: str) -> tuple[Proposal | None, Shape | None]:
        """Return a proposal, and the pattern that it needs, if any."""
        seen = {} if self.progress is None else self.progress.seen
        proposal = propose(seen, likely)
        # What is printed once for an evaluation precedes the mean of what is logged in it.
        mean = proposal is not None and seen[proposal.metric, proposal.source].parts > 1
        shape = propose_pattern(self.printed, likely) if mean or proposal is None else None
        if proposal is None or (
            shape is not None and is_alike(proposal.metric, shape.proposal.metric)
        ):
            return (shape.proposal if shape else None), shape
        return proposal, None


def try_job(guess: Guess, path: Path, text: str, write: Callable[..., str]) -> int:
    """Run a drafted job for one epoch, show its metrics, and add a proposal to the file.

    ``text`` is that of the file; ``write`` returns it with another guess and an objective.
    """
    epochs, trained_epochs = guess.max_epochs, 1
    limit = "" if epochs else f", at most {_TRY_S} s"
    typer.echo(f"Running it once: one epoch{limit}. This run is not recorded in the history.")
    tried = _run(load_spec(path, [*_overrides(guess), *reveal(guess)]), whole=epochs is not None)
    proposal, shape = tried.propose(guess.metric)
    if epochs is not None and epochs.value > 1 and proposal is None and _may_be_too_short(tried):
        own = f"{epochs.written} {epochs.value:g}"
        typer.echo(
            f"zeusrun: the run failed: {tried.reason}. zeusrun had set {epochs.written} 1: running "
            f"it with {own}, and stopping it after an epoch, or after {_TRY_S} s",
            err=True,
        )
        trained_epochs = int(epochs.value)
        overrides = [*_overrides(guess, trained_epochs), *reveal(guess)]
        tried = _run(load_spec(path, overrides), whole=False)
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
        lines, objective = [idle + _NOTHING_SEEN, *_describe_likely(printed)], None
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
        stopped = _rehearse(replace(guess, metric=proposal.metric), path, trained_epochs)
        if stopped is not None:
            return stopped
    typer.echo(plain_text("\n".join([f"{path} {changed}.", *lines])))
    if tried.failed:
        then = "the proposal is from what it had shown before. Correct the cause first"
        typer.echo(f"zeusrun: the run failed: {tried.reason}; {then}", err=True)
        return code
    return ExitCode.REACHED if proposal else ExitCode.TRAINING_FAILED


def _may_be_too_short(tried: _Tried) -> bool:
    """Whether a run may have crashed because it was to train for a single epoch."""
    reason, cause = tried.trial.reason or "", tried.trial.cause
    return (
        cause is not None and not tried.ended and not is_permanent(reason, cause, same_choice=False)
    )


def _describe_likely(printed: Sequence[str]) -> Iterator[str]:
    """Yield the lines that look most like a result, each with what to write to read it."""
    if likely := list_likely(printed):
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


def _rehearse(guess: Guess, path: Path, epochs: int) -> int | None:
    """Run a few steps with another batch size, and say whether it arrives.

    Returns the exit code if the user has ended it.
    """
    batch, ranks = guess.batch, guess.ranks
    if batch is None:
        return None
    default = batch.default
    halves = default % (2 * ranks) == 0 and default >= 4 * ranks  # one sample may be too few
    other = default // 2 if halves else 2 * default
    typer.echo(f"Rehearsing batch size {other} for a few steps:")
    sizes = f"batch_size.candidates=[{min(default, other)}, {max(default, other)}]"
    overrides = [*_overrides(guess, epochs), *reveal(guess), sizes, f"timeout_s={_TRY_S}"]
    tried = _run(load_spec(path, overrides), whole=False, size=other)
    if tried.ended:
        return tried.code
    size = Sight.of(tried.progress).batch_size if tried.progress is not None else None
    if size == other:
        typer.echo(f"Batch size {other} arrives in the training.")
    elif tried.failed:
        why = f"with batch size {other}, the run failed: {tried.reason}"
        typer.echo(f"zeusrun: warning: {path}: {why}", err=True)
    elif size is not None:
        why = f"batch size {other} does not arrive: the run trained with {size}"
        typer.echo(f"zeusrun: warning: {path}: {why}", err=True)
    else:
        typer.echo(f"Whether batch size {other} arrives cannot be seen: no loader shows it.")
    return None


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


def _overrides(guess: Guess, epochs: int = 1) -> list[str]:
    """Return what makes one short run of the job, whatever its metrics are."""
    size = guess.ranks if guess.batch is None else guess.batch.default
    return [
        f"objective.metric={guess.metric}",
        "objective.target=0",
        "objective.on_target=continue",
        "objective.missing_metric=continue",
        f"objective.max_epochs={epochs}",
        f"batch_size.default={size}",
        f"batch_size.candidates=[{size}]",
        "policy.name=fixed",
        "attempts=1",
        "early_stop.cost_factor=null",
        "power_limit.mode=observe",
        "stall.action=off",
        *([] if guess.max_epochs and epochs == 1 else [f"timeout_s={_TRY_S}"]),
    ]


class _Watch:
    """Follows a run: where in its log training begins, and when an epoch has been evaluated."""

    def __init__(self) -> None:
        self.log: Path | None = None
        self._untrained = self._bytes = 0  # of the log, printed before the first step
        self._looks = self._before = 0
        self._at_step: int | None = None  # when the first evaluation after training was seen
        self._trained = False

    def take_lines(self, lines: Iterable[str]) -> None:
        """Take in what rank 0 printed."""
        self._looks += sum(map(shows_evaluation, lines))

    def read_printed(self) -> list[str]:
        """Return what rank 0 printed in training, at the end; all of it where no step was seen."""
        if self.log is None:
            return []
        tail, printed = LineTail(self.log), list[str]()
        since = self._untrained - 1 if self._trained and self._untrained else 0
        tail.skip_backlog(min(_MAX_PRINTED_BYTES, _size(self.log) - since))
        with contextlib.suppress(OSError):
            while lines := tail.read_lines(final=True):
                printed += (state for line in lines for state in split_states(line))
        return [line for line, _ in itertools.groupby(printed)]  # twice in a row is one look

    def take(self, progress: Progress) -> bool:
        """Take in how far the run is; return whether it trains on after an evaluation."""
        looks = self._looks + sum(
            seen.times
            for (name, source), seen in progress.seen.items()
            if source == REPORT or names_an_evaluation({name: 0.0})
        )
        if progress.steps is None and self.log is not None:
            # The step clock is read before the log, so the look before this one is certain.
            self._untrained, self._bytes = self._bytes, _size(self.log)
        if not self._trained:
            self._trained, self._before = progress.steps is not None, looks
        elif self._at_step is None and looks > self._before:
            self._at_step = progress.steps
        return self._at_step is not None and (progress.steps or 0) > self._at_step


def _run(spec: JobSpec, *, whole: bool, size: int | None = None) -> _Tried:
    """Run the job once; the user's home lends the GPUs and records nothing.

    Unless it is to run as a ``whole``, it is stopped when it trains on after an evaluation; with a
    ``size`` for its batches, as soon as that is known.
    """
    home, history = open_home()
    progress, watch, stopped = None, _Watch(), False
    with (
        CaughtSignals() as signals,
        SubmitView(lasting_console(sys.stdout), quiet=False) as view,
        tempfile.TemporaryDirectory(prefix="zeusrun-try-", ignore_cleanup_errors=True) as folder,
    ):

        def consume(event: SubmitEvent) -> None:
            nonlocal progress, stopped
            if isinstance(event, TrialStarts):
                watch.log = Run(Path(event.trial.run_dir), scratch).log(0)
            elif isinstance(event, Advanced):
                progress = event.progress
                enough = watch.take(progress)
                if size is not None:
                    enough |= bool(progress.observed) or (progress.steps or 0) >= _REHEARSED
                if enough and not (whole or stopped or signals.received):
                    stopped = True
                    what = "it has evaluated an epoch" if size is None else "enough steps are made"
                    view.show(Noted(f"stopping: {what}"))
                    signals.received.append(signal.SIGINT)  # as if the user pressed Ctrl-C
            elif isinstance(event, Printed):  # warnings would be about the overrides
                view.show(event)
                if event.rank == 0:
                    watch.take_lines(event.lines)

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
            submission = compose(spec, size, gpus, place=(scratch, open_history(scratch, {})))
            environment = {**submission.environment, "ZEUSRUN_HOME": folder}
            submission = replace(submission, environment=environment)
            with contextlib.closing(submission):
                check_not_ended(spec.name, signals.received)
                result = submit(submission, consume)
            mask = mask_job(spec, {})
            printed = [line for line in watch.read_printed() if mask.text(line) == line]
    code = result.exit_code
    ended = not stopped and (code == ExitCode.BUSY or code >= ExitCode.SIGNAL_BASE)
    return _Tried(result.trials[-1], code, progress, printed, ended)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0

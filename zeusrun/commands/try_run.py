"""``init --try``: one short run of a drafted job, to see its metrics, and a rehearsal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from zeusrun.commands.options import console, tell
from zeusrun.commands.short_run import START_S, TRY_S, overrides, run_shortly
from zeusrun.errors import ExitCode, UsageError
from zeusrun.files.private import replace_file
from zeusrun.jobfile.guess.guess import Batch, correct_batch
from zeusrun.jobfile.guess.script import read_text
from zeusrun.jobfile.spec import load_spec
from zeusrun.metrics.progress import TrainingSummary
from zeusrun.metrics.propose import describe_choice, propose_target
from zeusrun.metrics.propose_pattern import list_likely
from zeusrun.metrics.seen import (
    describe_alone,
    describe_spawned,
    names_training,
)
from zeusrun.plain_text import plain_text
from zeusrun.view.sheets import metrics_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zeusrun.commands.short_run import Tried
    from zeusrun.jobfile.guess.guess import Guess
    from zeusrun.metrics.progress import Progress
    from zeusrun.metrics.propose import Proposal
    from zeusrun.metrics.propose_pattern import Shape

_REHEARSED = 50  # steps, if no loader shows the batch size
_NOTHING_SEEN = (
    "The run produced no metric that zeusrun can see. In the job file, write under 'metrics' where "
    "zeusrun can read them (stdout, csv, jsonl), or call run.report() in the "
    "script: docs/metrics.md"
)
_NOT_ARRIVED = (
    "Next: this is no finished job, because every batch size but one would teach nothing. Correct "
    "'batch_size' and 'args' in {path}: the script must train with what it gets (docs/hooks.md)"
)
_NO_BATCH_SIZE = (
    "Next: set the target to what you need. This is no finished job, because zeusrun has found no "
    "batch size to choose: no option for it, and no data loader that feeds the steps of all ranks. "
    "Write the batch size under 'batch_size' in {path}, and let the script train with it "
    "(docs/hooks.md). If the script trains on all of its data at once, there is none to choose "
    "(but a power limit on a GPU): write the number of samples as default and only candidate"
)
_LIKELY = "These lines look most like a result; metrics.pattern reads a number of them as follows:"


def try_job(guess: Guess, path: Path, text: str, write: Callable[..., str]) -> int:
    """Run a drafted job for one epoch, show its metrics, and add a proposal to the file.

    ``text`` is that of the file; ``write`` returns it with another guess and an objective.
    """
    tried = _run(guess, path)
    proposal, shape = tried.propose(guess)
    progress = tried.progress
    sight = TrainingSummary.of(progress)
    _show(sight, tried, path)
    if tried.ended or (tried.failed and proposal is None):
        what, first = ("ended", "D") if tried.ended else ("failed", "Correct the cause, d")
        then = f"{path} stays as it is. {first}elete the file, and run the same command again"
        tell(f"the run {what}: {tried.reason}; {then}")
        return tried.code
    guess = replace(
        guess,
        pattern=None if shape is None else shape.pattern,
        seen_epochs=tried.all_epochs,
    )
    guess = _check_batch(guess, path, sight, progress)
    objective, lines = _describe(tried, proposal, shape, path)
    if proposal is not None:
        guess = replace(guess, metric=proposal.metric)
    new = write(guess, objective=objective)
    changed, arrives = _replace(path, text, new), True
    if not tried.failed and proposal is not None and read_text(path) == new:
        code, arrives = _rehearse(guess, path)
        if code is not None:
            return code
        if not arrives:
            lines[-1] = _NOT_ARRIVED.format(path=path)
    if objective is not None and guess.batch is None:
        arrives, lines[-1] = False, _NO_BATCH_SIZE.format(path=path)
    typer.echo(plain_text("\n".join([f"{path} {changed}.", *lines])))
    if tried.failed:
        then = "the proposal is from what it had shown before. Correct the cause first"
        tell(f"the run failed: {tried.reason}; {then}")
        return tried.code
    return ExitCode.REACHED if objective and arrives else ExitCode.TRAINING_FAILED


def _show(sight: TrainingSummary, tried: Tried, path: Path) -> None:
    """Show the metrics of a run, and warn of processes that the script starts itself."""
    if sight.metrics:
        shown = console()
        shown.print(metrics_table(sight, tried.trial.metric, shown.width))
    spawned = tried.progress.ranks.spawned.values()
    if (started := describe_spawned(spawned)) is not None:
        tell(f"warning: {path}: {started}")


def _run(guess: Guess, path: Path) -> Tried:
    """Run the job for a single epoch, or as it is where no option sets their number."""
    epochs = guess.max_epochs
    how = f"until it trains on after an evaluation, or has trained for {TRY_S} s"
    if epochs is not None:
        how = f"one epoch ({epochs.written} 1)"
    typer.echo(f"Running it once: {how}. This run is not recorded in the history.")
    spec = load_spec(path, overrides(guess))
    tried = run_shortly(spec, whole=epochs is not None)
    return tried._replace(is_part=epochs is not None and epochs.value != 1)


def _describe(
    tried: Tried, proposal: Proposal | None, shape: Shape | None, path: Path
) -> tuple[tuple[str, str, float, str] | None, list[str]]:
    """Return the objective for the job file, if it is known, and the lines for people."""
    if proposal is None:
        nothing = " ".join(filter(None, [tried.idle, _NOTHING_SEEN]))
        return None, [nothing, *_describe_likely(tried)]
    chosen = [*describe_choice(proposal, tried.progress.seen)]
    if proposal.mode is None:
        return None, [*chosen, _ask_for_mode(proposal, path)]
    objective, proposed = _describe_proposal(proposal, shape, proposal.mode, whole=tried.is_whole)
    return objective, [
        *chosen,
        proposed,
        f"Next: set the target to what you need, then run: zeusrun submit {path}",
    ]


def _describe_proposal(
    proposal: Proposal, shape: Shape | None, mode: str, *, whole: bool
) -> tuple[tuple[str, str, float, str], str]:
    """Return the objective for the job file, and the proposal for people.

    ``whole``: the training has run to its own end, so that it reaches no more than that.
    """
    metric, source, _, target, last = proposal
    better = "at most" if mode == "min" else "at least"
    remarks = []
    if whole:
        target = propose_target(last, mode, better=False)
        remarks.append("The whole training has run: this is what it reached. Another may miss it.")
    if names_training(metric):
        remarks.append("It is of the training: zeusrun has seen no better metric.")
    if shape is not None:
        remarks.append(f"It is read from lines such as: {plain_text(shape.line.strip())}")
    origin = f"it was {last:.6g} in the run of --try; source: {source}"
    proposed = " ".join([f"Proposed: {metric} {better} {target:g}.", *remarks])
    return (metric, mode, target, origin), proposed


def _ask_for_mode(proposal: Proposal, path: Path) -> str:
    return (
        f"Next: under 'objective' in {path}, write whether {proposal.metric} is better when it is "
        f"low (mode: min) or high (mode: max), and a target; it was {proposal.last:.6g}. Then run: "
        f"zeusrun submit {path}"
    )


def _describe_likely(tried: Tried) -> Iterator[str]:
    """Yield the lines that look most like a result, each with what to write to read it."""
    if likely := list_likely(tried.printed):
        yield _LIKELY
        for line, pattern in likely:
            yield f"  {plain_text(line.strip())}"
            quoted = pattern.replace("'", "''")
            yield f"    metrics: {{source: stdout, pattern: '{quoted}'}}"


def _check_batch(guess: Guess, path: Path, sight: TrainingSummary, progress: Progress) -> Guess:
    """Return the guess with the batch size that the run trained with; warn if it was another."""
    size, batch = sight.batch_size, guess.batch
    if (alone := describe_alone(progress.observed)) is not None:
        tell(f"warning: {path}: {alone}")
    elif batch is None and size and size % guess.ranks == 0:
        return replace(guess, batch=Batch(size, "the run of --try", by_hook=True))
    elif batch is not None and size == batch.default:
        return replace(guess, batch=replace(batch, why=f"{batch.why}; checked by --try"))
    elif batch is not None and size:
        corrected = correct_batch(guess, size)
        then = "'batch_size' and 'args' are corrected"
        if corrected is None:
            then = "correct 'batch_size' and 'args'"
        wrong = f"the run trained with a batch size of {size}, not with {batch.default}"
        tell(f"warning: {path}: {wrong}; {then}")
        return corrected or guess
    return guess


def _shows_batch_size(progress: Progress) -> bool:
    return bool(progress.observed) or (progress.steps or 0) >= _REHEARSED


def _rehearse(guess: Guess, path: Path) -> tuple[int | None, bool]:
    """Run a few steps with another batch size, and say whether it arrives.

    Returns the exit code if the user has ended it, and whether nothing speaks against that it
    arrives.
    """
    batch = guess.batch
    if batch is None:
        return None, True
    ranks, default = guess.ranks, batch.default
    halves = default % (2 * ranks) == 0 and default >= 4 * ranks  # one sample may be too few
    other = default // 2 if halves else 2 * default
    typer.echo(f"Rehearsing batch size {other} for a few steps:")
    sizes = f"batch_size.candidates=[{min(default, other)}, {max(default, other)}]"
    rehearsal = [*overrides(guess), sizes, f"timeout_s={START_S + TRY_S}"]
    tried = run_shortly(load_spec(path, rehearsal), size=other, is_enough=_shows_batch_size)
    if tried.ended:
        return tried.code, True
    size = TrainingSummary.of(tried.progress).batch_size
    if size == other:
        typer.echo(f"Batch size {size} arrives in the training.")
    elif tried.failed:
        tell(f"warning: {path}: with batch size {other}, the run failed: {tried.reason}")
    elif size is not None:
        why = f"batch size {other} does not arrive: the run trained with {size}"
        tell(f"warning: {path}: {why}")
        return None, False
    else:
        why = tried.idle or "No loader shows it."
        typer.echo(f"Whether batch size {other} arrives cannot be seen. {why}")
    return None, True


def _replace(path: Path, text: str, new: str) -> str:
    """Replace the file's text, unless somebody has edited it; return what happened to it."""
    if read_text(path) != text:
        return "was edited meanwhile, so init has not changed it"
    if new == text:
        return "stays as it is"
    try:
        mode = path.stat().st_mode
        replace_file(path, new.encode())
        path.chmod(mode)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}; it stays as it is"
        raise UsageError(why) from error
    return "is updated with what the run has shown"

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

from zeusrun.commands.options import console, open_home
from zeusrun.commands.submit import compose
from zeusrun.errors import ExitCode
from zeusrun.history.registry import open_history
from zeusrun.jobfile.guess.guess import add_observed
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.events import Printed
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import admitted, check_not_ended
from zeusrun.launcher.recurrence import submit
from zeusrun.metrics.base import open_sidecar
from zeusrun.metrics.propose import propose
from zeusrun.metrics.seen import Seen, find_batch_size
from zeusrun.plain_text import plain_text
from zeusrun.sidecar.events import REPORT, Observed, Reported
from zeusrun.trial import TrialStatus
from zeusrun.view.console import lasting_console, plain_table
from zeusrun.view.live import SubmitView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.jobfile.guess.draft_file import DraftFile
    from zeusrun.jobfile.guess.guess import Guess
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.metrics.propose import Proposal
    from zeusrun.sidecar.events import Event
    from zeusrun.trial import Trial

_TRY_S = 120  # if the number of epochs cannot be set
_NOTHING_SEEN = (
    "The run reported no metric that zeusrun can see by itself. Name where it writes them under "
    "'metrics' in the job file (stdout, csv, jsonl, tensorboard, ...), or call run.report() in the "
    "script: docs/metrics.md"
)


def try_job(draft: DraftFile) -> int:
    """Run a drafted job for one epoch, show its metrics, and add a proposal to the file."""
    guess, path = draft.guess, draft.path
    spec = load_spec(path, _overrides(guess))
    limit = "" if guess.max_epochs else f", at most {_TRY_S} s"
    typer.echo(f"Trying it: one epoch{limit}; this is no run of the job, and is not recorded.")
    trial, code, events = _run(spec)
    seen = see(events)
    observed = {event.rank: event for event in events if isinstance(event, Observed)}
    size = find_batch_size(observed, trial.world_size)
    if seen:
        _show(seen)
    if code == ExitCode.BUSY or code >= ExitCode.SIGNAL_BASE or has_crashed(trial):
        reason = plain_text(trial.reason or "it was stopped")
        typer.echo(f"zeusrun: the run did not end well: {reason}; {path} stays as it is", err=True)
        return code
    if guess.batch is not None and size not in {None, guess.batch.default}:
        text = f"the run trained with a batch size of {size}, not with {guess.batch.default}"
        typer.echo(f"zeusrun: warning: {path}: {text}; correct 'batch_size' and 'args'", err=True)
    rates = {rate for event in observed.values() for rate in event.learning_rates}
    _improve(draft, add_observed(guess, size, rates), propose(seen))
    return ExitCode.REACHED


def has_crashed(trial: Trial) -> bool:
    """Whether a run ended by an error; one that only reports nothing has failed, too."""
    failed = trial.status is TrialStatus.FAILED and trial.cause is not None
    return failed or trial.status is TrialStatus.OOM


def see(events: Iterable[Event]) -> dict[tuple[str, str], Seen]:
    """Return what was reported, by name and source."""
    seen: dict[tuple[str, str], Seen] = {}
    for event in events:
        if isinstance(event, Reported):
            for name, value in event.metrics.items():
                before = seen.get((name, event.source), Seen(value, value, 0))
                seen[name, event.source] = Seen(before.first, value, before.times + 1)
    return seen


def _overrides(guess: Guess) -> list[str]:
    """Return what makes one short run of the job, whatever its metrics are."""
    size = guess.ranks if guess.batch is None else guess.batch.default
    return [
        f"objective.metric={guess.metric[0]}",
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


def _run(spec: JobSpec) -> tuple[Trial, int, list[Event]]:
    """Run the job once; the user's home lends the GPUs and records nothing."""
    home, history = open_home()
    with (
        CaughtSignals() as signals,
        SubmitView(lasting_console(sys.stdout), quiet=False) as view,
        tempfile.TemporaryDirectory(prefix="zeusrun-try-", ignore_cleanup_errors=True) as folder,
    ):

        def consume(event: SubmitEvent) -> None:
            if isinstance(event, Printed):  # warnings would be about the overrides
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
        trial = result.trials[-1]
        events = open_sidecar(Path(trial.run_dir)).read(final=True)
    return trial, result.exit_code, events


def _show(seen: Mapping[tuple[str, str], Seen]) -> None:
    table = plain_table()
    for column in ("metric", "by", "first", "last"):
        table.add_column(column)
    for (name, source), values in seen.items():
        table.add_row(name, source, f"{values.first:.6g}", f"{values.last:.6g}")
    console().print(table)


def _improve(draft: DraftFile, guess: Guess, proposal: Proposal | None) -> None:
    objective = None
    if proposal is not None:
        who = "the script" if proposal.source == REPORT else proposal.source
        origin = f"guessed: {who} reported {proposal.last:.6g} at the end of the try"
        objective = (proposal.metric, proposal.mode, proposal.target, origin)
    written = draft.improve(guess, objective)
    lines = [] if written else [f"{draft.path} was changed meanwhile, so it stays as it is."]
    if proposal is None:
        lines.append(_NOTHING_SEEN)
    else:
        better = "at most" if proposal.mode == "min" else "at least"
        lines.append(f"Proposed: {proposal.metric} {better} {proposal.target:g}.")
        lines.append(
            f"Next: raise the target to what you need, then run: zeusrun submit {draft.path}"
        )
    typer.echo("\n".join(lines))

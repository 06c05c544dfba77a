"""The output of a running submit: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from zeusrun.launcher import events
from zeusrun.launcher.rundir.layout import has_checkpoint
from zeusrun.plain_text import plain_log_line
from zeusrun.trial import TrialStatus, counts_from_zero, rank_label
from zeusrun.view import units
from zeusrun.view.console import STATUS_STYLES, Labelled, trial_head, warning_lines
from zeusrun.view.units import gradients_text, limit_text, path_text, target_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType
    from typing_extensions import Self

    from zeusrun.analysis.usual import Usual
    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial

_REFRESH_PERIOD_S = 0.25
_LONG_S = 20.0  # of start-up, after which a log says what it waits for
_RANK_STYLES = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta")


class SubmitView:
    """Shows one submit on a console. A context manager: it removes the panel at the end."""

    def __init__(self, console: Console, *, quiet: bool, kept: bool = True) -> None:
        """Prepare; ``kept``: the files of the run outlive this machine."""
        self._console = console
        self._quiet, self._kept = quiet, kept
        self._run: events.TrialStarts | None = None
        self._start_shown = False
        self._epochs_shown = 0
        self._warned: set[str] = set()
        self._next_refresh_t = 0.0
        live = console.is_terminal and not quiet
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_live()

    def show(self, event: SubmitEvent) -> None:
        """Show an event of the submit; when quiet, only warnings and trials that end badly."""
        match event:
            case events.Warned(text):
                self._warned.add(text)
                self._print(warning_lines([text]))
            case events.BoundChanged(cost_bound_j) if self._run is not None:
                self._run = replace(self._run, cost_bound_j=cost_bound_j)
            case events.TrialEnded(trial, replaced):
                self._show_end(trial, replaced=replaced)
            case events.Noted(text, needed) if needed or not self._quiet:
                self._print(Labelled([(Text("·", style="dim"), Text(text, style="dim"))], gap=1))
            case _ if self._quiet:
                pass
            case events.TrialStarts(trial):
                self._run, self._epochs_shown, self._start_shown = event, 0, False
                self._print(trial_head(trial))
                if self._live is not None:
                    self._live.start()
            case events.Printed(rank, lines):
                self._show_output(rank, lines)
            case events.Advanced(progress) if self._run is not None:
                self._show_progress(self._run, progress)

    def _show_end(self, trial: Trial, *, replaced: bool) -> None:
        self._stop_live()
        for warning in trial.warnings:
            if warning not in self._warned:
                self.show(events.Warned(warning))
        if not self._quiet or not (replaced or trial.status is TrialStatus.REACHED):
            saved = has_checkpoint(Path(trial.run_dir)) if self._kept else None
            self._print(summary(trial, replaced=replaced, saved=saved))

    def _show_output(self, rank: int, lines: Sequence[str]) -> None:
        style = _RANK_STYLES[rank % len(_RANK_STYLES)]
        label = rank_label(() if self._run is None else self._run.trial.hosts, rank)
        for line in lines:
            plain = line.removeprefix(f"[rank{rank}]: ")  # torch adds this prefix to tracebacks
            whole = Text.assemble((f"[{label}] ", style), Text.from_ansi(plain_log_line(plain)))
            whole.no_wrap, whole.overflow = True, "ignore"  # keep the lines of a traceback
            self._print(whole)

    def _show_progress(self, run: events.TrialStarts, progress: Progress) -> None:
        if progress.may_be_baseline:  # if so, nothing of the energy so far is of training
            progress = replace(progress, energy_j=None)
        if self._live is None:
            shown = len(progress.by_samples) or progress.epochs
            if shown != self._epochs_shown and not progress.may_be_baseline:
                self._epochs_shown = shown
                self._print(epoch_line(run.trial, progress, run.cost_bound_j))
            elif not self._start_shown and _starting_s(progress) > _LONG_S:
                self._start_shown = True
                text = f"  start-up: {starting_text(run, progress)}"
                self._print(Text(text, style="dim"))
        elif time.monotonic() >= self._next_refresh_t:
            self._next_refresh_t = time.monotonic() + _REFRESH_PERIOD_S
            self._live.update(live_panel(run, progress, self._console.width), refresh=True)

    def _stop_live(self) -> None:
        if self._live is not None and self._live.is_started:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def _print(self, text: RenderableType) -> None:
        # Without a terminal, do not break the lines of a log.
        self._console.print(text, soft_wrap=not self._console.is_terminal, highlight=False)


def epoch_line(trial: Trial, progress: Progress, bound_j: float | None) -> Text:
    """Return one plain line about the epoch that has just ended."""
    samples = _samples(trial, progress)
    reports = progress.by_reports
    done = f"report {progress.epochs}" if reports else f"epoch {progress.epochs}/{trial.max_epochs}"
    parts = [
        done if samples is None else f"{samples:,} samples",
        f"{trial.metric} {units.number(progress.last_value, '.4g')} (target {trial.target:g})",
        units.duration(_with_earlier(trial.time_s, progress.time_s, trial, progress)),
        # 0: too little to measure yet
        units.electricity(
            _with_earlier(trial.energy_j, progress.energy_j, trial, progress) or None
        ),
    ]
    if progress.reached and progress.curve[-1].time_s > progress.reached.time_s:
        parts.append("both to the target")
    ended = [each.batch_size for each in progress.batch_sizes if each.epoch <= progress.epochs]
    if ended:  # the next epoch may have another batch size already
        parts.append(f"batch size {ended[-1]}")
    if progress.world_sizes:
        parts.append(units.plural(progress.ranks.world_size, "rank"))
    if bound_j is not None:
        parts.append(_cost(trial, progress, bound_j))
    return Text("  " + " · ".join(parts), style="dim")


def live_panel(run: events.TrialStarts, progress: Progress, width: int) -> RenderableType:
    """Return the panel below the output of the ranks; its number of lines is constant."""
    trial, usual, bound_j = run.trial, run.usual, run.cost_bound_j
    label = Column(style="dim", no_wrap=True, min_width=10)
    grid = Table.grid(label, Column(no_wrap=True), padding=(0, 2))
    if progress.training_t is None or progress.awaits_step:
        grid.add_row("start-up", starting_text(run, progress))
    elif (samples := _samples(trial, progress)) is not None:
        grid.add_row("samples", f"{units.count(samples)}  {_remaining(trial, progress, usual)}")
    elif progress.by_reports:
        grid.add_row("reports", f"{progress.epochs}  {_remaining(trial, progress, usual)}")
    else:
        bar = ProgressBar(
            trial.max_epochs,
            progress.epochs,
            max(10, min(30, width - 52)),
            complete_style="cyan",
            finished_style="cyan",
        )
        line = Table.grid(*(Column(no_wrap=True) for _ in range(3)), padding=(0, 2))
        left = _remaining(trial, progress, usual)
        line.add_row(bar, f"{progress.epochs}/{trial.max_epochs}", left)
        grid.add_row("epoch", line)
    value = f"{units.number(progress.last_value, '.4g')}  {target_text(trial)}"
    if progress.best_value is not None:
        value += f"  best {progress.best_value:.4g}"
    grid.add_row(Text(units.shortened(trial.metric)), value)
    power = units.power(progress.power_w)
    price = "" if progress.price is None else f"{units.money(progress.price, progress.currency)} · "
    energy_j = _with_earlier(trial.energy_j, progress.energy_j, trial, progress)
    energy = f"{units.electricity(energy_j)} · {price}{_cost(trial, progress, bound_j)}"
    if trial.gpu_count:
        grid.add_row("power", power + _limit(trial, progress))
        grid.add_row("energy", energy)
    else:
        grid.add_row("energy", f"{power} · {energy}")
    for name, changes in (("batch size", progress.batch_sizes), ("ranks", progress.world_sizes)):
        if changes:
            grid.add_row(name, path_text(changes, last=3))
    if (gradients := gradients_text(progress)) is not None:
        grid.add_row("gradients", gradients)
    return Group(Text(""), grid)


def summary(trial: Trial, *, replaced: bool = False, saved: bool | None = True) -> RenderableType:
    """Return the outcome, the cost, and the command that shows more.

    ``replaced``: a speed check ended it in favour of another one. ``saved``: it has a checkpoint;
    ``None``: that is lost with this pod.
    """
    reached = trial.status is TrialStatus.REACHED
    style = STATUS_STYLES[trial.status]
    mark = "✓" if reached else "·" if replaced else "✗"
    status = (f" {trial.status.value}", style)
    head = Text.assemble((trial.trial, "bold"), status, f"  {trial.reason}")
    took = f"  batch size {path_text(trial.batch_sizes, last=3) or trial.global_batch_size} · "
    if trial.by_samples:
        took += f"{units.count(trial.samples)} samples"
    else:
        what = "report" if trial.by_reports else "epoch"
        took += units.plural(trial.epochs, what) if trial.epochs else "no epoch"
    if trial.world_sizes:
        took += f" · {units.ranks_text(trial)}"
    if trial.time_s is not None:
        took += f" · {units.duration(trial.time_s)}"
    if trial.startup_s is not None:
        took += f" after {units.duration(trial.startup_s)} of start-up"
    lines: list[RenderableType] = [Labelled([(Text(mark, style), head)], gap=1), Text(took)]
    if trial.energy_j is not None:
        source = f" {trial.energy_source.value}" if trial.energy_source else ""
        spent = units.spent(trial)
        between = "\n  " if spent else " · "  # there is no room for everything in 80 columns
        parts = " · ".join([f"  {units.electricity(trial.energy_j)}{source}", *spent]) + between
        limit = f" · limit {limit_text(trial)}" if trial.power_limit_w else ""
        cost = f"cost {units.energy(trial.cost_j)} (eta_knob {trial.eta_knob:g}){limit}"
        lines.append(Text(parts + cost))
    gradients = gradients_text(trial)
    if gradients is not None:
        lines.append(Text(f"  {gradients}"))
    if trial.status is TrialStatus.PREEMPTED and saved is not None:
        then = "goes on with it" if saved else "runs it again from its beginning"
        who = "next submit" if trial.allocation is None else "next start"
        lines.append(Text(f"  the {who} {then}", style="dim"))
    elif not reached:
        lines.append(Text(f"  more: zeusrun show {trial.trial}", style="dim"))
    return Group(*lines)


def _cost(trial: Trial, progress: Progress, bound_j: float | None) -> str:
    none = bound_j is None or progress.reached is not None  # after the target, nothing stops it
    bound = "" if none else f" of at most {units.energy(bound_j)}"
    waits = progress.training_t is None
    return f"cost {units.energy(trial.cost_j if waits else progress.cost_j)}{bound}"


def _with_earlier(
    before: float | None, now: float | None, trial: Trial, progress: Progress
) -> float | None:
    """Return an amount of all parts of a trial; price and cost also count earlier ones.

    ``None`` if it is unknown for a part. A part that has not begun to train counts nothing.
    """
    if trial.time_s is None:
        return now
    if progress.training_t is None:
        return before
    return None if before is None or now is None else before + now


def _samples(trial: Trial, progress: Progress) -> int | None:
    """Return the samples of all parts of a run; ``None`` unless it reports within epochs."""
    if not (trial.by_samples or progress.by_samples):
        return None
    return (trial.samples or 0) + (progress.samples or 0)


def _limit(trial: Trial, progress: Progress) -> str:
    """Return the limit in force, such as `` · limit 150 W a GPU, being tried``."""
    if progress.power_limit_w is None:
        return " · original limit"
    each = " a GPU" if trial.gpu_count > 1 else ""
    tried = ", being tried" if progress.probing else ""
    return f" · limit {units.power(progress.power_limit_w)}{each}{tried}"


def starting_text(run: events.TrialStarts, progress: Progress) -> str:
    """Return what start-up waits for, how long it has taken, and by past runs how long still."""
    begun = sum(rank in progress.ranks.started for rank in progress.ranks)
    count = progress.ranks.world_size
    if not run.instrumented:
        waits = "waits for the script's first report"
    elif not begun:
        waits = "waits for torchrun to import torch and start the ranks"
    elif begun < count:
        waits = f"waits for the ranks, {begun} of {count} have begun"
    elif not progress.loading:  # a script without a data loader may be training already
        waits = "waits for imports, set-up or a report"
    else:
        waits = "waits for first batch, step or report"
    so_far_s, usual_s = _starting_s(progress), run.usual.startup_s
    text = f"{waits} · {units.duration(so_far_s)}"
    if usual_s is None:
        return text
    left_s = usual_s - so_far_s
    if left_s > 0:
        return f"{text}, about {units.duration(left_s)} left"
    return f"{text}, usually {units.duration(usual_s)}"


def _starting_s(progress: Progress) -> float:
    """Return the seconds of start-up so far; 0 once the training has begun."""
    begun = progress.training_t is not None and not progress.awaits_step
    return 0.0 if begun else progress.now_t - progress.launched_t


def _remaining(trial: Trial, progress: Progress, usual: Usual) -> str:
    so_far = units.duration(_with_earlier(trial.time_s, progress.time_s, trial, progress))
    if progress.reached is not None or progress.ending:
        return f"{so_far}, finishing"
    left = estimate_remaining(trial, progress, usual)
    if left is None:
        return so_far
    how = "at most" if left.at_most else "about"
    return f"{so_far}, {how} {units.duration(left.seconds)} left"


class Remaining(NamedTuple):
    """How many seconds are left of a trial; ``at_most``: no past run tells more."""

    seconds: float
    at_most: bool


def estimate_remaining(trial: Trial, progress: Progress, usual: Usual) -> Remaining | None:
    """Return what is left of a trial; ``None`` while nothing shows it."""
    epoch_s = _epoch_s(progress)
    unknown = progress.by_reports or bool(trial.by_samples or progress.by_samples)
    if epoch_s is None or progress.time_s is None or unknown:
        return None
    goal, at_most = float(trial.max_epochs), True
    if usual.epochs is not None and usual.epochs > progress.epochs:
        goal, at_most = usual.epochs, False
    left_s = epoch_s * (goal - progress.epochs) - (progress.time_s - progress.curve[-1].time_s)
    return Remaining(max(0.0, left_s), at_most)


def _epoch_s(progress: Progress) -> float | None:
    """Return the seconds of an epoch in this run; ``None`` while nothing shows them."""
    if not progress.curve:
        return None
    first, last = progress.curve[0], progress.curve[-1]
    kept = progress.earlier[: bisect_left(progress.earlier, first.epoch)]  # before a preemption
    done = progress.epochs - (kept[-1] + counts_from_zero(kept[:3]) if kept else 0)
    if done <= 0:
        return None
    if progress.steps is None:  # then the time before the first report includes start-up
        epochs = last.epoch - first.epoch
        return (last.time_s - first.time_s) / epochs if epochs > 0 else None
    return last.time_s / done if progress.step_times_s else None  # one step shows no duration

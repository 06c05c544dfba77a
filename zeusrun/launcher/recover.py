"""Trials that did not end in one piece: those of dead launchers, and preempted ones."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.cost import cost_j
from zeusrun.errors import BusyError, HistoryError
from zeusrun.history.registry import shared_of
from zeusrun.history.rules import has_expired
from zeusrun.launcher.processes.control_group import end_group
from zeusrun.launcher.processes.descendants import end_run
from zeusrun.launcher.rundir.failure import LAUNCHER_DIED
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.place import find_own
from zeusrun.launcher.rundir.record import read_live, read_outcome, write_record
from zeusrun.metrics.advance import advance
from zeusrun.metrics.progress import Progress, take_step_clock
from zeusrun.metrics.sidecar import SidecarReader
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import (
    CurvePoint,
    EnergySource,
    Interruption,
    Outcome,
    Trial,
    TrialStatus,
    is_baseline,
    join_changes,
    thin_curve,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.rundir.layout import RunPaths

_Amount = TypeVar("_Amount", int, float)
CANCELLED_LATER = "cancelled by 'zeusrun cancel' after it was preempted"
_MOST_EXPIRED = 100  # of the newest trials are checked for a lost one that ended here
_STRANGE = "its run directory is not where zeusrun keeps its runs; nothing there was touched"


def recover_lost(history: History, job: str, finished_at: str, home: Path) -> list[Trial]:
    """Finish the dispatched trials whose launcher is dead, and end their processes.

    If the launcher had written an outcome into the run directory, record it. Any other trial is
    ``LOST``, with the epochs that its ranks reported. Nothing outside ``home`` is touched.

    With a shared history, these are the trials whose files are in ``home``, also if they are
    ``LOST`` because no heartbeat came. The lease decides about the trials of other machines.
    """
    recovered = []
    shared = shared_of(history, job) is not None
    trials = history.unfinished(job)
    if shared:
        trials += [each for each in history.trials(job, _MOST_EXPIRED) if has_expired(each)]
    for trial in trials:
        paths = find_own(history, home, trial)
        if paths is None:
            # A container may see the same home under another path.
            if not shared and not lease_of(trial).is_held():
                outcome = join(trial, Outcome(TrialStatus.LOST, _STRANGE, finished_at))
                recovered += _finished(history, trial, outcome)
            continue
        lease = lease_of(trial, paths)
        if not lease.acquire_or_gone():
            continue  # its launcher is alive, or another submit recovers it
        try:
            # Read again under the lease: it may have ended or continued.
            found = history.find(trial.trial)
            if found is not None and (not found.status.finished or has_expired(found)):
                recovered += _recover(history, found, paths, finished_at)
        finally:
            lease.release()
    return recovered


def _recover(history: History, trial: Trial, paths: RunPaths, finished_at: str) -> list[Trial]:
    end_run(str(paths.run_dir))
    end_group(paths)
    outcome = read_outcome(paths) or _lost(trial, paths, finished_at)
    write_record(paths, trial.finish(outcome))
    for path in paths.leftovers:
        with contextlib.suppress(OSError):
            path.unlink()
    return _finished(history, trial, outcome)


def _finished(history: History, trial: Trial, outcome: Outcome) -> list[Trial]:
    try:
        return [history.finish(trial.trial, outcome)]
    except ValueError:
        found = history.find(trial.trial)
        if found is None or not found.status.finished:
            raise
        return []  # another submit was faster


def _lost(trial: Trial, paths: RunPaths, finished_at: str) -> Outcome:
    """Return the outcome of a trial whose launcher died.

    If the launcher was preempting it, the trial is preempted: Slurm and Kubernetes kill a launcher
    that does not end in time.
    """
    live = read_live(paths)
    status, reason = TrialStatus.LOST, LAUNCHER_DIED
    if live is not None and live.preempted and live.is_of(trial):
        status, reason = TrialStatus.PREEMPTED, "its launcher died while it was preempted"
    return outcome_so_far(trial, paths, status, reason, finished_at)


def outcome_so_far(
    trial: Trial, paths: RunPaths, status: TrialStatus, reason: str, finished_at: str
) -> Outcome:
    """Return an outcome with the time, energy and epochs that the files of a run contain.

    ``live.json`` has time and energy as of a second ago; the ranks' events have the epochs.
    """
    bare = Outcome(status, reason, finished_at)
    seen = join(trial, _from_sidecar(trial, paths, bare))
    live = read_live(paths)
    if live is None or not live.is_of(trial):
        return seen
    last = live.trial
    known = last.curve[-1].epoch if last.curve else -1
    later = (point for point in seen.curve if point.epoch > known)
    return replace(
        last.ended_as(status, reason, finished_at),
        time_s=seen.time_s if last.time_s is None else last.time_s,
        epochs=max((n for n in (last.epochs, seen.epochs) if n is not None), default=None),
        steps=max((n for n in (last.steps, seen.steps) if n is not None), default=None),
        best_metric=last.best_metric if seen.best_metric is None else seen.best_metric,
        curve=thin_curve((*last.curve, *later), trial.target, trial.mode),
        warnings=tuple(dict.fromkeys((*last.warnings, *seen.warnings))),
        interruptions=max(last.interruptions, seen.interruptions, key=len),
    )


def where_kept(history: History, trial: Trial, paths: RunPaths) -> str:
    """Return where the unrecorded outcome of a trial is, and what will record it."""
    try:
        known = history.find(trial.trial)
    except HistoryError:
        known = trial
    kept = f"Its outcome is kept in {paths.trial}"
    if known is None:
        return (
            "The history was deleted or replaced while the trial ran. "
            f"{kept}; `zeusrun repair --restore {trial.job}` records it."
        )
    return f"{kept}." if known.status.finished else f"{kept}; the next submit records it."


def _from_sidecar(trial: Trial, paths: RunPaths, bare: Outcome) -> Outcome:
    """Return the last part of a trial from the files of its ranks, without energy."""
    warnings: list[str] = []
    progress = Progress(launched_t=0.0, now_t=0.0)
    try:
        clock = read_step_clock(paths.rank_clock(0))
        parts = filter(None, SidecarReader(paths.sidecar).read_parts(final=True))
        first = next(parts, [])
        launched_t = min((event.t for event in first), default=0.0)
        progress = take_step_clock(Progress(launched_t=launched_t, now_t=launched_t), clock)
        for event in chain(first, chain.from_iterable(parts)):
            progress = advance(progress, event, trial, lambda _since, _until: None)
    except OSError as error:
        warnings.append(f"{error.filename or paths.run_dir} cannot be read: {error.strerror}")
    begun_t, active_t = progress.training_t, progress.active_t
    time_s = None if begun_t is None or active_t is None else active_t - begun_t
    return replace(
        bare,
        time_s=time_s,
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
        samples=progress.samples,
        progress=progress.in_epochs,
        by_samples=progress.by_samples,
        batch_sizes=progress.batch_sizes,
        warnings=tuple(warnings),
        interruptions=progress.ranks.interruptions(begun_t, time_s),
    )


def find_preempted(trials: Sequence[Trial]) -> Trial | None:
    """Return the oldest trial that the next submit will continue; ``None`` if there is none."""
    return next(iter(list_preempted(trials)), None)


def own_trials(history: History, home: Path, host: str, trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials that this machine can continue, and those that it ran."""
    if not trials or shared_of(history, trials[0].job) is None:
        return trials
    preempted = TrialStatus.PREEMPTED
    return [
        each
        for each in trials
        if (each.host in {None, host} and each.status is not preempted)
        or (each.status is preempted and find_own(history, home, each) is not None)
    ]


def list_preempted(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that later submits will continue, oldest first; no forgotten ones."""
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (-trial.recurrence, -trial.attempt)):
        if trial.status is TrialStatus.PREEMPTED:
            found += [] if trial.forgotten else [trial]
        elif trial.status is not TrialStatus.DISPATCHED and trial.reason != CANCELLED_LATER:
            break
    return found[::-1]


def why_not_continued(submission: Submission, trial: Trial, *, has_files: bool) -> str | None:
    """Return why a preempted trial cannot be continued as it began; ``None`` if it can."""
    spec, gpus = submission.spec, submission.gpus
    objective, arm = spec.objective, trial.global_batch_size
    names = ("metric", "target", "mode", "eta_knob", "max_epochs")
    then, now = ([getattr(each, name) for name in names] for each in (trial, objective))
    devices = (submission.world_size, gpus[0].model if gpus else None, len(gpus))
    refusals = {
        "its run directory is gone": not has_files,
        "a chosen batch size starts a new run": submission.forced_batch_size is not None,
        f"{arm} is no longer a candidate": arm not in spec.batch_size.candidates,
        "the objective has changed": then != now,
        "the batch size adapts in another way": trial.variant != spec.variant,
        "the learning rate has changed": trial.learning_rate != spec.learning_rate_for(arm),
        "it ran on other devices": (trial.world_size, trial.gpu_model, trial.gpu_count) != devices,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)


def cancel_preempted(history: History, trial: Trial, home: Path, finished_at: str) -> None:
    """Cancel a preempted trial; raises ``BusyError`` if another process changes or continues it."""
    paths = find_own(history, home, trial)
    lease = None if paths is None else lease_of(trial, paths)
    busy = BusyError(
        f"{trial.trial} is being recorded or continued by another process; cancel it again"
    )
    if lease is not None and not lease.acquire_or_gone():
        raise busy
    try:
        if history.find(trial.trial) != trial:
            raise busy
        outcome = trial.ended_as(TrialStatus.CANCELLED, CANCELLED_LATER, finished_at)
        if paths is not None:
            write_record(paths, trial.finish(outcome))
        history.finish(trial.trial, outcome)
    finally:
        if lease is not None:
            lease.release()


def cost_with_earlier(trial: Trial, spent_j: float | None) -> float | None:
    """Return a cost plus the cost of a trial before it was preempted, in joules."""
    if trial.time_s is None or spent_j is None:
        return spent_j
    return None if trial.cost_j is None else trial.cost_j + spent_j


def join(trial: Trial, outcome: Outcome) -> Outcome:
    """Add the outcome of the last part of a trial to the parts before its preemptions.

    If the last part reports an epoch again, the earlier report no longer counts, because the script
    continued from an older checkpoint. The time and energy of both count.
    """
    if not trial.preemptions or trial.time_s is None:
        return _without_empty_estimates(trial, outcome)
    if outcome.time_s is None:  # it was over before training began again
        source, energy_j, time_s = trial.energy_source, trial.energy_j, trial.time_s
        interruptions = trial.interruptions
    else:
        source = _same_source(trial.energy_source, outcome.energy_source)
        energy_j = None if source is None else _sum(trial.energy_j, outcome.energy_j)
        time_s = trial.time_s + outcome.time_s
        reported = trial.epochs or 0  # the last part may have been interrupted before its first
        later = [
            (trial.time_s + each.time_s, each.epochs or reported) for each in outcome.interruptions
        ]
        now = (trial.time_s, reported)
        interruptions = (*trial.interruptions, *itertools.starmap(Interruption, (now, *later)))
    if outcome.curve and is_baseline(outcome.curve[0]):  # the restored model, evaluated again
        outcome = replace(outcome, curve=outcome.curve[1:])
    first = outcome.curve[0].epoch if outcome.curve else None
    before = [point for point in trial.curve if first is None or point.epoch < first]
    first_j = None if energy_j is None else trial.energy_j
    since = [_after(trial.time_s, first_j, point) for point in outcome.curve]
    own = (_after(trial.time_s, first_j, point) for point in outcome.by_samples)
    by_samples = (point._replace(epoch=(trial.samples or 0) + point.epoch) for point in own)
    # The limit of the longer part.
    longer = outcome.time_s is not None and outcome.time_s > trial.time_s
    limit_w = outcome.power_limit_w if longer else trial.power_limit_w
    max_power_w = trial.max_power_w if outcome.max_power_w is None else outcome.max_power_w
    bests = [best for best in (trial.best_metric, outcome.best_metric) if best is not None]
    choose = min if trial.mode == "min" else max
    shared = (trial.shared, outcome.shared)
    joined = replace(
        outcome,
        startup_s=_sum(trial.startup_s, outcome.startup_s),
        shutdown_s=_known_sum(trial.shutdown_s, outcome.shutdown_s),
        time_s=time_s,
        energy_j=energy_j,
        energy_source=None if energy_j is None else source,
        max_power_w=max_power_w,
        cost_j=cost_j(energy_j, max_power_w, time_s, trial.eta_knob),
        epochs=outcome.epochs or trial.epochs,
        steps=_known_sum(trial.steps, outcome.steps),
        best_metric=choose(bests, default=None),
        curve=thin_curve((*before, *since), trial.target, trial.mode),
        samples=_known_sum(trial.samples, outcome.samples),
        progress=_known_sum(trial.progress, outcome.progress),
        by_samples=thin_curve((*trial.by_samples, *by_samples), trial.target, trial.mode),
        power_limit_w=limit_w,
        power_profile=outcome.power_profile or trial.power_profile,
        energy_counter_j=_sum(trial.energy_counter_j, outcome.energy_counter_j),
        energy_integrated_j=_sum(trial.energy_integrated_j, outcome.energy_integrated_j),
        profiling_cost_j=_known_sum(trial.profiling_cost_j, outcome.profiling_cost_j),
        observed_batch_size=outcome.observed_batch_size or trial.observed_batch_size,
        noise_scale=_newest(outcome.noise_scale, trial.noise_scale),
        preconditioned_noise_scale=_newest(
            outcome.preconditioned_noise_scale, trial.preconditioned_noise_scale
        ),
        gradient_variance=_newest(outcome.gradient_variance, trial.gradient_variance),
        gradients_of=outcome.gradients_of or trial.gradients_of,
        batch_sizes=join_changes(trial.batch_sizes, outcome.batch_sizes),
        **_sum_prices(trial, outcome, energy_j),
        shared=True if True in shared else None if None in shared else False,
        warnings=(*trial.warnings, *outcome.warnings),
        interruptions=interruptions,
    )
    return _without_empty_estimates(trial, joined)


def _sum_prices(trial: Trial, outcome: Outcome, energy_j: float | None) -> dict[str, Any]:
    """Return what both parts cost; unknown if the energy of one is, or in two currencies."""
    if outcome.time_s is None:
        return {name: getattr(trial, name) for name in ("price", "currency", "carbon_g", "pue")}
    known, same = energy_j is not None, trial.currency == outcome.currency
    price = _sum(trial.price, outcome.price) if known and same else None
    return {
        "price": price,
        "currency": None if price is None else outcome.currency,
        "carbon_g": _sum(trial.carbon_g, outcome.carbon_g) if known else None,
        "pue": outcome.pue if trial.pue == outcome.pue else None,
    }


def _newest(now: float | None, before: float | None) -> float | None:
    return before if now is None else now


def _without_empty_estimates(trial: Trial, outcome: Outcome) -> Outcome:
    """Replace estimates of 0 J by unknown: CPU time counts in ticks of 10 ms, and none was seen."""
    if outcome.energy_source is not EnergySource.ESTIMATED:
        return outcome
    curve = tuple(point._replace(energy_j=point.energy_j or None) for point in outcome.curve)
    outcome = replace(outcome, curve=curve)
    if outcome.energy_j != 0:
        return outcome
    spent_j = cost_j(None, outcome.max_power_w, outcome.time_s, trial.eta_knob)
    return replace(
        outcome,
        energy_j=None,
        energy_source=None,
        cost_j=spent_j,
        price=None,
        currency=None,
        carbon_g=None,
    )


def _same_source(first: EnergySource | None, second: EnergySource | None) -> EnergySource | None:
    """Return the weaker of two sources; ``None`` if one is unknown, or a model beside a meter."""
    if first is None or second is None or first.measured != second.measured:
        return None
    return first if first is second else max(first, second)  # "integrated" after "counter"


def _after(time_s: float, energy_j: float | None, point: CurvePoint) -> CurvePoint:
    return point._replace(time_s=time_s + point.time_s, energy_j=_sum(energy_j, point.energy_j))


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _known_sum(first: _Amount | None, second: _Amount | None) -> _Amount | None:
    """Add two amounts; an unknown one counts as zero."""
    if first is None or second is None:
        return second if first is None else first
    return first + second

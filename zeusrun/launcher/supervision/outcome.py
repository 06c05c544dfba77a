"""Builds the outcome of a run, and its state while it runs. Pure."""

from __future__ import annotations

import math
import os
import platform
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.eras import find_reporting
from zeusrun.clock import timestamp
from zeusrun.cost import cost_j
from zeusrun.energy.device import is_same_limit
from zeusrun.energy.device_energy import Accounts
from zeusrun.launcher.parts import join
from zeusrun.launcher.power.profiler import NO_LIMITS, LimitsReport
from zeusrun.launcher.rundir.failure import LAUNCHER_DIED, RUN_DELETED, Failure, signal_name
from zeusrun.launcher.rundir.record import Live
from zeusrun.launcher.supervision.hang import ranks_text
from zeusrun.launcher.supervision.pricing import price_outcome
from zeusrun.launcher.supervision.stop_rules import StopCause
from zeusrun.metrics.progress import settle
from zeusrun.metrics.seen import describe_alone, find_batch_size, list_names
from zeusrun.metrics.summary import TrainingSummary
from zeusrun.target import meets_target
from zeusrun.tariff import Tariffs
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.processes.torchrun import ProcessExit
    from zeusrun.launcher.supervision.stop_rules import StopOrder
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import CurvePoint, PowerPoint, Trial


_STOPPED_AS = {
    StopCause.SPEED_CHECKED: TrialStatus.CANCELLED,
    StopCause.NO_METRIC: TrialStatus.FAILED,
    StopCause.SIGNAL: TrialStatus.CANCELLED,
    StopCause.PREEMPTED: TrialStatus.PREEMPTED,
}

_UNTRAINED = (
    "the target is met before the first step, and no later epoch was reported; choose a harder "
    "target, check that the script does not evaluate a trained model, and report after each epoch"
)
NO_CAUSE = "torchrun failed without a recorded cause"


def build_outcome(
    trial: Trial,
    *,
    progress: Progress,
    exit_: ProcessExit,
    stop: StopOrder | None,
    failure: Failure | None,
    meter: Meter,
    finished_at: str,
    shared: bool | None = None,
    signalled: bool = False,
    limits: LimitsReport = NO_LIMITS,
    earlier: Sequence[Trial] = (),
) -> Outcome:
    """Return the outcome of a run.

    Time, energy and cost cover the start of training to the moment when the target was first
    reached, else to the last step or report. The shutdown of the processes is not training.
    ``failure`` is the root cause that a rank recorded; ``shared`` whether others used the devices
    at the same time; ``signalled`` whether torchrun reported that a signal ended it; ``earlier``
    are trials of the job, oldest first.
    """
    ordered = stop is not None and stop.ends_ranks
    late = failure if ordered else None  # a rank that zeusrun ends reports no failure to torchrun
    if not progress.curve and trial.epochs:  # preempted again before it reported anything
        progress = replace(progress, epochs=trial.epochs)
    signalled = signalled or exit_.code < 0
    clean = has_ended_well(progress, exit_, signalled=signalled)
    if clean or (stop is not None and stop.cause is StopCause.TIMEOUT):
        progress = settle(progress, final=True, resumed=trial.preemptions > 0)
    done = progress.has_done(trial.max_epochs) and progress.ranks.scripts_ended
    if stop is not None and stop.cause is StopCause.PREEMPTED and (done or progress.reached):
        stop, clean = None, True  # there is nothing left to train
    ordered = stop is not None and stop.ends_ranks  # then zeusrun sent it
    external_sigterm = signalled and not clean and not ordered
    if external_sigterm:
        number = -exit_.code if exit_.code < 0 else signal.SIGTERM
        reason = f"a {signal_name(number)} that zeusrun did not send ended torchrun"
        failure = Failure(None, out_of_memory=False, reason=reason)
    status, reason = _verdict(trial, progress, stop, failure, clean=clean)
    without_metric = clean or (stop is not None and stop.cause is StopCause.NO_METRIC)
    if status is TrialStatus.FAILED and without_metric and not _deleted(failure):
        status, reason = _blame_size(trial, progress, earlier) or (status, reason)
    if late is not None and late.sentence in reason:
        late = None
    # A signal to torchrun was sent on purpose; only a crash may be tried once more.
    by_itself = not (clean or external_sigterm or ordered or _deleted(failure))
    crashed = status is TrialStatus.FAILED and by_itself
    begun_t, reached = progress.training_t, progress.reached
    time_s = energy_j = shutdown_s = None
    accounts = Accounts(None, None)
    limit_w: float | None = None
    curve, by_samples, active_t = progress.curve, progress.by_samples, progress.active_t
    epochs = progress.epochs if reached is None else reached.epoch
    if begun_t is not None and active_t is not None:
        shutdown_s = max(0.0, exit_.ended_t - active_t)
        time_s = active_t - begun_t if reached is None else reached.time_s
        # Read again: while the run went on, the last joules were extrapolated.
        energy_j = meter.energy_between(begun_t, begun_t + time_s)
        accounts = meter.accounts_j(begun_t, begun_t + time_s)
        limit_w = limit_in_force(trial, limits.profile, meter, begun_t, begun_t + time_s)
        curve, by_samples = (
            tuple(
                point._replace(energy_j=meter.energy_between(begun_t, begun_t + point.time_s))
                for point in points
            )
            for points in (curve, by_samples)
        )
    return replace(
        outcome_now(trial, progress, meter, status, reason),
        finished_at=finished_at,
        time_s=time_s,
        energy_j=energy_j,
        energy_source=None if energy_j is None else meter.energy_source,
        cost_j=cost_j(energy_j, meter.max_power_w, time_s, trial.eta_knob),
        epochs=epochs if curve else None,
        curve=curve,
        by_samples=by_samples,
        power_profile=limits.profile,
        power_limit_w=limit_w,
        energy_counter_j=accounts.counter_j,
        energy_integrated_j=accounts.integrated_j,
        profiling_cost_j=limits.extra_cost_j,
        shared=shared,
        shutdown_s=shutdown_s,
        cause=None if not crashed else NO_CAUSE if failure is None else failure.cause,
        warnings=(
            *_warnings(trial, progress, exit_, stop, late=late, clean=clean),
            *(_fell_back(trial, progress) if status is TrialStatus.REACHED else ()),
        ),
        interruptions=progress.ranks.interruptions(begun_t, time_s),
    )


def observed_batch_size(trial: Trial, progress: Progress) -> int | None:
    """Return with what batch size a trial trains, its own while it adapts it as planned."""
    size = find_batch_size(progress.observed, progress.ranks.trained_by)
    planned = {change.batch_size for change in progress.batch_sizes}
    if size in planned:
        return trial.global_batch_size
    return size or (None if planned else progress.unapplied)


def limit_in_force(
    trial: Trial, profile: Sequence[PowerPoint], meter: Meter, since_t: float, until_t: float
) -> float | None:
    """Return the limit in force for most of a window, in watts per GPU; ``None`` if unknown."""
    read_w = meter.limit_w(since_t, until_t)
    if read_w is None:
        return None
    # The driver may have rounded what was requested.
    requested_w = [trial.power_limit_w, *(point.power_limit_w for point in profile)]
    return next((w for w in requested_w if w is not None and is_same_limit(w, read_w)), read_w)


def has_ended_well(progress: Progress, exit_: ProcessExit, *, signalled: bool) -> bool:
    """Whether the training ended by itself: torchrun succeeded, or the script of every rank did.

    Ranks whose torchrun received a signal may have been cut short.
    """
    if exit_.code == 0:  # also if zeusrun ended the ranks, whatever their own exit codes
        return not any(progress.ranks.exit_codes.values())
    unasked = not signalled or progress.reached is not None
    return unasked and progress.ranks.scripts_ended


def _verdict(
    trial: Trial,
    progress: Progress,
    stop: StopOrder | None,
    failure: Failure | None,
    *,
    clean: bool,
) -> tuple[TrialStatus, str]:
    reached = progress.reached
    # A run that is ended after the target costs what reaching the target cost.
    ended = stop is not None and stop.ends_ranks
    by_rule = ended and stop is not None and stop.cause in {StopCause.TIMEOUT, StopCause.TARGET}
    if reached is not None and (clean or by_rule):
        return (
            TrialStatus.REACHED,
            f"{trial.metric} {reached.value:.4g} {_when(trial, progress, reached)}",
        )
    out_of_memory = failure is not None and failure.out_of_memory
    if stop is not None and stop.cause is not StopCause.TARGET:
        checked = stop.cause is StopCause.SPEED_CHECKED
        if checked and out_of_memory and failure is not None and not clean:
            return TrialStatus.OOM, failure.sentence  # the policy learns from that too
        return _STOPPED_AS.get(stop.cause, TrialStatus.STOPPED), stop.reason
    if not clean or _deleted(failure):
        cause = NO_CAUSE if failure is None else failure.sentence + _ended_before(failure, progress)
        after = (
            f"the target was reached {_when(trial, progress, reached)}, then " if reached else ""
        )
        sizes = progress.batch_sizes
        if out_of_memory and sizes and sizes[-1].batch_size != trial.global_batch_size:
            after += f"its batch size had become {sizes[-1].batch_size}; "
        return (TrialStatus.OOM if out_of_memory else TrialStatus.FAILED), after + cause
    untrained = _is_untrained(trial, progress)
    if untrained or trial.metric not in progress.seen_metrics:
        return TrialStatus.FAILED, _UNTRAINED if untrained else _never_reported(trial, progress)
    best = "no finite value" if progress.best_value is None else f"best {progress.best_value:.4g}"
    what = "report" if progress.by_reports else "epoch"
    done = f"{progress.epochs} {what}" + ("" if progress.epochs == 1 else "s")
    if trial.by_samples or progress.by_samples:
        done = f"{(trial.samples or 0) + (progress.samples or 0):,} samples"
    return TrialStatus.MISSED, f"{trial.metric} {best} after {done}, target {trial.target:g}"


def _is_untrained(trial: Trial, progress: Progress) -> bool:
    """Whether all that a run reported is a model that met the target before the first step."""
    only_first = progress.awaits_step or all(point.epoch == 0 for point in progress.curve)
    best = progress.best_value
    first = only_first and not trial.preemptions and progress.reached is None
    return first and best is not None and meets_target(best, trial.target, trial.mode)


def _ended_before(failure: Failure, progress: Progress) -> str:
    """Describe the ranks that ended before the failed one, which may have waited for them."""
    codes = progress.ranks.exit_codes
    ended = list(codes)  # in the order in which they ended
    if failure.rank not in ended:
        return ""
    early = [rank for rank in ended[: ended.index(failure.rank)] if not codes[rank]]
    return f"; {ranks_text(sorted(early))} had ended before with exit code 0" if early else ""


def _deleted(failure: Failure | None) -> bool:
    """Whether the script deleted its run directory, which has nothing to do with its batch size."""
    return failure is not None and failure.reason.startswith(RUN_DELETED)


def _never_reported(trial: Trial, progress: Progress) -> str:
    if progress.seen_metrics:
        seen = list_names(progress.seen_metrics)
        return (
            f"the script never reported {trial.metric!r}; it reported {seen}. "
            "Correct objective.metric (or metrics.name) in the job file"
        )
    return (
        f"the script never reported {trial.metric!r}, and zeusrun saw no metric of any library; "
        f"call zeusrun.current().report({trial.metric}=...) on rank 0 after each epoch, or name a "
        "file or a pattern under metrics in the job file (docs/metrics.md)"
    )


def _blame_size(
    trial: Trial, progress: Progress, earlier: Sequence[Trial]
) -> tuple[TrialStatus, str] | None:
    """Return a miss if the script reports the metric with another batch size, else ``None``."""
    if trial.metric in progress.seen_metrics:
        return None
    other = find_reporting(trial, earlier)
    if other is None:
        return None
    seen = f"; it reported {list_names(progress.seen_metrics)}" if progress.seen_metrics else ""
    return TrialStatus.MISSED, (
        f"the script never reported {trial.metric!r}{seen}. {other.trial} reported it with batch "
        f"size {other.global_batch_size}, so the script may not evaluate with "
        f"{trial.global_batch_size}"
    )


def _warnings(
    trial: Trial,
    progress: Progress,
    exit_: ProcessExit,
    stop: StopOrder | None,
    *,
    late: Failure | None,
    clean: bool,
) -> list[str]:
    found = []
    reached, ranks = progress.reached, progress.ranks
    ordered = stop is not None and stop.ends_ranks  # then torchrun exits with 1
    if reached is not None and stop is not None and stop.cause is StopCause.TIMEOUT:
        when = _when(trial, progress, reached)
        found.append(f"{stop.reason}; the target was reached {when}, where time and cost end")
    if clean and exit_.code != 0 and not ordered and ranks.scripts_ended:
        found.append(
            "a rank aborted after its script had ended; the training itself is complete "
            f"(torchrun's exit code was {exit_.code})"
        )
    if ranks.generation:
        times = "once" if ranks.generation == 1 else f"{ranks.generation} times"
        found.append(f"torchrun restarted the ranks {times}")
    if exit_.outlived and exit_.code != -signal.SIGKILL:  # then zeusrun has to end the ranks
        names = ", ".join(exit_.outlived[:5])
        found.append(f"processes that outlived the training, ended by zeusrun: {names}")
    if exit_.left:
        names = ", ".join(exit_.left[:5])
        found.append(f"processes of the training that zeusrun could not kill: {names}; kill them")
    if progress.last_value is not None and math.isnan(progress.last_value):
        found.append(f"{trial.metric} was NaN at the end")
    told = describe_alone(progress.observed) is not None  # during the run
    if ranks.all_alone and not told and (progress.steps or progress.seen_metrics):
        found.append(
            f"{ranks.world_size} ranks completed, and none joined a process group of "
            "torch.distributed: each trained by itself. Let the script call init_process_group, "
            "or start one rank:  launch: {nproc_per_node: 1}"
        )
    if late is not None and late.is_own:
        found.append(
            "a rank failed while the training was ended, so its last checkpoint may be missing: "
            f"{late.sentence}"
        )
    return found


def _fell_back(trial: Trial, progress: Progress) -> list[str]:
    """Return a warning if the metric of a run that reached its target misses it at the end."""
    last = progress.last_value
    if last is None or math.isnan(last) or meets_target(last, trial.target, trial.mode):
        return []
    bound = "most" if trial.mode == "min" else "least"
    told = (
        f"at its end {trial.metric} was {last:.6g}, which misses the target of at {bound} "
        f"{trial.target:g}: what the script saved last may miss it, too"
    )
    return [told]


def _when(trial: Trial, progress: Progress, reached: CurvePoint) -> str:
    """Return when a run reached its target: by samples, those of its earlier parts included."""
    if not (trial.by_samples or progress.by_samples):
        return f"in {'report' if progress.by_reports else 'epoch'} {reached.epoch}"
    since = 0 if progress.by_samples else progress.samples or 0
    own = [each.epoch for each in progress.by_samples if each.time_s <= reached.time_s]
    return f"after {(trial.samples or 0) + (own[-1] if own else since):,} samples"


def outcome_now(
    trial: Trial, progress: Progress, meter: Meter, status: TrialStatus, reason: str
) -> Outcome:
    """Return the outcome of a trial as if it ended now."""
    return Outcome(
        status,
        reason,
        timestamp(),
        startup_s=progress.startup_s,
        time_s=progress.time_s,
        energy_j=progress.energy_j,
        energy_source=None if progress.energy_j is None else meter.energy_source,
        max_power_w=meter.max_power_w,
        cost_j=cost_j(progress.energy_j, meter.max_power_w, progress.time_s, trial.eta_knob),
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
        samples=progress.samples,
        progress=progress.in_epochs,
        by_samples=progress.by_samples,
        by_reports=progress.by_reports,
        observed_batch_size=observed_batch_size(trial, progress),
        batch_sizes=progress.batch_sizes,
        **progress.statistics._asdict(),
        interruptions=progress.ranks.interruptions(progress.training_t, progress.time_s),
    )


def describe_live(
    trial: Trial,
    progress: Progress,
    meter: Meter,
    tariffs: Tariffs = Tariffs(),  # noqa: B008 - a frozen value
    *,
    shared: bool | None = None,
    warnings: Sequence[str] = (),
    preempted: bool = False,
) -> Live:
    """Return the state of a running trial, with its energy so far."""
    begun_t = progress.training_t
    limit_w = None if begun_t is None else limit_in_force(trial, (), meter, begun_t, progress.now_t)
    outcome = outcome_now(trial, progress, meter, TrialStatus.LOST, LAUNCHER_DIED)
    outcome = replace(outcome, power_limit_w=limit_w, shared=shared, warnings=tuple(warnings))
    so_far = trial.finish(join(trial, price_outcome(trial, outcome, tariffs)))
    return Live(
        replace(so_far, status=TrialStatus.DISPATCHED, reason=None, finished_at=None),
        os.getpid(),
        trial.host or platform.node(),
        outcome.finished_at,
        progress.power_w,
        preempted,
        TrainingSummary.of(progress),
    )

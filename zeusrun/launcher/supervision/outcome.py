"""Builds the outcome of a run and its state while it runs, with energy, cost and price."""

from __future__ import annotations

import math
import signal
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.cost import cost_j
from zeusrun.energy.device import is_same_limit
from zeusrun.errors import JobFileError
from zeusrun.launcher.power.limits import UNMEASURED, LimitsReport
from zeusrun.launcher.processes.torchrun import TICK_S
from zeusrun.launcher.rundir.failure import NO_CAUSE, Failure, signal_name
from zeusrun.launcher.supervision.verdict import End, describe_target, judge_end
from zeusrun.metrics.progress import settle
from zeusrun.metrics.seen import describe_alone, find_batch_size
from zeusrun.metrics.spans import count_spans, is_continued, list_workers, take_energy
from zeusrun.reasons import ReasonCode, Stall
from zeusrun.target import meets_target
from zeusrun.tariff import Tariffs, amount
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.processes.torchrun import ProcessExit
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import HostShare, PowerPoint, Trial

# What may be tried once more. A signal to torchrun was sent on purpose.
_CRASHES = {
    *(ReasonCode.CRASHED, ReasonCode.CANNOT_IMPORT),
    *(ReasonCode.USAGE_ERROR, ReasonCode.STALLED, ReasonCode.DISK_FULL),
}


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
    limits: LimitsReport = UNMEASURED,
    earlier: Sequence[Trial] = (),
    stalls: tuple[Stall, ...] = (),
    hosts: tuple[HostShare, ...] = (),
) -> Outcome:
    """Return the outcome of a run.

    Time, energy and cost cover the start of training to the moment when the target was first
    reached, else to the last step or report. The shutdown of the processes is not training.
    ``failure`` is the root cause that a rank recorded; ``shared`` whether others used the devices
    at the same time; ``signalled`` whether torchrun reported that a signal ended it; ``earlier``
    are trials of the job, oldest first.
    """
    if not progress.curve and trial.epochs:  # preempted again before it reported anything
        progress = replace(progress, epochs=trial.epochs)
    signalled = signalled or exit_.code < 0
    clean = has_ended_well(progress, exit_, signalled=signalled)
    end = End(exit_, stop, failure or Failure(None, NO_CAUSE), clean)
    # A rank that zeusrun ends reports no failure to torchrun.
    late = failure if end.ordered else None
    if end.clean or end.cause is ReasonCode.TIMEOUT:
        progress = settle(progress, final=True, resumed=trial.preemptions > 0)
    end = _correct(end, trial, progress, signalled=signalled)
    status, code, reason = judge_end(trial, progress, end, earlier)
    if late is not None and late.code is code:  # the reason says it already
        late = None
    active_t = progress.active_t
    outcome = _take_span(
        outcome_now(trial, progress, meter, status), trial, progress, meter, limits.profile
    )
    return replace(
        outcome,
        reason=reason,
        reason_code=code,
        finished_at=finished_at,
        power_profile=limits.profile,
        profiling_cost_j=limits.extra_cost_j,
        shared=shared,
        shutdown_s=None if active_t is None else max(0.0, exit_.ended_t - active_t),
        cause=end.failure.cause if code in _CRASHES else None,
        warnings=(
            *_warnings(trial, progress, end, late),
            *(_fell_back(trial, progress) if status is TrialStatus.REACHED else ()),
        ),
        stalls=stalls,
        hosts=_share_energy(hosts, progress, outcome, meter),
    )


def _share_energy(
    hosts: tuple[HostShare, ...], progress: Progress, outcome: Outcome, meter: Meter
) -> tuple[HostShare, ...]:
    """Return the hosts of a run with the energy of each over the span."""
    begun_t, time_s = progress.training_t, outcome.time_s
    if not hosts or begun_t is None or time_s is None:
        return hosts
    parts_j = meter.host_energies_j(begun_t, begun_t + time_s)
    names = ("", *(share.name for share in hosts[1:]))
    return tuple(
        share._replace(energy_j=parts_j.get(name)) for share, name in zip(hosts, names, strict=True)
    )


def _correct(end: End, trial: Trial, progress: Progress, *, signalled: bool) -> End:
    """Return the end with what only the whole shows: nothing left to train, a foreign signal."""
    done = progress.has_done(trial.max_epochs) and progress.ranks.scripts_ended
    if end.cause is ReasonCode.PREEMPTED and (done or progress.reached):
        return replace(end, stop=None, clean=True)
    lost = end.failure.code is ReasonCode.HOST_LOST
    if signalled and not (end.clean or end.ordered or lost):  # else zeusrun sent it
        number = -end.exit_.code if end.exit_.code < 0 else signal.SIGTERM
        text = f"a {signal_name(number)} that zeusrun did not send ended torchrun"
        return replace(end, failure=Failure(None, text, ReasonCode.ENDED_BY_SIGNAL))
    return end


def _take_span(
    outcome: Outcome, trial: Trial, progress: Progress, meter: Meter, profile: Sequence[PowerPoint]
) -> Outcome:
    """Return an outcome with what its span took, of a training that has begun.

    While the run went on, the last joules were extrapolated: they are read again.
    """
    begun_t, active_t, reached = progress.training_t, progress.active_t, progress.reached
    if begun_t is None or active_t is None:
        return outcome
    whole_s = active_t - begun_t
    time_s = whole_s if reached is None else reached.time_s
    span = begun_t, begun_t + time_s
    energy_j, accounts = meter.energy_between(*span), meter.accounts_j(*span)
    curve, by_samples = (
        tuple(
            point._replace(energy_j=meter.energy_between(begun_t, begun_t + point.time_s))
            for point in points
        )
        for points in (outcome.curve, outcome.by_samples)
    )
    return replace(
        outcome,
        time_s=time_s,
        energy_j=energy_j,
        whole_time_s=whole_s,
        whole_energy_j=meter.energy_between(begun_t, active_t),
        energy_source=None if energy_j is None else meter.energy_source,
        cost_j=cost_j(energy_j, meter.max_power_w, time_s, trial.eta_knob),
        curve=curve,
        by_samples=by_samples,
        power_limit_w=limit_in_force(trial, profile, meter, *span),
        energy_counter_j=accounts.counter_j,
        energy_integrated_j=accounts.integrated_j,
        interruptions=progress.ranks.interruptions(begun_t, time_s),
    )


def observed_batch_size(trial: Trial, progress: Progress) -> int | None:
    """Return with what batch size a trial trains, its own while it adapts it as planned."""
    size = find_batch_size(progress.observed, progress.ranks)
    planned = {change.batch_size for change in progress.batch_sizes}
    return trial.global_batch_size if size in planned else size


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


def _warnings(trial: Trial, progress: Progress, end: End, late: Failure | None) -> list[str]:
    found = []
    reached, ranks, stop, exit_ = progress.reached, progress.ranks, end.stop, end.exit_
    if reached is not None and stop is not None and stop.cause is ReasonCode.TIMEOUT:
        when = describe_target(trial, progress, reached)
        found.append(f"{stop.reason}; the target was reached {when}, where time and cost end")
    if end.clean and exit_.code != 0 and not end.ordered and ranks.scripts_ended:
        found.append(
            "a rank aborted after its script had ended; the training itself is complete "
            f"(torchrun's exit code was {exit_.code})"
        )
    if ranks.generation:
        times = "once" if ranks.generation == 1 else f"{ranks.generation} times"
        found.append(f"the ranks were restarted {times}")
    if progress.unclear or progress.renumbered:
        what = (
            f"{trial.metric} does not show whether the training went on or began anew, so its "
            "epochs are unknown and nothing is learned from them"
            if progress.unclear
            else f"{trial.metric} shows that the training went on, so its epochs do, too"
        )
        found.append(
            f"after an interruption, epochs were numbered from 1 again: {what}. Let the script "
            "restore the number of its epoch, too (docs/training-script.md)"
        )
    if exit_.outlived and exit_.code != -signal.SIGKILL:  # then zeusrun has to end the ranks
        names = ", ".join(exit_.outlived[:5])
        found.append(f"processes that outlived the training, ended by zeusrun: {names}")
    if exit_.left:
        names = ", ".join(exit_.left[:5])
        found.append(f"processes of the training that zeusrun could not kill: {names}; kill them")
    if progress.last_value is not None and math.isnan(progress.last_value):
        found.append(f"{trial.metric} was NaN at the end")
    warned = describe_alone(progress.observed) is not None  # during the run
    if ranks.all_alone and not warned and (progress.steps or progress.seen_metrics):
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
    text = (
        f"at its end {trial.metric} was {last:.6g}, which misses the target of at {bound} "
        f"{trial.target:g}: what the script saved last may miss it, too"
    )
    return [text]


def outcome_now(
    trial: Trial, progress: Progress, meter: Meter | None, status: TrialStatus
) -> Outcome:
    """Return the outcome of a trial as if it ended now, without a reason."""
    max_power_w = None if meter is None else meter.max_power_w
    counts, whole_j, begun_t = count_spans(progress), progress.energy_j, progress.training_t
    if progress.reached is not None and meter and begun_t is not None:
        whole_j = meter.energy_between(begun_t, begun_t + counts["whole_time_s"])
    time_s = progress.time_s
    # The clock is read up to a tick after what ends the span.
    waits_s = [s if s is None or time_s is None else min(s, time_s) for s in progress.waits_s]
    return Outcome(
        status,
        "",
        timestamp(),
        data_wait_s=waits_s[0],
        evaluation_wait_s=waits_s[1],
        startup_s=progress.startup_s,
        time_s=progress.time_s,
        energy_j=progress.energy_j,
        energy_source=meter.energy_source if meter and progress.energy_j is not None else None,
        max_power_w=max_power_w,
        cost_j=cost_j(progress.energy_j, max_power_w, progress.time_s, trial.eta_knob),
        **counts,
        best_metric=progress.best_value,
        curve=progress.curve,
        whole_energy_j=whole_j,
        by_samples=progress.by_samples,
        by_reports=progress.by_reports,
        continued=is_continued(progress, trial),
        unclear=progress.unclear,
        observed_batch_size=observed_batch_size(trial, progress),
        unapplied=progress.unapplied and trial.global_batch_size != progress.replaced,
        batch_sizes=progress.batch_sizes,
        world_sizes=progress.world_sizes,
        syncs=progress.syncs,
        workers=list_workers(progress),
        noise_curve=progress.noise_curve,
        gradient_variance=progress.gradient_variance,
        gradients_of=progress.gradients_of,
        interruptions=progress.ranks.interruptions(progress.training_t, progress.time_s),
    )


def cost_with_earlier(trial: Trial, spent_j: float | None) -> float | None:
    """Return a cost plus the cost of a trial before it was preempted, in joules."""
    if trial.time_s is None or spent_j is None:
        return spent_j
    return None if trial.cost_j is None else trial.cost_j + spent_j


def charge(progress: Progress, before: Progress, trial: Trial, meter: Meter) -> Progress:
    """Return the progress of a training that has begun with its energy and cost so far."""
    since_t, time_s = progress.training_t or 0.0, progress.time_s
    # One tick ago lies within the power samples. Later energy is extrapolated: first tick.
    until_t = since_t + (time_s or 0.0)
    seen_t = min(until_t, progress.now_t - TICK_S)
    energy_j = meter.energy_between(since_t, seen_t if seen_t > since_t else until_t)
    progress = take_energy(progress, before, energy_j, meter.power_w())
    if progress.may_be_baseline:
        return progress
    spent = cost_j(progress.energy_j, meter.max_power_w, time_s, trial.eta_knob)
    return replace(progress, cost_j=cost_with_earlier(trial, spent))


def price_at_end(submission: Submission, trial: Trial, outcome: Outcome) -> Outcome:
    """Return the outcome of the last part of a trial with its price and its carbon.

    If a CSV file ended before the run did, read it again: prices of the next day come every day.
    """
    priced = price_outcome(trial, outcome, submission.tariffs)
    if len(priced.warnings) == len(outcome.warnings):  # nothing is unknown
        return priced
    try:
        newer = submission.read_tariffs()
    except JobFileError:  # a file that changed during the run must not fail it
        return priced
    return price_outcome(trial, outcome, newer)


def price_outcome(trial: Trial, outcome: Outcome, tariffs: Tariffs) -> Outcome:
    """Return the outcome of the last part of a trial with the price and carbon of its energy.

    If a rate is unknown for a part of the time, so is the amount, and a warning says why.
    """
    rates = {"price": tariffs.price, "carbon": tariffs.carbon}
    if outcome.time_s is None or outcome.energy_j is None or not any(rates.values()):
        return outcome
    began = datetime.fromisoformat(trial.started_at).timestamp() + (outcome.startup_s or 0.0)
    span = began, began + outcome.time_s
    amounts = {n: amount(rate, outcome.energy_j, tariffs.pue, *span) for n, rate in rates.items()}
    warnings = [
        f"its {name} is unknown: {name}.csv has rates {_between(rate.times[0], rate.times[-1])}, "
        f"and the run trained {_between(*span)}"
        for name, rate in rates.items()
        if rate is not None and amounts[name] is None
    ]
    return replace(
        outcome,
        price=amounts["price"],
        currency=None if amounts["price"] is None else tariffs.currency,
        carbon_g=amounts["carbon"],
        pue=tariffs.pue,
        warnings=(*outcome.warnings, *warnings),
    )


def _between(began: float, ended: float) -> str:
    first, last = (
        datetime.fromtimestamp(t, timezone.utc).astimezone().isoformat(" ", "minutes")
        for t in (began, ended)
    )
    return f"from {first} to {last}"

"""Why a run ended: its status, its reason, and their words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.bandit.eras import compare_training, find_differences
from zeusrun.launcher.supervision.stalls import ranks_text
from zeusrun.launcher.supervision.stopping import BY_SIGNAL
from zeusrun.metrics.seen import list_names
from zeusrun.reasons import ReasonCode
from zeusrun.target import is_share, meets_target
from zeusrun.trial import TrialStatus, host_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.processes.torchrun import ProcessExit
    from zeusrun.launcher.rundir.failure import Failure
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import CurvePoint, Trial

Verdict: TypeAlias = "tuple[TrialStatus, ReasonCode, str]"

_STOPPED_AS = {
    **dict.fromkeys((ReasonCode.SPEED_CHECKED, *BY_SIGNAL), TrialStatus.CANCELLED),
    ReasonCode.PLANNED: TrialStatus.CANCELLED,
    ReasonCode.PREEMPTED: TrialStatus.PREEMPTED,
}
_NO_STEP = (
    "no optimizer has made a step: if the data loader drops the last batch, a pass over the data "
    "has fewer samples than a batch; remove such batch sizes from batch_size.candidates"
)
_UNTRAINED = (
    "the target is met before the first step, and no later epoch was reported; choose a harder "
    "target, check that the script does not evaluate a trained model, and report after each epoch"
)


@dataclass(frozen=True)
class End:
    """How the processes of a run ended, and why."""

    exit_: ProcessExit
    stop: StopOrder | None
    failure: Failure
    clean: bool  # the training ended by itself

    @property
    def cause(self) -> ReasonCode | None:
        """Why zeusrun stopped the run; ``None`` if it did not."""
        return None if self.stop is None else self.stop.cause

    @property
    def ordered(self) -> bool:
        """Whether zeusrun ended the ranks; then torchrun exits with 1."""
        return self.stop is not None and self.stop.ends_ranks


def judge_end(trial: Trial, progress: Progress, end: End, earlier: Sequence[Trial]) -> Verdict:
    """Return how a run ended; ``earlier`` are trials of the job, oldest first."""
    reached, stop, failure = progress.reached, end.stop, end.failure
    # A run that is ended after the target costs what reaching the target cost.
    by_rule = end.ordered and end.cause in {ReasonCode.TIMEOUT, ReasonCode.TARGET_REACHED}
    if reached is not None and (end.clean or by_rule):
        text = f"{trial.metric} {reached.value:.4g} {describe_target(trial, progress, reached)}"
        return TrialStatus.REACHED, ReasonCode.TARGET_REACHED, text
    if stop is not None and stop.cause is ReasonCode.NO_METRIC:
        # If the script deleted its run directory, its batch size is not to blame.
        others = () if failure.code is ReasonCode.RUN_DELETED else earlier
        return _without_metric(trial, progress, others, stop.reason)
    if stop is not None and stop.cause is not ReasonCode.TARGET_REACHED:
        checked = stop.cause is ReasonCode.SPEED_CHECKED
        if checked and failure.out_of_memory and not end.clean:
            # The policy learns from that, too.
            return TrialStatus.OOM, failure.code, failure.sentence
        return _STOPPED_AS.get(stop.cause, TrialStatus.STOPPED), stop.cause, stop.reason
    if not end.clean or failure.code is ReasonCode.RUN_DELETED:
        return _failed(trial, progress, failure)
    return _missed(trial, progress, earlier)


def _missed(trial: Trial, progress: Progress, earlier: Sequence[Trial]) -> Verdict:
    """Return how a training ended that came to its own end."""
    if _is_untrained(trial, progress):
        return TrialStatus.FAILED, ReasonCode.NOT_TRAINED, _UNTRAINED
    if progress.doubt is not None and progress.last_value is None:
        return TrialStatus.FAILED, ReasonCode.NO_METRIC, progress.doubt
    if progress.awaits_step and progress.curve and not trial.preemptions:
        return TrialStatus.FAILED, ReasonCode.NOT_TRAINED, _NO_STEP
    if trial.metric not in progress.seen_metrics:
        return _without_metric(trial, progress, earlier, _never_reported(trial, progress))
    best = "no finite value" if progress.best_value is None else f"best {progress.best_value:.4g}"
    what = "report" if progress.by_reports else "epoch"
    done = f"{progress.epochs} {what}" + ("" if progress.epochs == 1 else "s")
    if trial.by_samples or progress.by_samples:
        done = f"{(trial.samples or 0) + (progress.samples or 0):,} samples"
    text = f"{trial.metric} {best} after {done}, target {trial.target:g}"
    if trial.target > 1 >= (progress.best_value or 2) >= 0 and is_share(trial.metric):
        text += f"; if its values are shares of 1, write  target: {trial.target / 100:g}"
    return TrialStatus.MISSED, ReasonCode.TARGET_MISSED, text


def _failed(trial: Trial, progress: Progress, failure: Failure) -> Verdict:
    after, sizes = "", progress.batch_sizes
    if progress.reached is not None:
        when = describe_target(trial, progress, progress.reached)
        after = f"the target was reached {when}, then "
    host = host_of(trial.hosts, failure.rank)
    after += "" if host is None else f"host {host}: "
    text = failure.sentence + _ended_before(failure, progress)
    if not failure.out_of_memory:
        return TrialStatus.FAILED, failure.code, after + text
    if sizes and sizes[-1].batch_size != trial.global_batch_size:
        after += f"its batch size had become {sizes[-1].batch_size}; "
    return TrialStatus.OOM, failure.code, after + text


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


def _never_reported(trial: Trial, progress: Progress) -> str:
    if progress.seen_metrics:
        seen = list_names(progress.seen_metrics)
        return (
            f"the script never reported {trial.metric!r}; it reported {seen}. "
            "Correct objective.metric (or metrics.name) in the job file"
        )
    return (
        f"the script never reported {trial.metric!r}, and zeusrun saw no metric of any library; "
        f"call zeusrun.current().report({trial.metric}=...) on rank 0 after each epoch, or let "
        "metrics in the job file name a file or a pattern that has it, as zeusrun init --try "
        "proposes (docs/metrics.md)"
    )


def _without_metric(
    trial: Trial, progress: Progress, earlier: Sequence[Trial], reason: str
) -> Verdict:
    """Return a miss if the script reports the metric with another batch size, else a failure."""
    seen = progress.seen_metrics
    other = None if trial.metric in seen else find_reporting(trial, earlier)
    if other is None:
        return TrialStatus.FAILED, ReasonCode.NO_METRIC, reason
    reported = f"; it reported {list_names(seen)}" if seen else ""
    text = (
        f"the script never reported {trial.metric!r}{reported}. {other.trial} reported it with "
        f"batch size {other.global_batch_size}, so the script may not evaluate with "
        f"{trial.global_batch_size}"
    )
    return TrialStatus.MISSED, ReasonCode.NO_METRIC, text


def find_reporting(trial: Trial, earlier: Sequence[Trial]) -> Trial | None:
    """Return the newest run of the same training that reported a metric which a trial did not.

    ``None`` if there is none, or if one had the batch size of the trial: then that is no cause.
    """
    now = trial.fingerprint or {}
    differences = find_differences(earlier, now, compare_training(now, earlier).ignored)
    found = [
        each
        for each, differs in zip(earlier, differences, strict=True)
        if differs is None
        and each.curve
        and each.teaches
        and (each.metric, each.variant) == (trial.metric, trial.variant)
    ]
    if any(each.global_batch_size == trial.global_batch_size for each in found):
        return None
    return found[-1] if found else None


def describe_target(trial: Trial, progress: Progress, reached: CurvePoint) -> str:
    """Return when a run reached its target: by samples, those of its earlier parts included."""
    if not (trial.by_samples or progress.by_samples):
        return f"in {'report' if progress.by_reports else 'epoch'} {reached.epoch}"
    done = [each.epoch for each in progress.by_samples if each.time_s <= reached.time_s]
    return f"after {(trial.samples or 0) + (done[-1] if done else progress.samples or 0):,} samples"

"""Warnings about how a script uses zeusrun, while it runs."""

from __future__ import annotations

import functools
import math
import os
from typing import TYPE_CHECKING

from zeusrun.bandit.reinterpret import samples_per_epoch
from zeusrun.launcher.script_warnings import find_choices_to_ask_for, read_job_script
from zeusrun.launcher.supervision.agent import Agent
from zeusrun.launcher.supervision.outcome import observed_batch_size
from zeusrun.metrics.seen import (
    describe_alone,
    describe_spawned,
    describe_steps,
    find_batch_size,
    list_names,
)
from zeusrun.metrics.spans import is_continued
from zeusrun.sidecar.events import REPORT, Scheduled
from zeusrun.target import meets_target
from zeusrun.trial import adapts, is_baseline

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Messages
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event
    from zeusrun.trial import Trial

_TRAINS_ON = (
    "the target was reached, but the script goes on. Loop over `run.epochs(default=...)`, or add "
    "`if run.should_stop(): break` after `run.report(...)`; or write objective.on_target: continue"
)
_FROM_THE_START = (
    "zeusrun sees neither an optimizer step nor a backward pass of torch, so time, energy and cost "
    "count from the start of the script, imports included. Loop over "
    "`zeusrun.current().epochs(default=...)`, and they count from its first epoch"
)
_CALLS = {"batch_size": "local_batch_size", "learning_rate": "learning_rate"}
_DATA_MAY_GROW = 1.25
_WAITS, _LONG_WAITS = (0.15, 30.0), (0.05, 180.0)  # share of the training, and seconds
_SAME_LENGTH = 0.1  # a warm-up, or a step more or less


class Remarks(Agent):
    """Warns of wrong uses of zeusrun by a script. Each kind of warning is shown once."""

    def __init__(
        self, spec: JobSpec, trial: Trial, earlier: Sequence[Trial], messages: Messages
    ) -> None:
        """Read the script of a job; ``earlier`` are the earlier trials of the job, oldest first."""
        script = read_job_script(spec)
        self._trial, self._messages = trial, messages
        self._find = functools.partial(
            find_remarks,
            stops_at_target=spec.objective.on_target == "stop",
            to_ask_for=find_choices_to_ask_for(spec, script),
            earlier=earlier,
            cores=None if "loader" in spec.parts else len(os.sched_getaffinity(0)),
        )

    def take(self, event: Event) -> None:
        """Warn of a learning-rate schedule with a fixed number of steps."""
        if not isinstance(event, Scheduled):
            return
        if (text := describe_schedule(event, self._trial)) is not None:
            self._messages.warn_once("schedule", text)

    def advance(self, progress: Progress) -> None:
        """Give the warnings that apply to the progress so far."""
        for kind, text in self._find(progress, self._trial).items():
            self._messages.warn_once(kind, text)


def find_remarks(
    progress: Progress,
    trial: Trial,
    *,
    stops_at_target: bool,
    to_ask_for: Collection[str] = (),
    earlier: Sequence[Trial] = (),
    cores: int | None = None,
) -> dict[str, str]:
    """Return the warnings that hold now, by kind; each kind is shown once.

    Args:
        progress: Of the trial.
        trial: The running trial.
        stops_at_target: Whether the job asks to end at the target.
        to_ask_for: The choices that reach the training only if the script asks for them.
        earlier: Trials of the job, oldest first.
        cores: Of this machine; ``None`` if nothing is to be said of waits for data.
    """
    remarks = _observed_remarks(progress, trial)
    untimed = _FROM_THE_START if _is_untimed(progress) else None
    waits = None if cores is None else describe_waits(progress, cores)
    told = {"doubt": progress.doubt, "time": untimed, "waits": waits}
    remarks |= {kind: text for kind, text in told.items() if text is not None}
    metric = trial.metric
    seen = progress.seen.get((metric, progress.source or ""))
    if seen is not None and seen.each_step:
        remarks["each step"] = (
            f"the script logs {metric} in every step of the training, so its values are of one "
            "batch each, and none reaches the target. Name a metric of an evaluation: "
            f"zeusrun show --metrics {trial.trial}"
        )
    elif seen is not None and seen.parts > 1:
        remarks["mean"] = (
            f"the script logs {seen.parts} values of {metric} in an evaluation, and zeusrun "
            "uses their mean. For AUC or F1, that is only near: log one value for each evaluation"
        )
    size = find_batch_size(progress.observed, progress.ranks)
    unasked = set(to_ask_for).difference(progress.asked, [] if size is None else ["batch_size"])
    for name in sorted(unasked) if progress.last_report_t is not None else ():
        remarks[f"never asked for {name}"] = (
            f"the script has never asked for the {name.replace('_', ' ')}, so it seems to train "
            f"with its own. Use run.{_CALLS[name]}(default=...), or pass ${{{name}}} in args"
        )
    if size is None and (text := _compare_epochs(progress, trial, earlier)) is not None:
        remarks["samples an epoch"] = text
    # A library reports training losses before its first evaluation.
    reported = progress.other_epochs or any(source == REPORT for _, source in progress.seen)
    if reported and metric not in progress.seen_metrics:
        remarks["metric"] = (
            f"the first report has no {metric!r}; it has {list_names(progress.seen_metrics)}. If "
            "objective.metric is misspelt, stop and correct it"
        )
    if (text := _reached_at_once(progress, trial, earlier)) is not None:
        remarks["at once"] = text
    if is_continued(progress, trial):
        first = next(point.epoch for point in progress.curve if not is_baseline(point))
        remarks["continued"] = (
            f"the first report is of epoch {first}, but the run has passed over its data less "
            "often: the script has gone on from a checkpoint of another run, so this run teaches "
            "nothing. Keep checkpoints in ${run_dir}, or let the script start anew"
        )
    spawned = progress.ranks.spawned.values()
    started_t = max((each.t for each in spawned), default=progress.now_t)
    settled = progress.now_t - started_t > 1.0 or progress.ranks.scripts_ended  # all have stepped
    arrives = size == trial.global_batch_size
    if settled and (text := describe_spawned(spawned, arrives=arrives)) is not None:
        remarks["spawned"] = text
    reached = progress.reached if progress.listens else None
    late = progress.source != REPORT  # a printed value is read after the next epoch has begun
    if stops_at_target and reached is not None and progress.epochs > reached.epoch + late:
        remarks["trains on"] = _TRAINS_ON
    return remarks


def describe_waits(progress: Progress, cores: int) -> str | None:
    """Return what share of a training waited for data, if other numbers of workers may help."""
    wait_s, time_s, seen = progress.waits_s[0], progress.time_s, progress.observed.get(0)
    if wait_s is None or not time_s or seen is None or seen.workers is None:
        return None
    share = wait_s / time_s
    if not any(share > part and wait_s >= least_s for part, least_s in (_WAITS, _LONG_WAITS)):
        return None
    also = "" if seen.workers else ", from_zero: true"
    workers = f"{seen.workers or 'no'} loader worker{'s' * (seen.workers != 1)}"
    return (
        f"{100 * share:.0f} % of the training waited for data, with {workers} on {cores} "
        f"core{'s' * (cores != 1)}; `loader: {{workers: tune{also}}}` tries other numbers"
    )


def _batch_size_remarks(progress: Progress, trial: Trial) -> dict[str, str]:
    """Return warnings about the batch size that the training uses."""
    remarks, chosen = {}, trial.global_batch_size
    size = find_batch_size(progress.observed, progress.ranks)
    nothing = f"so this run teaches nothing about {chosen}"
    other = size if observed_batch_size(trial, progress) not in {None, chosen} else None
    if (alone := describe_alone(progress.observed)) is not None:
        remarks["alone"] = alone
        if size is not None and size != chosen:
            remarks["batch size"] = f"its ranks train alone, {nothing}"
    elif progress.unapplied and chosen != progress.replaced:
        remarks["batch size"] = (
            f"batch size {chosen} does not reach the training. Nothing is applied, not the "
            "learning rate either (one in args stays as it was passed), "
            f"{nothing}. {_how_to_deliver(progress, trial)}"
        )
    elif other is not None and any(
        e.data and e.data / 2 < other < chosen for e in progress.observed.values()
    ):
        remarks["batch size"] = (
            f"a pass over the data has fewer samples than the {chosen} that zeusrun chose: a step "
            f"has {size}, {nothing}, and no larger one runs from now on. Remove the candidates "
            f"above {size} from batch_size"
        )
    elif other is not None:
        how = describe_steps([progress.observed[rank] for rank in sorted(progress.observed)])
        remarks["batch size"] = (
            f"the script trains with batch size {size} ({how}), not with the {chosen} that zeusrun "
            f"chose, {nothing}. {_how_to_deliver(progress, trial, size)}"
        )
    return remarks


def _observed_remarks(progress: Progress, trial: Trial) -> dict[str, str]:
    """Return warnings about what hooks and sources saw, by kind."""
    remarks = _batch_size_remarks(progress, trial)
    rate, seen = trial.learning_rate, progress.observed.get(0)
    rates = () if seen is None else seen.learning_rates
    arrived = progress.unapplied or any(math.isclose(rate or 0.0, r, rel_tol=1e-6) for r in rates)
    if rate is not None and rates and not arrived:
        remarks["learning rate"] = (
            f"the optimizer was built with learning rate {', '.join(f'{r:g}' for r in rates)}, not "
            f"with the {rate:g} that zeusrun chose. Pass ${{learning_rate}} in args, or write  "
            "learning_rate: {apply: optimizer} with that rate as base; ignore this if the script "
            "scales it on purpose"
        )
    if progress.problems:
        remarks["adapt"] = progress.problems[-1]
    elif adapts(trial.variant) and progress.last_report_t is not None and not progress.adapted:
        remarks["adapt"] = (
            "the batch size does not adapt, because the script does not use run.loader(...), which "
            "makes a data loader whose batch size can change (docs/adapt.md)"
        )
    for hook in progress.hooks:
        if hook.problem is not None:
            remarks[f"hook {hook.library}"] = (
                f"zeusrun's hook does not fit {hook.library} {hook.version} ({hook.problem}), so "
                "it sees nothing there; docs/hooks.md has the versions that were tried. "
                "Call run.report, or name a file or a pattern under metrics (docs/metrics.md)"
            )
    for watched in progress.watched.values():
        if watched.problem is not None:
            what = f"model {watched.model} ({watched.parameters:,} parameters)"
            what = what if watched.parameters else "nothing is measured"
            what = f"model {watched.model} on rank {watched.rank}" if watched.rank else what
            key = f"watch {watched.rank} {watched.model}"
            remarks[key] = f"watch: {what}: {watched.problem}"
    if progress.differs is not None:
        other, value, counted = progress.differs
        remarks["differs"] = (
            f"{other} and {progress.source} report different values of {trial.metric} in one "
            f"epoch, {value:.6g} and {counted:.6g}; {progress.source} counts. To use the other, "
            "name it in metrics.source"
        )
    if progress.went_back is not None:
        before, after = progress.went_back
        remarks["back"] = (
            f"the epoch of {trial.metric} went back from {before} to {after}, and no rank was "
            f"restarted: the new values replace those of epochs {after} to {before}. If the "
            "script counts from the start in every phase, let it report an epoch that only grows"
        )
    return remarks


def _how_to_deliver(progress: Progress, trial: Trial, size: int | None = None) -> str:
    """Return what to write so that the batch size reaches the training; ``size``: what it has."""
    if (count := progress.ranks.trained_by) != trial.world_size:
        return (
            f"Use  launch: {{nproc_per_node: {count}}}  to divide it, or pass "
            f"${{batch_size/{count}}} in args"
        )
    if (replaced := progress.replaced) is None:
        ranks, whole = trial.world_size, ""
        if ranks > 1 and (size or 0) * ranks == trial.global_batch_size:
            whole = " (${batch_size} if the script itself divides it among the ranks)"
        given = f"Pass ${{local_batch_size}} in args{whole}"
        return f"{given}, or write  batch_size: {{apply: dataloader}}"
    for applied in progress.applied:
        if applied.choice == "batch_size" and applied.given != applied.chosen:
            return (
                f"batch_size.apply: dataloader changed the data loader at {applied.where}, but the "
                "training uses another one, or accumulates batches. Pass ${local_batch_size} in "
                "args"
            )
    return (
        f"batch_size.apply: dataloader changes the first data loader with a batch size of "
        f"{replaced // trial.world_size}, which is the share of batch_size.default, and that must "
        "feed the first step. Make the default the batch size of the script, build the loader that "
        "trains first, or pass ${local_batch_size} in args"
    )


def describe_schedule(event: Scheduled, trial: Trial) -> str | None:
    """Return a warning if a schedule is as long as a run of the default, and not as this one."""
    size, default, epochs = trial.global_batch_size, trial.default_batch_size, trial.max_epochs
    per_epoch = event.steps_per_epoch
    steps, share = per_epoch * epochs, event.steps / max(1, per_epoch * epochs)
    if default is None or abs(share - 1) <= _SAME_LENGTH or adapts(trial.variant):
        return None
    # Of an epoch of the default: the last batch of this one may be nearly empty.
    least, most = (
        max(per_epoch - 1, per_epoch / 2) * size / default,
        math.ceil(per_epoch * size / default),
    )
    if not least * (1 - _SAME_LENGTH) <= event.steps / epochs <= most * (1 + _SAME_LENGTH):
        return None
    if share > 1:
        then = f"the run ends after {100 * (1 / share):.0f} % of the schedule"
    else:
        raises = ", where its next step raises an error" * (event.scheduler == "OneCycleLR")
        ends = math.ceil(event.steps / event.steps_per_epoch)
        then = f"the schedule ends in epoch {ends} of {epochs}{raises}"
    return (
        f"{event.scheduler} is set for {event.steps} steps, those of {epochs} epochs with the "
        f"default batch size ({default}); with {size} they have {steps}, so {then}. Let the script "
        "compute the number from the length of its data loader: otherwise each batch size trains "
        "under another schedule"
    )


def _is_untimed(progress: Progress) -> bool:
    """Whether nothing shows when the training began, so that the start of the script counts."""
    trained = len(progress.reports) > 1 or (progress.reports and progress.ranks.scripts_ended)
    marks = progress.built, progress.stepping_s, progress.loop_t
    return bool(trained) and progress.script_t is not None and all(mark is None for mark in marks)


def _reached_at_once(progress: Progress, trial: Trial, earlier: Sequence[Trial]) -> str | None:
    """Return a warning if the first report meets the target, as it does if the mode is wrong."""
    known = any((then.epochs or 0) > 1 and then.mode == trial.mode for then in earlier)
    seen = progress.seen.get((trial.metric, progress.source or ""))
    if not progress.curve or seen is None or progress.ranks.trained_by is None:
        return None  # its steps are not seen
    before = is_baseline(progress.curve[0]) or progress.may_be_baseline
    value = progress.curve[0].value if before else seen.first
    if value is None or not meets_target(value, trial.target, trial.mode):
        return None
    better = "≤" if trial.mode == "min" else "≥"
    if progress.reached is None and before:
        return (
            f"{trial.metric} {value:.4g} {better} {trial.target:g} meets the target before the "
            "first step. It does not count: choose a harder target, or check that the script does "
            "not evaluate a trained model"
        )
    if progress.reached is None or known or trial.preemptions or trial.max_epochs == 1:
        return None
    # An evaluation before training, or one after more than an epoch, says nothing of the mode.
    if before or progress.untrained or progress.by_samples or progress.reached.epoch > 1:
        return None
    return (
        f"the first report already meets the target: {trial.metric} {value:.4g} {better} "
        f"{trial.target:g}. Is objective.mode ({trial.mode}) right?"
    )


def _compare_epochs(progress: Progress, trial: Trial, earlier: Sequence[Trial]) -> str | None:
    """Return a contradiction to the newest run with another batch size; ``None`` if there is none.

    Steps times batch size is the number of samples in an epoch, whatever the batch size. A report
    may come a moment before or after its step, so allow one epoch, and one step for the last batch.
    """
    if adapts(trial.variant) or progress.by_reports or progress.by_samples:
        return None  # its steps have several batch sizes, or a report is no epoch
    again = progress.ranks.generation or trial.preemptions  # then steps count only the last part
    if not progress.steps or progress.epochs < 1 or again:
        return None
    if progress.passes and not progress.observed:
        return None  # what feeds the steps will be observed
    steps, epochs, size = progress.steps, progress.epochs, trial.global_batch_size
    known = ((then, samples_per_epoch(then)) for then in reversed(earlier))
    then, then_samples = next(
        ((then, n) for then, n in known if n is not None and then.global_batch_size != size),
        (trial, None),
    )
    if then_samples is None:
        return None
    then_size = then.global_batch_size
    least = (steps / (epochs + 1) - 1) * size
    largest = (steps / (epochs - 1) + 1) * size if epochs > 1 else math.inf
    if (
        least <= (then_samples + then_size) * _DATA_MAY_GROW
        and largest * _DATA_MAY_GROW >= then_samples - then_size
    ):
        return None
    return (
        f"an epoch takes about {steps / epochs:.0f} steps of batch size {size} now, and took "
        f"{then_samples / then_size:.0f} of {then_size} in {then.trial}: the batch size may not "
        "reach the training. Ignore this if the data have changed or an epoch is a fixed number of "
        "steps"
    )

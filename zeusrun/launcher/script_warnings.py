"""Warnings about how a script uses zeusrun: before it starts, and while it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.bandit.reinterpret import samples_per_epoch
from zeusrun.jobfile.guess.script import Script, module_paths, read_text
from zeusrun.jobfile.placeholders import find_placeholders
from zeusrun.launcher.supervision.outcome import observed_batch_size
from zeusrun.metrics.seen import (
    TESTED,
    describe_alone,
    describe_spawned,
    describe_steps,
    find_batch_size,
    list_names,
)
from zeusrun.sidecar.events import REPORT
from zeusrun.target import likely_mode, meets_target
from zeusrun.trial import adapts, is_baseline

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Scheduled
    from zeusrun.trial import Trial

_TRAINS_ON = (
    "the target was reached, but the script goes on: it does not ask whether to stop. Loop over "
    "`run.epochs(default=...)`, or add `if run.should_stop(): break` after `run.report(...)`; with "
    "objective.on_target: continue the script may go on"
)
_FROM_THE_START = (
    "zeusrun sees neither an optimizer step nor a backward pass of torch, so time, energy and cost "
    "count from the start of the script, imports included. Loop over "
    "`zeusrun.current().epochs(default=...)`, and they count from its first epoch"
)
_HOOKED = {"batch_size": "dataloader", "learning_rate": "optimizer"}
_CALLS = {"batch_size": "local_batch_size", "learning_rate": "learning_rate"}
_DATA_MAY_GROW = 1.25
_SAME_LENGTH = 0.1  # a warm-up, or a step more or less


def find_script_warnings(spec: JobSpec) -> list[str]:
    """Return a sentence for each thing in the job file or the script that will probably go wrong.

    That is a mode that does not fit the metric, each choice that seems never to reach the training,
    and a save that a stop at the target precedes. Nothing is said of a script that cannot be read,
    and of no choice where the script mentions zeusrun.
    """
    script = read_job_script(spec)
    return [
        *_find_wrong_mode(spec),
        *_find_unused_choices(spec, script.text),
        *_find_lost_save(spec, script),
    ]


def _find_wrong_mode(spec: JobSpec) -> Iterator[str]:
    metric, mode = spec.objective.metric, spec.objective.mode
    likely = likely_mode(metric)
    if likely is not None and likely != mode:
        better = "lower" if likely == "min" else "higher"
        written = "is" if "mode" in spec.objective.model_fields_set else "is not written, so it is"
        yield (
            f"objective.mode {written} {mode}, but {better} values of {metric!r} are usually the "
            f"better ones: write  objective: {{mode: {likely}}}, or a poor value meets the target"
        )


def _find_unused_choices(spec: JobSpec, text: str) -> Iterator[str]:
    if text and spec.adapt is not None and ".loader(" not in text:
        yield (
            "the batch size seems not to adapt: the script does not mention run.loader(...), which "
            "makes a data loader whose batch size can change (docs/adapt.md)"
        )
        return
    if not text or "zeusrun" in text:
        return
    per_rank = ' ("${local_batch_size}" if the script means that of each rank)'
    for name in find_undelivered(spec, text):
        share = per_rank if name == "batch_size" and spec.launch.nproc_per_node != 1 else ""
        yield (
            f"the {_readable(name)} seems never to reach the script: the job file has no "
            f"${{{name}}}, and {spec.script or spec.module} mentions neither "
            f"ZEUSRUN_{name.upper()} nor zeusrun. Pass it as an argument, such as  args: "
            f'[--{name.replace("_", "-")}, "${{{name}}}"]{share}, or write  '
            f"{name}: {{apply: {_HOOKED[name]}}}"
        )
    limit, placeholders = spec.batch_size.per_device_max, _placeholders(spec)
    # The hook of transformers splits the batch itself, that of Lightning accumulates micro-batches.
    splits = any("accumulation_steps" in name for name in placeholders)
    splits |= "transformers" in text or "ZEUSRUN_ACCUMULATION_STEPS" in text
    splits |= "lightning" in text and "micro_batch_size" in placeholders
    if limit is not None and not splits:
        yield (
            f"batch_size.per_device_max ({limit}) seems to have no effect: the job file has no "
            "${accumulation_steps}. Pass ${micro_batch_size} and ${accumulation_steps} as "
            "arguments, or call run.micro_batch_size(default=...) and run.accumulation_steps() in "
            "the script"
        )


def _find_lost_save(spec: JobSpec, script: Script) -> Iterator[str]:
    if spec.objective.on_target == "stop" and script.late_save is not None:
        yield (
            f"line {script.late_save} of {spec.script or spec.module} saves after the training "
            "loop, but the run is stopped within the loop when it reaches the target, and nothing "
            "is saved then. Write  objective: {on_target: continue}, and all epochs run; or loop "
            "over zeusrun.current().epochs(default=...), which ends at the target, and the script "
            "saves"
        )


def find_undelivered(spec: JobSpec, text: str) -> list[str]:
    """Return the choices that reach a script of this text only by a call of zeusrun."""
    placeholders, batch, rate = _placeholders(spec), spec.batch_size, spec.learning_rate
    sizes = {"batch_size", "local_batch_size", "micro_batch_size"}
    taken = bool(placeholders & sizes) or "ZEUSRUN_MICRO_BATCH_SIZE" in text
    choices = {
        "batch_size": len(batch.candidates) > 1 and batch.apply != "dataloader" and not taken,
        "learning_rate": rate is not None
        and rate.apply != "optimizer"
        and "learning_rate" not in placeholders,
    }
    return [name for name in choices if choices[name] and f"ZEUSRUN_{name.upper()}" not in text]


def find_choices_to_ask_for(spec: JobSpec, script: Script) -> frozenset[str]:
    """Return the choices that reach the training only if the script asks ``zeusrun`` for them."""
    asks = spec.instrument and "zeusrun" in script.text
    return frozenset(find_undelivered(spec, script.text) if asks else ())


def _readable(name: str) -> str:
    return name.replace("_", " ")


def _placeholders(spec: JobSpec) -> set[str]:
    texts = [*spec.args, *spec.env.values(), spec.script or "", str(spec.workdir)]
    return {name for text in texts for name in find_placeholders(text)}


def read_job_script(spec: JobSpec) -> Script:
    """Return the script or module of a job; its text is empty if it is not found or is no text."""
    if spec.script is None:
        paths = module_paths(Path(str(spec.workdir)), str(spec.module))
    else:
        path = spec.source.parent / spec.script
        paths = (path, path / "__main__.py")
    known = spec.script is None or not find_placeholders(spec.script)
    return Script(read_text(*paths) if known else "", spec.args)


def find_remarks(
    progress: Progress,
    trial: Trial,
    *,
    stops_at_target: bool,
    to_ask_for: Collection[str] = (),
    earlier: Sequence[Trial] = (),
    spawns: bool = False,
) -> dict[str, str]:
    """Return the warnings that hold now, by kind; each kind is shown once.

    Args:
        progress: Of the trial.
        trial: The running trial.
        stops_at_target: Whether the job asks to end at the target.
        to_ask_for: The choices that reach the training only if the script asks for them.
        earlier: Trials of the job, oldest first.
        spawns: Whether the script always starts processes itself; see ``Script.spawns``.
    """
    remarks = _observed_remarks(progress, trial, spawns=spawns)
    untimed = _FROM_THE_START if _is_untimed(progress) else None
    told = {"doubt": progress.doubt, "time": untimed}
    remarks |= {kind: text for kind, text in told.items() if text is not None}
    metric = trial.metric
    seen = progress.seen.get((metric, progress.source or ""))
    if seen is not None and seen.each_step:
        remarks["each step"] = (
            f"the script logs {metric} in every step of the training, so its values are of one "
            "batch each, and none reaches the target. Name a metric of an evaluation: "
            f"zeusrun metrics {trial.trial}"
        )
    elif seen is not None and seen.parts > 1:
        remarks["mean"] = (
            f"the script logs {seen.parts} values of {metric} in an evaluation; their mean, "
            "weighted by samples where these are known, is its value. For metrics such as AUC and "
            "F1 that is only near: then log one value for each evaluation"
        )
    size = find_batch_size(progress.observed, progress.ranks)
    unasked = set(to_ask_for).difference(progress.asked, [] if size is None else ["batch_size"])
    for name in sorted(unasked) if progress.last_report_t is not None else ():
        remarks[f"never asked for {name}"] = (
            f"the script has never asked for the {_readable(name)}, so it seems to train with its "
            f"own. Use run.{_CALLS[name]}(default=...), or pass ${{{name}}} in args"
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
    spawned = progress.ranks.spawned.values()
    started_t = max((each.t for each in spawned), default=progress.now_t)
    settled = progress.now_t - started_t > 1.0 or progress.ranks.scripts_ended  # all have stepped
    arrives = size == trial.global_batch_size
    if settled and (text := describe_spawned(spawned, always=spawns, arrives=arrives)) is not None:
        remarks["spawned"] = text
    reached = progress.reached if progress.listens else None
    if stops_at_target and reached is not None and progress.epochs > reached.epoch:
        remarks["trains on"] = _TRAINS_ON
    return remarks


def _batch_size_remarks(progress: Progress, trial: Trial, *, spawns: bool) -> dict[str, str]:
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
            f"learning rate either, {nothing}. {_how_to_deliver(progress, trial)}"
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
            f"chose, {nothing}. {_how_to_deliver(progress, trial, size, spawns=spawns)}"
        )
    return remarks


def _observed_remarks(progress: Progress, trial: Trial, *, spawns: bool) -> dict[str, str]:
    """Return warnings about what hooks and sources saw, by kind."""
    remarks = _batch_size_remarks(progress, trial, spawns=spawns)
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
                f"it sees nothing there; it was tried with {TESTED.get(hook.library, 'others')}. "
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


def _how_to_deliver(
    progress: Progress, trial: Trial, size: int | None = None, *, spawns: bool = False
) -> str:
    """Return what to write so that the batch size reaches the training; ``size``: what it has."""
    times, rest = divmod(size or 0, trial.global_batch_size)
    if spawns and times > 1 and not rest:
        default = times * (trial.default_batch_size or trial.global_batch_size)
        return f"Pass ${{batch_size/{times}}} in args, and make {default} the default"
    if progress.ranks.trained_by != trial.world_size:
        return f"Use  launch: {{nproc_per_node: {progress.ranks.trained_by}}}  to divide it"
    if (replaced := progress.replaced) is None:
        return "Pass ${local_batch_size} in args, or write  batch_size: {apply: dataloader}"
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
    own = event.steps_per_epoch
    steps, share = own * epochs, event.steps / max(1, own * epochs)
    if default is None or abs(share - 1) <= _SAME_LENGTH or adapts(trial.variant):
        return None
    # Of an epoch of the default: the last batch of this one may be nearly empty.
    least, most = max(own - 1, own / 2) * size / default, math.ceil(own * size / default)
    if not least * (1 - _SAME_LENGTH) <= event.steps / epochs <= most * (1 + _SAME_LENGTH):
        return None
    if share > 1:
        then = f"the run ends after {1 / share:.0%} of the schedule"
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
    marked = progress.built or progress.stepping_s is not None or progress.loop_t is not None
    return bool(trained) and progress.script_t is not None and not marked


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

"""Warnings about a script before it starts. ``supervision/remarks.py`` warns while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.script import Script, module_paths, read_text
from zeusrun.jobfile.placeholders import find_placeholders
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.jobfile.spec import JobSpec

_HOOKED = {"batch_size": "dataloader", "learning_rate": "optimizer"}


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
    if not text:
        return
    of_parts = [part.warn_of(text) for part in spec.parts.values()]
    yield from filter(None, of_parts)
    if any(of_parts) or "zeusrun" in text:
        return
    per_rank = ' ("${local_batch_size}" if the script means that of each rank)'
    for name in find_undelivered(spec, text):
        share = per_rank if name == "batch_size" and spec.launch.nproc_per_node != 1 else ""
        yield (
            f"the {name.replace('_', ' ')} seems never to reach the script: the job file has no "
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

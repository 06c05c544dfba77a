"""Warnings about a job file: choices that never reach the script, a default that changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.jobfile.placeholders import find_placeholders

if TYPE_CHECKING:
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission

_MAX_SCRIPT_BYTES = 1 << 20
_FORMER_PROCESSES = 2  # the default of launch.nproc_per_node before it was torchrun's own


def find_warnings(submission: Submission) -> list[str]:
    """Return what a submit warns of before it starts anything.

    Raises:
        HistoryError: If the history cannot be read.
    """
    spec = submission.spec
    warnings = find_unused_choices(spec)
    last = submission.history.trials(spec.name, 1)
    if (
        "nproc_per_node" not in spec.launch.model_fields_set
        and last
        and (last[0].world_size, submission.world_size) == (_FORMER_PROCESSES, 1)
    ):
        warnings.append(
            f"this run has 1 process, the last one had {_FORMER_PROCESSES}: the job file has no "
            "launch.nproc_per_node, which is now 1 by default, as for torchrun. To keep "
            f"{_FORMER_PROCESSES}, add  launch: {{nproc_per_node: {_FORMER_PROCESSES}}}"
        )
    return warnings


def find_unused_choices(spec: JobSpec) -> list[str]:
    """Return a warning for each choice that seems never to reach the training.

    Then zeusrun would compare batch sizes that the script does not use. Only the job file and the
    text of the script are searched. A script that mentions zeusrun or cannot be read gets no
    warning.
    """
    text = _script_text(spec)
    if text is None or "zeusrun" in text:
        return []
    return [
        f"the {choice} seems never to reach the script: the job file has no ${{{name}}}, and "
        f"{spec.script or spec.module} mentions neither ZEUSRUN_{name.upper()} nor zeusrun. Pass "
        f'it as an argument, such as  args: [--{name.replace("_", "-")}, "${{{name}}}"]'
        for name, choice in _undelivered(spec, text).items()
    ]


def find_choices_to_ask_for(spec: JobSpec) -> frozenset[str]:
    """Return the choices that reach the training only if the script asks ``zeusrun`` for them.

    Empty for a script that cannot be read or does not mention zeusrun.
    """
    text = _script_text(spec) if spec.instrument else None
    if text is None or "zeusrun" not in text:
        return frozenset()
    return frozenset(_undelivered(spec, text))


def _undelivered(spec: JobSpec, script: str) -> dict[str, str]:
    """Return the choices that only a call of zeusrun can deliver, with their names for people."""
    texts = [*spec.args, *spec.env.values(), spec.script or "", str(spec.workdir)]
    placeholders = {name for text in texts for name in find_placeholders(text)}
    choices = {}
    sizes = {"batch_size", "local_batch_size"}
    if len(spec.batch_size.candidates) > 1 and not placeholders & sizes:
        choices["batch_size"] = "batch size"
    if spec.learning_rate is not None and "learning_rate" not in placeholders:
        choices["learning_rate"] = "learning rate"
    return {name: what for name, what in choices.items() if f"ZEUSRUN_{name.upper()}" not in script}


def _script_text(spec: JobSpec) -> str | None:
    """Return the text of the script or module; ``None`` if it is not found or is no text."""
    for path in _script_paths(spec):
        try:
            if path.is_file():  # reading a pipe would block
                with path.open("rb") as file:
                    return file.read(_MAX_SCRIPT_BYTES).decode()
        except (OSError, ValueError):  # not readable, or no text
            continue
    return None


def _script_paths(spec: JobSpec) -> list[Path]:
    if spec.script is not None:
        return [] if find_placeholders(spec.script) else [spec.source.parent / spec.script]
    folder = Path(str(spec.workdir), *str(spec.module).split("."))
    return [folder.with_suffix(".py"), folder / "__main__.py"]

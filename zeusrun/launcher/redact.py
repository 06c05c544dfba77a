"""Keeps the secrets of a job out of what zeusrun shows and records."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError
from zeusrun.jobfile.placeholders import expand_placeholders, literal_parts
from zeusrun.jobfile.secrets import load_secrets, unescaped
from zeusrun.launcher.events import Noted, Printed, Warned
from zeusrun.redaction import MASK, Mask, mask_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Emit, SubmitEvent
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Outcome

_COPIED_FROM = "# copied from "


def restore_secrets(spec: JobSpec, environment: Mapping[str, str]) -> JobSpec:
    """Return the job with its masked values from the environment; raises ``JobFileError``."""
    masked = sorted(name for name in spec.secrets if spec.env[name] == MASK)
    if not masked:
        return spec
    missing = [name for name in masked if name not in environment]
    if missing:
        raise JobFileError(
            f"{spec.source}: this copy of the job file has {MASK} in place of "
            f"{', '.join(missing)}; set {'it' if len(missing) == 1 else 'them'} in the "
            "environment, or submit the original job file"
        )
    others = [value for name, value in spec.env.items() if name not in spec.secrets]
    if any(MASK in text for text in (*spec.args, *others)):
        raise JobFileError(
            f"{spec.source}: this copy of the job file has {MASK} in place of a secret in an "
            "argument or another variable; submit the original job file"
        )
    found = {name: environment[name].replace("$", "$$") for name in masked}
    return spec.model_copy(update={"env": MappingProxyType({**spec.env, **found})})


def mask_job(spec: JobSpec, values: Mapping[str, str]) -> Mask:
    """Return the mask of a job's secrets, with placeholders and with their ``values``."""
    written = [spec.env[name] for name in sorted(spec.secrets)]
    return mask_values([*written, *(expand_placeholders(text, values) for text in written)])


def copy_job(spec: JobSpec) -> bytes:
    """Return the copy of a job file for a run directory: secrets masked, and its origin."""
    return f"{_COPIED_FROM}{json.dumps(str(spec.source))}\n{spec.to_yaml()}".encode()


def mask_run(paths: RunPaths, environment: Mapping[str, str]) -> Mask:
    """Return the mask of the secrets of a run, by the values that are known now.

    They come from the job file that the run was submitted with and from environment variables of
    the same names. The values of placeholders are unknown, so the parts around them are masked.
    """
    sources = [environment]
    try:
        names = load_secrets(paths.job_copy)
        first, _, _ = paths.job_copy.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError, JobFileError):
        return Mask()
    with contextlib.suppress(ValueError, TypeError, JobFileError):  # another copy; no such file
        sources.append(load_secrets(Path(json.loads(first.removeprefix(_COPIED_FROM)))))
    values = [source[name] for source in sources for name in names if name in source]
    known = [value for value in values if value != MASK]
    return mask_values(
        form for value in known for form in (*unescaped(value), *literal_parts(value))
    )


def mask_outcome(outcome: Outcome, mask: Mask) -> Outcome:
    """Return an outcome whose texts hold no secret."""
    return replace(
        outcome,
        reason=mask.cut_text(outcome.reason),
        warnings=tuple(mask.cut_text(text) for text in outcome.warnings),
    )


def mask_events(emit: Emit, mask: Mask) -> Emit:
    """Return a function that takes the secrets out of each event before it passes it on."""
    if not mask:
        return emit

    def masked(event: SubmitEvent) -> None:
        if isinstance(event, (Noted, Warned)):
            event = replace(event, text=mask.text(event.text))
        elif isinstance(event, Printed):
            event = replace(event, lines=tuple(mask.text(line) for line in event.lines))
        emit(event)

    return masked

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
from zeusrun.jobfile.secrets import Secret, load_secrets, unescaped
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
    masked = {path for path, secret in spec.secrets.items() if MASK in secret.parts}
    if places := sorted(place for section, place in masked if section == "args"):
        raise JobFileError(
            f"{spec.source}: this copy of the job file has {MASK} in place of "
            f"{', '.join(f'args[{place}]' for place in places)}; submit the original job file. "
            "There, write such an argument as {secret_file: PATH}, or as {plain: TEXT} if it is "
            "not secret, so that later runs can be repeated"
        )
    if not masked:
        return spec
    names = sorted(str(name) for _, name in masked)
    if missing := [name for name in names if name not in environment]:
        raise JobFileError(
            f"{spec.source}: this copy of the job file has {MASK} in place of "
            f"{', '.join(missing)}; set {'it' if len(missing) == 1 else 'them'} in the "
            "environment, or submit the original job file"
        )
    found = {name: environment[name].replace("$", "$$") for name in names}
    secrets = {("env", name): Secret((text,)) for name, text in found.items()}
    env = MappingProxyType({**spec.env, **found})
    return spec.model_copy(update={"env": env, "secrets": {**spec.secrets, **secrets}})


def mask_job(spec: JobSpec, values: Mapping[str, str]) -> Mask:
    """Return the mask of a job's secrets, with placeholders and with their ``values``."""
    written = [part for secret in spec.secrets.values() for part in secret.parts]
    return mask_values([*written, *(expand_placeholders(text, values) for text in written)])


def copy_job(spec: JobSpec) -> bytes:
    """Return the copy of a job file for a run directory: secrets masked, and its origin."""
    return f"{_COPIED_FROM}{json.dumps(str(spec.source))}\n{spec.to_yaml()}".encode()


def mask_run(paths: RunPaths, environment: Mapping[str, str]) -> Mask:
    """Return the mask of the secrets of a run, by the values that are known now.

    They come from the job file that the run was submitted with, from the files that it names, and
    from environment variables of the same names. The values of placeholders are unknown, so the
    parts around them are masked.
    """
    try:
        secrets = [load_secrets(paths.job_copy)]
        first, _, _ = paths.job_copy.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError, JobFileError):
        return Mask()
    with contextlib.suppress(ValueError, TypeError, JobFileError):  # another copy; no such file
        secrets.append(load_secrets(Path(json.loads(first.removeprefix(_COPIED_FROM)))))
    names = {str(name) for each in secrets for section, name in each if section == "env"}
    parts = {part for each in secrets for secret in each.values() for part in secret.parts}
    forms = {form for part in parts for form in (*unescaped(part), *literal_parts(part))}
    return mask_values({*forms, *(environment.get(name, "") for name in names)})


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

"""The secrets of a job, on this side of torchrun: taken out of what is shown and recorded."""

from __future__ import annotations

import os
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError
from zeusrun.jobfile.placeholders import expand_placeholders
from zeusrun.launcher.events import Noted, Printed, Warned
from zeusrun.launcher.rundir.failure import Failure
from zeusrun.redaction import MASK, mask_values

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Emit, SubmitEvent
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.redaction import Mask
    from zeusrun.trial import Outcome

_CHUNK = 1 << 20


def restore_secrets(spec: JobSpec, environment: Mapping[str, str]) -> JobSpec:
    """Return a job read from a masked copy with its secrets taken from the environment.

    Args:
        spec: The job; one without masked values is returned as it is.
        environment: Where a variable of the same name may be.

    Raises:
        JobFileError: If one is not there, or an argument held a secret.
    """
    masked = sorted(name for name in spec.secrets if spec.env[name] == MASK)
    if not masked:
        return spec
    missing = [name for name in masked if name not in environment]
    if missing:
        raise JobFileError(
            f"{spec.source}: holds only the masks of secrets; set {', '.join(missing)} in the "
            "environment, or use the job file itself"
        )
    others = [value for name, value in spec.env.items() if name not in spec.secrets]
    if any(MASK in text for text in (*spec.args, *others)):
        raise JobFileError(
            f"{spec.source}: an argument or another variable held a secret and was masked; use the "
            "job file itself"
        )
    found = {name: environment[name].replace("$", "$$") for name in masked}
    return spec.model_copy(update={"env": MappingProxyType({**spec.env, **found})})


def mask_job(spec: JobSpec, values: Mapping[str, str]) -> Mask:
    """Return the mask of a job's secrets, as written and as its script gets them.

    Args:
        spec: The job.
        values: What its placeholders stand for.
    """
    written = [spec.env[name] for name in sorted(spec.secrets)]
    return mask_values([*written, *(expand_placeholders(text, values) for text in written)])


def mask_outcome(outcome: Outcome, mask: Mask) -> Outcome:
    """Return an outcome whose texts hold no secret."""
    if not mask:
        return outcome
    reason = mask.cut_text(outcome.reason)
    # Made anew: numbers had been taken out of a secret, so that it would not be found.
    cause = Failure(None, out_of_memory=False, reason=reason).cause
    return replace(
        outcome,
        reason=reason,
        cause=None if outcome.cause is None else cause,
        warnings=tuple(mask.cut_text(text) for text in outcome.warnings),
    )


def mask_logs(paths: RunPaths, mask: Mask) -> list[str]:
    """Overwrite the secrets in the logs of a run that has ended; return what could not be done.

    What Python prints in a rank is masked before. Child processes, C libraries and torchrun, which
    prints the errors of ``@record``, write to the logs themselves.
    """
    problems = []
    for path in sorted(paths.logs.glob("*.log")) if mask else ():
        try:
            _mask_file(path, mask)
        except OSError as error:
            problems.append(f"{path} may hold secrets, and cannot be masked: {error.strerror}")
    return problems


def _mask_file(path: Path, mask: Mask) -> None:
    """Write stars over secrets, in place: that takes no room and moves nothing that is read."""
    pieces = [piece.encode(errors="surrogateescape") for piece in mask.pieces]
    longest = max(map(len, pieces))
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        offset = 0
        while data := os.pread(descriptor, _CHUNK + longest - 1, offset):
            for piece in pieces:
                at = data.find(piece)
                while at != -1:
                    os.pwrite(descriptor, b"*" * len(piece), offset + at)
                    at = data.find(piece, at + len(piece))
            offset += _CHUNK
    finally:
        os.close(descriptor)


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

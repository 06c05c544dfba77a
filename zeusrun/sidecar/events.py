"""The events that ranks append to ``metrics.jsonl``, the sidecar.

One JSON object a line, ``{"v": 1, "event": ..., "t": ..., ...}``. Each is one ``write`` with
``O_APPEND``, so lines of several ranks do not mix on a local file system. ``t`` is
``time.monotonic()`` of the host that wrote it. ``RunObserver`` alone compares it with the clock of
the launcher, and corrects it; all that comes after that has the launcher's time.
"""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.files.private import open_for_writing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SIDECAR_NAME = "metrics.jsonl"
ADAPT_STATE = "adapt.json"
"""The file of the run directory with the state of a batch size that adapts."""

SYNC_STATE = "sync.json"
"""The file of the run directory with the backward passes of models that change how they agree."""

_VERSION = 1


@dataclass(frozen=True)
class Started:
    """A rank is about to run the script; ``restart`` counts torchrun's restarts."""

    t: float
    rank: int
    pid: int
    restart: int = 0


@dataclass(frozen=True)
class Asked:
    """The script asked for the first time: for ``batch_size``, ``learning_rate``, or ``stop``."""

    t: float
    choice: str


REPORT = "report"
"""The source of what a script reports itself, by ``run.report``."""


@dataclass(frozen=True)
class Reported:
    """Rank 0 reported metrics after an epoch; values may be NaN or infinite.

    Attributes:
        t: When; of an evaluation, its last value.
        epoch: Epochs completed.
        source: ``report``, or the library whose hook saw them.
        parts: How many values of one evaluation were logged; each metric is their mean.
        each_step: Whether they are logged in every step, so that they are no results.
        samples: What the optimizer steps of all ranks consumed before; ``None`` if unknown.
        counted: Whether the epoch is only the number of the report, because none is known.
        steps: Optimizer steps before it; ``None`` where they are not seen.
    """

    t: float
    epoch: int
    metrics: Mapping[str, float]
    source: str = REPORT
    parts: int = 1
    each_step: bool = False
    samples: int | None = None
    counted: bool = False
    steps: int | None = None


@dataclass(frozen=True)
class Hooked:
    """The script has imported a library that zeusrun has a hook for.

    ``problem``: why the hook does not fit, so that the library is not observed; else ``None``.
    """

    t: float
    library: str
    version: str
    problem: str | None = None


@dataclass(frozen=True)
class Loading:
    """Rank 0 asks a data loader for the first batch of the script; it is written once."""

    t: float


@dataclass(frozen=True)
class Built(Loading):
    """Rank 0 has built an optimizer of torch, whose steps are seen; it is written once.

    ``optimizer``: its class.
    """

    optimizer: str = ""


@dataclass(frozen=True)
class Observed:
    """What a rank saw of its training: the loader that feeds its optimizer steps.

    Attributes:
        rank: Which.
        samples: Of this rank in one optimizer step; ``None`` if they cannot be counted.
        batches: Of the loader in one optimizer step: gradient accumulation.
        replicas: Among how many ranks its sampler divides the data; ``None`` if it does not say.
        learning_rates: Of the optimizer's parameter groups, without what a scheduler does to them.
        alone: Whether it is one of several ranks, and trains a model of its own.
        data: Samples of the training data; ``None`` if unknown, as of a stream.
        length: Batches in a pass over the loader; ``None`` if unknown.
        step: Optimizer steps of this rank so far.
        workers: Worker processes of the loader; ``None`` if unknown.
    """

    t: float
    rank: int
    samples: int | None
    batches: int
    replicas: int | None = None
    learning_rates: tuple[float, ...] = ()
    alone: bool = False
    data: int | None = None
    length: int | None = None
    step: int = 0
    workers: int | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in a pass over the loader; ``None`` if unknown."""
        return None if self.length is None else math.ceil(self.length / max(1, self.batches))


@dataclass(frozen=True)
class Applied:
    """A hook replaced what the script gave to a data loader or an optimizer by zeusrun's choice.

    ``choice``: ``batch_size`` (of one rank) or ``learning_rate``; ``where``: file and line. If
    ``chosen`` is ``given``, the script's own stays; with an empty ``where``, nothing has taken it.
    """

    t: float
    choice: str
    given: float
    chosen: float
    where: str

    def describe(self) -> str:
        """Return it for people: ``train.py:4: learning rate changed from 0.1 to 0.2``."""
        if not self.where:
            return "the batch size is not applied: it does not feed the first step"
        name = "batch size of each rank" if self.choice == "batch_size" else "learning rate"
        if self.given == self.chosen:
            return f"{self.where}: {name} {self.given:g}, as in the script"
        return f"{self.where}: {name} changed from {self.given:g} to {self.chosen:g}"


@dataclass(frozen=True)
class Scheduled:
    """Rank 0 has a learning-rate scheduler of a fixed length, which steps with the optimizer.

    Attributes:
        scheduler: Its class.
        steps: Optimizer steps after which its schedule is over.
        steps_per_epoch: Optimizer steps in a pass over the training data.
    """

    t: float
    scheduler: str
    steps: int
    steps_per_epoch: int


@dataclass(frozen=True)
class Watched:
    """Rank 0 measured the gradients of a model; what is not known yet is absent.

    Another rank only reports a problem of its own.

    Attributes:
        model: Which of the script's models, from 0.
        parameters: How many numbers it has.
        values: By name: ``noise_scale``, in samples, and the ends of its range, with the suffixes
            ``_low`` and ``_high``; ``gradient_variance``, of one of the gradients. All are of
            moving averages.
        how: How the noise scale was measured: ``ranks`` or ``micro_batches``.
        problem: Why it, or a part of what was asked for, cannot be measured; else ``None``.
        samples: That the optimizer had consumed in the middle of what is averaged; ``None`` if
            unknown.
    """

    t: float
    model: int
    parameters: int
    values: Mapping[str, float]
    how: str = "ranks"
    problem: str | None = None
    rank: int = 0
    samples: int | None = None


@dataclass(frozen=True)
class Adapted:
    """The batch size of a training that adapts it: the first one, and each change.

    Attributes:
        step: Optimizer steps before it.
        epoch: The present one, from 1.
        learning_rate: Of the first parameter group, from now on; ``None`` before the first step.
        why: A sentence for people.
        problem: Why the policy could not decide, so that the batch size stays; else ``None``.
    """

    t: float
    step: int
    epoch: int
    batch_size: int
    learning_rate: float | None
    why: str
    problem: str | None = None


@dataclass(frozen=True)
class Synced:
    """The ranks agree in another way from now on.

    Attributes:
        step: Optimizer steps before it.
        how: The way, such as ``bf16``.
        why: A sentence for people.
        problem: Why they do not agree as the job file says; else ``None``.
    """

    t: float
    step: int
    how: str
    why: str
    problem: str | None = None


@dataclass(frozen=True)
class LoaderWorkers:
    """The loader of the training has another number of workers, or what was measured with it.

    Attributes:
        t: When it got them; the same in what is measured later.
        workers: How many.
        stays: Whether they stay from pass to pass.
        step_s: Seconds that a step took with them, evaluations not included; ``None``: not yet.
        wait: The share of that time that waited for batches.
        died: Whether one of them died.
        settled: The limits of the search that has ended with them; ``None``: it has not.
        problem: Why the number stays, or is that of the script again; else ``None``.
    """

    t: float
    workers: int
    stays: bool
    step_s: float | None = None
    wait: float | None = None
    died: bool = False
    settled: str | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Regrouped:
    """The ranks of an elastic training have changed; rank 0 of those that train now says so.

    Attributes:
        number: Of the generation.
        members: The numbers of the processes, in the order of their ranks.
        why: A sentence for people.
        since_t: When they were ordered, or one was lost; ``None``: the training starts.
        paused_s: How long those that stay have paused; ``None`` if none stays.
        before: Ranks before; 0 if none stays.
        step: Optimizer steps before it.
    """

    t: float
    number: int
    members: tuple[int, ...]
    why: str
    since_t: float | None = None
    paused_s: float | None = None
    before: int = 0
    step: int = 0


@dataclass(frozen=True)
class Spawned:
    """A process that the script has started, or a rank beside such ones, made its first step.

    ``world_size``: of its process group, 1 without one; ``None`` if unknown. ``followed``: whether
    hooks see its steps and its part of each batch.
    """

    t: float
    pid: int
    world_size: int | None = None
    followed: bool = False


@dataclass(frozen=True)
class Ended:
    """The script of a rank ended with ``code``.

    ``grouped``: whether the rank was seen in a process group of ``torch.distributed``.
    """

    t: float
    rank: int
    code: int
    grouped: bool = True


_OfProcess: TypeAlias = Started | Loading | Built | Observed | Regrouped | Spawned | Ended
_OfTraining: TypeAlias = (
    Asked | Reported | Hooked | Applied | Scheduled | Watched | Adapted | Synced | LoaderWorkers
)
Event: TypeAlias = _OfProcess | _OfTraining


def encode_event(event: Event) -> bytes:
    """Return the event as one line of strict JSON, newline included."""
    record: dict[str, Any] = {"v": _VERSION, "event": type(event).__name__.lower(), **vars(event)}
    if isinstance(event, Reported):
        # Strict JSON has no NaN: it is written as a string, which float() reads.
        record["metrics"] = {
            name: value if math.isfinite(value) else str(value)
            for name, value in event.metrics.items()
        }
        for name in ("parts", "each_step", "samples", "counted", "steps"):
            if record[name] == getattr(Reported, name):
                del record[name]
    # A name may have a lone surrogate, which UTF-8 cannot hold.
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"


class EventWriter:
    """Appends events to a sidecar; several processes may share its path."""

    def __init__(self, path: Path | str) -> None:
        self._descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._torn = False

    def write(self, event: Event) -> None:
        """Append one event.

        Raises:
            OSError: If the file system refuses.
        """
        line = (b"\n" if self._torn else b"") + encode_event(event)
        written = os.write(self._descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def append_event(path: Path | str, event: Event) -> None:
    """Append one event; raises ``OSError`` if the file system refuses."""
    writer = EventWriter(path)
    writer.write(event)
    writer.close()

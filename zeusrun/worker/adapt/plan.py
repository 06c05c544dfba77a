"""What a batch size that adapts begins with: the job file's section, and the state of a restart."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol

from zeusrun.files.atomic import replace_file
from zeusrun.files.private import read_file
from zeusrun.worker.adapt.policies import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.sidecar.events import Event

_MAX_BYTES = 1 << 24


class Run(Protocol):
    """What of a ``RunContext`` is needed here."""

    rank: int
    world_size: int

    @property
    def epoch(self) -> int | None:
        """The present epoch, from 1; ``None`` if the script does not say it."""

    @property
    def adaptation_state(self) -> Path | None:
        """The file for the state."""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the ranks did so before torchrun restarted them."""

    def accumulation_steps(self, default: int = 1) -> int:
        """Return the micro-batches in the first optimizer step."""

    def micro_batch_size(self, default: int) -> int:
        """Return their samples."""

    def record_on_0(self, event: Event) -> None:
        """Write an event on rank 0."""


@dataclass(frozen=True)
class Plan:
    """The section ``adapt`` of the job file."""

    policies: tuple[str, ...]
    interval: int
    unit: str  # epoch or step
    limits: Limits
    learning_rate: str
    betas: str

    @classmethod
    def read(cls, text: str) -> Plan:
        """Read what the launcher wrote into ``ZEUSRUN_ADAPT``."""
        asked = json.loads(text)
        limits = Limits(
            asked["min"],
            asked["max"],
            asked["growth"],
            per_device_max=asked["per_device_max"],
            schedule=tuple(map(tuple, asked["schedule"])),
        )
        policies, interval, unit = tuple(asked["policies"]), asked["interval"], asked["unit"]
        return cls(policies, interval, unit, limits, asked["learning_rate"], asked["betas"])


@dataclass
class State:
    """What a restart goes on with.

    Attributes:
        changes: Epoch and batch size of the first step and of each change.
        step: Optimizer steps.
        samples: Over all ranks.
        first_noise_scale: At the first decision that had one.
        epoch_sums: The noise scale summed over the steps of the last two epochs.
        highest: The highest learning rate of the script's schedule.
        factor: By what the learning rate is multiplied.
        most: The largest batch size that fits in memory; ``None``: none has been too large.
    """

    changes: list[tuple[int, int]] = field(default_factory=list)
    step: int = 0
    samples: int = 0
    first_noise_scale: float | None = None
    epoch_sums: list[float] = field(default_factory=list)
    highest: float = 0.0
    factor: float = 1.0
    most: int | None = None


def write_state(path: Path | None, state: State, first: int) -> None:
    """Write the state of a run that began with a batch size; a disk that refuses is no matter."""
    if path is not None:
        with contextlib.suppress(OSError):  # it must not end the training
            content = {"first": first, **asdict(state)}
            replace_file(path, json.dumps(content).encode(), durable=False)


def read_state(
    path: Path | None, first: int, epoch: int | None, *, ran_out: bool = False
) -> State | None:
    """Return the state up to the epoch at which a run resumes; ``None`` if it begins anew.

    A script that resumes at its first epoch has no checkpoint. If it does not say the epoch
    (``None``), all changes hold. The state of a run that began with another batch size is of no
    use. If the last start ``ran_out`` of memory, it goes back to what fitted.

    Raises:
        ValueError: If there is a file, and it is no such state.
    """
    if path is None:
        return None
    try:
        content = json.loads(read_file(path, _MAX_BYTES))
        began = content.pop("first")
        state = State(**content)
        state.changes = [(e, size) for e, size in state.changes]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not _is_sound(state):
        raise ValueError("it has values that cannot be")
    if began != first:
        return None
    sizes = [size for _, size in state.changes]
    if ran_out and sizes and sizes[-1] > first:
        state.most = max((size for size in sizes if size < sizes[-1]), default=first)
    begins_anew, most = epoch == 1, state.most or math.inf
    state.changes = [
        (e, size)
        for e, size in state.changes
        if e <= (epoch or e) and size <= most and not begins_anew
    ]
    if state.changes:
        return state
    return None if state.most is None else State(most=state.most)


def _is_sound(state: State) -> bool:
    """Whether each value of a state from a file has its type, and a size that it may have."""
    counts = [state.step, state.samples, *(number for change in state.changes for number in change)]
    scales = [0.0 if state.first_noise_scale is None else state.first_noise_scale]
    if not isinstance(state.epoch_sums, list):
        return False
    scales += [*state.epoch_sums, state.highest, state.factor]
    return (
        all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
        and all(type(scale) in {int, float} and 0 <= scale < math.inf for scale in scales)
        and all(epoch and size for epoch, size in state.changes)
        and state.factor > 0
        and (state.most is None or (type(state.most) is int and state.most > 0))
    )

"""The state with which a restart continues: a file in the run directory, read by rank 0."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.files.private import read_file, replace_file
from zeusrun.sidecar.events import ADAPT_STATE
from zeusrun.worker.environment import from_all_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.environment import WorkerEnvironment

_MAX_BYTES = 1 << 24


@dataclass
class AdaptationState:
    """What a restart continues with.

    Attributes:
        changes: Epoch and batch size of the first step and of each change.
        step: Optimizer steps.
        samples: Over all ranks.
        least_noise: The range of the noise scale that ended lowest of those at decisions so far.
        factor: Of the learning rate.
        fitting: The largest batch size that fits in memory; ``None``: none has been too large.
    """

    changes: list[tuple[int, int]] = field(default_factory=list)
    step: int = 0
    samples: int = 0
    least_noise: tuple[float, float] | None = None
    factor: float = 1.0
    fitting: int | None = None


def state_path(environment: WorkerEnvironment) -> Path | None:
    """Return the path of the state file; ``None`` outside zeusrun."""
    run_dir = environment.plan.run_dir
    return Path(run_dir, ADAPT_STATE) if run_dir else None


def restore_state(
    environment: WorkerEnvironment,
    first: int,
    *,
    epoch: int | None,
    samples: int,
    warn: Callable[[str], None],
) -> AdaptationState | None:
    """Return the state of an earlier start on every rank; ``None`` if the run starts from scratch.

    All ranks use rank 0's state, because they count steps and epochs to the same decisions.

    Args:
        environment: This rank.
        first: The batch size of the run's first step.
        epoch: The epoch that begins; ``None`` if the script has not set it.
        samples: In an epoch.
        warn: Called with a sentence for the user.

    Raises:
        ValueError: On every rank, if the ranks have different data or begin at different epochs.
    """
    state = None
    if environment.rank == 0:
        out_of_memory = environment.ran_out_of_memory
        try:
            path = state_path(environment)
            state = read_state(path, first, epoch, out_of_memory=out_of_memory)
        except ValueError as error:
            warn(
                f"the batch size starts again at {first}, because {ADAPT_STATE} in the run "
                f"directory is damaged ({error})"
            )
        if out_of_memory and state is not None and state.fitting is not None:
            warn(
                f"the batch size grows to {state.fitting} at most from here on, because the ranks "
                "ran out of memory with the next one"
            )
    everyone = from_all_ranks((samples, epoch, state))
    _check_equal("samples for run.loader", [samples for samples, _, _ in everyone])
    _check_equal("for the first epoch", [epoch for _, epoch, _ in everyone])
    return everyone[0][2]


def _check_equal(what: str, values: Sequence[object]) -> None:
    """Raise ``ValueError`` if a rank has another value than rank 0."""
    other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
    if other is not None:
        raise ValueError(
            f"zeusrun: rank 0 has {values[0]} {what}, and rank {other} has {values[other]}: give "
            "every rank the same data, and load the checkpoint on every rank"
        )


def write_state(path: Path | None, state: AdaptationState, first: int) -> None:
    """Write the state of a run whose first batch size is ``first``; ignore errors of the disk."""
    if path is not None:
        with contextlib.suppress(OSError):  # it must not end the training
            content = {"first": first, **asdict(state)}
            replace_file(path, json.dumps(content).encode(), durable=False)


def read_state(
    path: Path | None, first: int, epoch: int | None, *, out_of_memory: bool = False
) -> AdaptationState | None:
    """Return the state up to the epoch at which a run resumes; ``None`` if there is none to use.

    Args:
        path: The file.
        first: The batch size of the run's first step; the state of another one is not used.
        epoch: Where the script resumes: at 1 it has no checkpoint, so no change holds. ``None``:
            not known, so all changes hold.
        out_of_memory: Whether the last start ended so; the largest batch size is then removed.

    Raises:
        ValueError: If there is a file, but it does not contain a valid state.
    """
    if path is None:
        return None
    try:
        content = json.loads(read_file(path, _MAX_BYTES))
        written_first = content.pop("first")
        state = AdaptationState(**content)
        state.changes = [(changed, size) for changed, size in state.changes]
        if state.least_noise is not None:
            low, high = state.least_noise
            state.least_noise = (low, high)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not _is_valid(state):
        raise ValueError("it contains impossible values")
    if written_first != first:
        return None
    sizes = [size for _, size in state.changes]
    if out_of_memory and sizes and sizes[-1] > first:
        state.fitting = max((size for size in sizes if size < sizes[-1]), default=first)
    largest = state.fitting or math.inf
    state.changes = [
        (changed, size)
        for changed, size in state.changes
        if epoch != 1 and changed <= (epoch or changed) and size <= largest
    ]
    if state.changes:
        return state
    return None if state.fitting is None else AdaptationState(fitting=state.fitting)


def _is_valid(state: AdaptationState) -> bool:
    """Whether each value of a state from a file has its type and a possible size."""
    counts = [state.step, state.samples, *(number for change in state.changes for number in change)]
    scales = [state.factor, *(state.least_noise or ())]
    return (
        all(type(count) is int and 0 <= count < 1 << 53 for count in counts)
        and all(type(scale) in {int, float} and 0 <= scale < math.inf for scale in scales)
        and all(epoch and size for epoch, size in state.changes)
        and state.factor > 0
        and (state.fitting is None or (type(state.fitting) is int and state.fitting > 0))
    )

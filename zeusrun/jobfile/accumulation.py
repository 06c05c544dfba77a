"""Gradient accumulation: how a rank's share of the batch size becomes equal micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def split_batch(local_batch_size: int, per_device_max: int | None) -> tuple[int, int]:
    """Return the micro-batch size, and the accumulation steps that make up the local batch size.

    The steps are the fewest with which the micro-batches are equal and fit ``per_device_max``.
    ``None`` is no limit: one step.
    """
    largest = local_batch_size if per_device_max is None else min(local_batch_size, per_device_max)
    micro = next(size for size in range(largest, 0, -1) if local_batch_size % size == 0)
    return micro, local_batch_size // micro


def can_split(local_batch_size: int, per_device_max: int | None) -> bool:
    """Whether micro-batches of more than one sample fit, or one sample is all that may fit."""
    micro, steps = split_batch(local_batch_size, per_device_max)
    return micro > 1 or steps == 1 or per_device_max == 1


def check_split(sizes: Iterable[int], world_size: int, per_device_max: int | None) -> None:
    """Check that the share of each process in every batch size can be split.

    Raises:
        ValueError: If not. The message continues a sentence that starts with the key.
    """
    whole = [str(size) for size in sizes if not can_split(size // world_size, per_device_max)]
    if whole:
        raise ValueError(
            "has candidates that cannot be split into equal micro-batches of 2 to "
            f"{per_device_max} samples for each of {world_size} "
            f"process{'es' * (world_size > 1)}: {', '.join(whole)}; replace them, or choose "
            "another per_device_max"
        )

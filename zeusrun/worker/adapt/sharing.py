"""Divides the samples of an epoch into steps, shares of ranks, and micro-batches. Pure.

Each micro-batch may end in a collective. So every rank has the same number of steps and of
micro-batches, and none of them is empty.
"""

from __future__ import annotations

import math


def next_chunk(rest: int, global_batch_size: int, ranks: int) -> int:
    """Return the samples of the next step, over all ranks, with ``rest`` left in the epoch.

    If the last step would have fewer samples than ranks, the last two steps share their samples
    evenly, or become one step if the batch size is one sample a rank.
    """
    if rest <= global_batch_size or rest >= global_batch_size + ranks:
        return min(rest, global_batch_size)
    return rest if global_batch_size < 2 * ranks else rest // 2


def share(samples: int, ranks: int, rank: int) -> int:
    """Return the samples of a rank in a step; if they are uneven, the first ranks have one more."""
    return (samples - rank + ranks - 1) // ranks


def cut(samples: int, ranks: int, rank: int, per_device_max: int | None) -> list[int]:
    """Return the sizes of a rank's micro-batches in a step; they differ by one at most.

    Their number is the smallest that fits. A micro-batch may have one sample more than
    ``per_device_max`` if that is 1 and the ranks' shares are uneven.
    """
    parts = 1
    if per_device_max is not None:
        parts = min(math.ceil(share(samples, ranks, 0) / per_device_max), samples // ranks)
    each, larger = divmod(share(samples, ranks, rank), parts)
    return [each + 1] * larger + [each] * (parts - larger)

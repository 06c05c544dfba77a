"""How the samples of an epoch become steps, shares of ranks, and micro-batches. Pure.

Every rank takes the same number of steps and of micro-batches, and none of them is empty, because
they end in collectives.
"""

from __future__ import annotations

import math


def next_chunk(rest: int, global_batch_size: int, ranks: int) -> int:
    """Return the samples of the next step, with so many left in the epoch.

    If a last step would have fewer samples than ranks, they join the last two steps: these are
    halved, or become one if the batch size is one sample a rank.
    """
    if rest <= global_batch_size or rest >= global_batch_size + ranks:
        return min(rest, global_batch_size)
    return rest if global_batch_size < 2 * ranks else rest // 2


def share(samples: int, ranks: int, rank: int) -> int:
    """Return the samples of a rank in a step; the first ranks have one more if it is uneven."""
    return (samples - rank + ranks - 1) // ranks


def cut(samples: int, ranks: int, rank: int, per_device_max: int | None) -> list[int]:
    """Return the sizes of a rank's micro-batches in a step; they differ by one at most.

    They are the fewest that fit. One may have a sample too many where ``per_device_max`` is 1 and
    the ranks' shares are uneven.
    """
    parts = 1
    if per_device_max is not None:
        parts = min(math.ceil(share(samples, ranks, 0) / per_device_max), samples // ranks)
    each, larger = divmod(share(samples, ranks, rank), parts)
    return [each + 1] * larger + [each] * (parts - larger)

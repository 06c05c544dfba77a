"""Finds the size of DDP's buckets with the shortest steps, within a run.

DDP exchanges gradients in buckets, each as soon as a backward pass has filled it. With small ones,
more of the exchange happens during the pass.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1 << 20
_SIZES = (4 * MB, MB, MB // 4)  # bytes, tried beside the model's own size
_SKIPPED = 3  # passes after a change, in which DDP puts its buckets in order
_MEASURED = 6  # passes after those
_ROUNDS = 4  # forth and back, so that a machine that becomes slower favours no size
_BETTER = 0.97  # of the seconds with the model's own size, that another one must beat


class BucketSearch:
    """Which size is used in which pass, and which one in the end; the same on all ranks.

    Args:
        own: The size that the model has, in bytes.
        most: The bytes of all its gradients.
        gather: Returns the numbers of each rank; a collective call.

    Attributes:
        why: Why the last size was chosen; ``None`` while they are tried.
    """

    def __init__(
        self, first: int, most: int, gather: Callable[[list[float]], list[list[float]]]
    ) -> None:
        others = [size for size in _SIZES if size < min(first, most)]
        self._sizes = [first, *others]
        turns = [self._sizes[:: -1 if turn % 2 else 1] for turn in range(_ROUNDS)] if others else []
        self._plan = [size for turn in turns for size in turn]
        self._typical_s: dict[int, list[float]] = {size: [] for size in self._sizes}
        self._seconds: list[float] = []  # of the passes in this turn
        self._gather, self._passes, self._last_t = gather, 0, 0.0
        self.why: str | None = None

    def after_pass(self) -> int | None:
        """Count a pass; return the size from now on, or ``None`` if it stays."""
        if not self._plan:
            return None
        now_t = time.perf_counter()
        took_s, self._last_t = now_t - self._last_t, now_t
        self._passes += 1
        if self._passes > _SKIPPED:
            self._seconds.append(took_s)
        if self._passes < _SKIPPED + _MEASURED:
            return None
        before = self._plan.pop(0)
        self._typical_s[before].append(statistics.median(self._seconds))
        self._seconds, self._passes = [], 0
        after = self._plan[0] if self._plan else self._choose()
        return None if after == before else after

    def _choose(self) -> int:
        typical_s = [statistics.fmean(self._typical_s[size]) for size in self._sizes]
        means = [
            statistics.fmean(numbers) for numbers in zip(*self._gather(typical_s), strict=True)
        ]
        best = min(range(len(means)), key=means.__getitem__)
        best = best if means[best] < _BETTER * means[0] else 0
        faster = max(means) / means[best] - 1
        self.why = (
            f"steps of {1000 * means[best]:.3g} ms, up to {100 * faster:.0f} % more with others"
        )
        return self._sizes[best]


def begin_search(
    ddp: Any,
    gather: Callable[[list[float]], list[list[float]]],
    warn: Callable[[str], None],
) -> BucketSearch | None:
    """Return the search for a model; ``None`` if its buckets cannot be built again within a run."""
    if ddp.static_graph or ddp.mixed_precision is not None or ddp._delay_all_reduce_params:
        warn(
            "'buckets: tune' has no effect on a model with a static graph or with DDP's mixed "
            "precision"
        )
        return None
    gradients = (each for each in ddp.module.parameters() if each.requires_grad)
    size = sum(each.numel() * each.element_size() for each in gradients)
    return BucketSearch(ddp.bucket_bytes_cap, size, gather)


def build_buckets(ddp: Any, size: int) -> None:
    """Build the buckets of a model anew, of another size in bytes; not within a step.

    Communication hooks must be registered again. The names are private, the same in torch 2.4 to
    2.13.
    """
    ddp.bucket_bytes_cap, ddp.bucket_bytes_cap_default = size, size > MB
    if hasattr(ddp, "bucket_bytes_cap_list"):  # from 2.11 on
        ddp.bucket_bytes_cap_list = []
    if hasattr(ddp, "_bucket_config"):  # from 2.12 on
        ddp._bucket_config = dataclasses.replace(
            ddp._bucket_config,
            bucket_bytes_cap=size,
            first_bucket_bytes_cap=min(size, MB),
            per_bucket_bytes_caps=(),
        )
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False

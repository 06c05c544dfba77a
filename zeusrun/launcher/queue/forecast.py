"""When the GPUs of a submit will be free, by what the submits before it usually take. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.launcher.queue.admission import GpuWish
    from zeusrun.launcher.queue.tickets import Ticket


def forecast_free(
    wish: GpuWish,
    job: str,
    present: Sequence[Ticket],
    left_s: Mapping[int, float],
    now: float,
) -> float:
    """Return when a submit of a job would have its GPUs, if it came now.

    Args:
        wish: The GPUs that it wants.
        job: Its job.
        present: All submits.
        left_s: By number, for how long a submit still needs its GPUs, in seconds, as far as known.
        now: Unix seconds.
    """
    free: dict[str, float] = defaultdict(lambda: now)
    for ticket in sorted(present, key=lambda each: (not each.holds, each.number)):
        begins = now if ticket.holds else max((free[uuid] for uuid in ticket.gpus), default=now)
        ends = begins + left_s.get(ticket.number, 0.0)
        if ticket.job == job and wish.count is None:
            continue  # submits of one job share the GPUs that they name
        free.update({uuid: max(free[uuid], ends) for uuid in ticket.gpus})
    of_pool = sorted(free[uuid] for uuid in wish.pool)
    needed = len(of_pool) if wish.count is None else wish.count
    return of_pool[needed - 1] if 0 < needed <= len(of_pool) else now

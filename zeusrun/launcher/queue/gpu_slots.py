"""Which GPUs a submit has for itself while it runs, in the order the submits came."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.gpu.nvml import gpus_of_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.queue.tickets import Ticket


@dataclass(frozen=True)
class GpuWish:
    """The GPUs that a submit wants for itself.

    Attributes:
        pool: UUIDs of the GPUs that it may have; empty if it wants none for itself.
        count: How many of them; ``None`` for all.
        shares: Whether it runs on GPUs that others may use, too.
    """

    pool: tuple[str, ...] = ()
    count: int | None = None
    shares: bool = False


def read_wish(spec: JobSpec, environment: Mapping[str, str]) -> GpuWish:
    """Return the GPUs that a job wants; ``CUDA_VISIBLE_DEVICES`` says which are visible.

    Raises:
        DeviceError: If a visible GPU is absent.
    """
    launch = spec.launch
    if launch.gpus == "shared" or launch.nproc_per_node == "cpu":
        return GpuWish(shares=launch.nproc_per_node != "cpu")
    ranks = launch.nproc_per_node if isinstance(launch.nproc_per_node, int) else None
    chooses = launch.gpus == "auto"
    with ExitStack() as opened:
        gpus = gpus_of_job(environment, None if chooses else ranks)
        for gpu in gpus:
            opened.enter_context(closing(gpu))
        pool = tuple(gpu.uuid for gpu in gpus)
    return GpuWish(pool, min(ranks or 0, len(pool)) if chooses else None)


def choose_gpus(wish: GpuWish, own: Ticket, present: Sequence[Ticket]) -> tuple[str, ...] | None:
    """Return the GPUs that a submit gets now; ``None`` while it has to wait. Pure.

    The first to come is the first served: no submit overtakes one that waits for the same GPU.
    Submits of one job share the GPUs that they name; those that let zeusrun choose share nothing.
    """
    taken = {
        uuid
        for ticket in present
        if ticket.number != own.number
        and (ticket.holds or ticket.number < own.number)
        and (wish.count is not None or ticket.job != own.job)
        for uuid in ticket.gpus
    }
    if wish.count is None:
        return None if taken & set(wish.pool) else wish.pool
    free = [uuid for uuid in wish.pool if uuid not in taken]
    return tuple(free[: wish.count]) if len(free) >= wish.count else None

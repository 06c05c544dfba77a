"""Which GPUs a submit has for itself while it runs: a slot each, given in the order they came."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.errors import BusyError
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.launcher.queue.overlap import check_replaced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.queue.overlap import Others
    from zeusrun.launcher.queue.tickets import HeldTicket, Ticket, Tickets
    from zeusrun.launcher.queue.waiting import Patience


@dataclass(frozen=True)
class GpuWish:
    """The GPUs that a submit wants for itself.

    Attributes:
        pool: UUIDs that it may have; none, and it wants none for itself.
        count: How many of them; ``None`` for all.
        shares: Whether it runs on GPUs that others may use, too.
    """

    pool: tuple[str, ...] = ()
    count: int | None = None
    shares: bool = False


def read_wish(spec: JobSpec, environment: Mapping[str, str]) -> GpuWish:
    """Return what a job wants.

    Args:
        spec: The job.
        environment: Its own; says which GPUs are visible.

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

    Who came first is served first: nobody passes by one who waits for the same GPU. Submits of
    one job share what they name; those that leave the choice to zeusrun share nothing.

    Args:
        wish: What it wants.
        own: Its ticket.
        present: All tickets.
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


def take_gpus(
    tickets: Tickets,
    held: HeldTicket,
    wish: GpuWish,
    others: Others,
    patience: Patience | None,
) -> tuple[str, ...]:
    """Take the GPUs that a submit wants, and mark it as running; return their UUIDs.

    Args:
        tickets: All.
        held: Its own.
        wish: What it wants.
        others: Who has them.
        patience: How to wait for them; ``None`` to give up instead.

    Raises:
        BusyError: If they are taken, and it is not to wait, or has waited long enough.
        HistoryError: If the home cannot be written.
    """
    waiting = ("waiting", wish.pool)
    while True:
        with tickets:
            present = tickets.present()
            got = choose_gpus(wish, held.ticket, present)
            if got is not None:
                on_cpu = not (wish.pool or wish.shares)
                held.show(state="running", gpus=got, holds=True, on_cpu=on_cpu)
                return got
            if patience is not None and (held.ticket.state, held.ticket.gpus) != waiting:
                held.show(state="waiting", gpus=wish.pool)
        check_replaced(held.ticket, present)
        text = _in_the_way(wish, held.ticket, present, others)
        if patience is None:
            raise BusyError(
                f"{held.ticket.job}: {text}; `zeusrun submit --wait` waits for its turn, "
                "launch.gpus: auto takes free ones, and shared shares them"
            )
        patience.wait(text, "it waits for its turn")


def _in_the_way(wish: GpuWish, own: Ticket, present: Sequence[Ticket], others: Others) -> str:
    names = others.name(
        [each for each in present if each.number != own.number and set(each.gpus) & set(wish.pool)]
    )
    if wish.count is None:
        return f"its GPUs are taken by {names}"
    return f"{wish.count} of {len(wish.pool)} GPUs are not free: {names}"

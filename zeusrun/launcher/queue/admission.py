"""From a submit that has come to one that may begin: its turn, its GPUs, and its ticket."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from zeusrun.launcher.queue.gpu_slots import read_wish, take_gpus
from zeusrun.launcher.queue.overlap import Others, take_turn
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.queue.waiting import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.jobfile.validators import Overlap


@contextmanager
def admitted(
    spec: JobSpec,
    home: Path,
    history: History,
    environment: Mapping[str, str],
    *,
    overlap: Overlap,
    wait_for_gpus: bool,
    until: float | None,
    signals: Sequence[int],
    tell: Callable[[str], None],
) -> Iterator[tuple[str, ...] | None]:
    """Wait for a submit's turn and its GPUs, and hold them meanwhile.

    Args:
        spec: The job.
        home: Zeusrun's.
        history: Where the trials of others are.
        environment: The job's own; says which GPUs are visible.
        overlap: What to do about other submits of the job.
        wait_for_gpus: Wait for GPUs that another job has, instead of giving up.
        until: Unix second to give up at; ``None`` to wait for as long as it takes.
        signals: Those that have come, in order.
        tell: Takes a sentence for people.

    Yields:
        UUIDs of the GPUs chosen for it; ``None`` if it has all that are visible.

    Raises:
        BusyError: If another submit is in the way, or a signal came meanwhile.
        DeviceError: If a visible GPU is absent.
        HistoryError: If the home cannot be written.
    """
    wish = read_wish(spec, environment)
    tickets, others = Tickets(home), Others(home, history)
    patience = Patience(spec.name, until, signals, tell)
    # Named GPUs are claimed from now on: nobody who comes later gets them first. Chosen ones are
    # not: while it waits for its turn, others may have those that are free.
    claimed = wish.pool if wish.count is None else ()
    ticket = take_turn(tickets, spec.name, overlap, others, patience, gpus=claimed)
    try:
        gpus = take_gpus(tickets, ticket, wish, others, patience if wait_for_gpus else None)
        yield None if wish.count is None else gpus
    finally:
        ticket.release()

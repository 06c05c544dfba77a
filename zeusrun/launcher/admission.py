"""From a submit that has come to one that may begin: its turn, its GPUs, and its ticket."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zeusrun.launcher.gpu_slots import read_wish, take_gpus
from zeusrun.launcher.patience import Patience
from zeusrun.launcher.signals import CaughtSignals
from zeusrun.launcher.tickets import Tickets
from zeusrun.launcher.turn import Others, take_turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.jobfile.rules import Overlap
    from zeusrun.spec import JobSpec


@contextmanager
def admitted(
    spec: JobSpec,
    home: Path,
    history: History,
    environment: Mapping[str, str],
    *,
    overlap: Overlap,
    wait_for_gpus: bool,
    wait_s: float | None,
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
        wait_s: How long to wait at most, for others and for GPUs; ``None`` for no bound.
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
    until_t = None if wait_s is None else time.monotonic() + wait_s
    with CaughtSignals() as signals:
        patience = Patience(spec.name, until_t, signals.received, tell)
        ticket = take_turn(tickets, spec.name, overlap, others, patience)
        try:
            gpus = take_gpus(tickets, ticket, wish, others, patience if wait_for_gpus else None)
            patience.check()
        except BaseException:
            ticket.release()
            raise
    try:
        yield None if wish.count is None else gpus
    finally:
        ticket.release()

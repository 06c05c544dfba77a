"""The table of ``status``: running trials and waiting submits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.tables import dead_note, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.maintenance.running import RunningTrial


def status_table(found: Sequence[RunningTrial], waiting: Sequence[Ticket] = ()) -> RenderableType:
    """Return running trials and waiting submits.

    Args:
        found: The running trials, oldest first; their numbers are about a second old.
        waiting: The waiting submits, in the order of the queue.
    """
    table = plain_table()
    table.add_column("trial", overflow="fold")  # the column that shrinks on a narrow terminal
    for name in ("batch", "epoch", "metric", "time", "energy", "cost", "power"):
        table.add_column(name, justify="right", no_wrap=True)
    for running in found:
        trial, live = running.trial, running.live
        value = running.last_metric
        table.add_row(
            Text(trial.trial, style="bold cyan" if running.alive else "dim"),
            str(trial.global_batch_size),
            f"{trial.epochs or 0}/{trial.max_epochs}",
            units.UNKNOWN if value is None else f"{value:.4g} → {trial.target:g}",
            units.duration(trial.time_s) if trial.time_s is not None else _starting(running),
            units.energy(trial.energy_j, trial.energy_source),
            units.energy(trial.cost_j),
            units.power(None if live is None or not running.alive else live.power_w),
            style=None if running.alive else "dim",
        )
    notes = [dead_note(running.trial) for running in found if not running.alive]
    warnings = [
        Text(f"! {running.trial.trial}: {warning}", style="yellow")
        for running in found
        for warning in running.trial.warnings[-1:]
    ]
    queue = [
        Text(f"  {place}. {ticket.job} waits since {units.moment(ticket.since)}{_for(ticket)}")
        for place, ticket in enumerate(waiting, 1)
    ]
    return Group(*([table] if found else []), *notes, *warnings, *queue)


def _for(ticket: Ticket) -> str:
    return " for GPUs" if ticket.gpus else " for the run before it"


def _starting(running: RunningTrial) -> str:
    return "starting" if running.alive else units.UNKNOWN

"""The verb ``plot``: a job in characters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument

from zeusrun.analysis.plots import arms_plot, cost_plot, curves_plot, power_plot
from zeusrun.commands.options import console, find_trial, job_name, known_job, open_home
from zeusrun.energy.power_trace import read_power
from zeusrun.errors import UsageError
from zeusrun.history.base import NEWEST
from zeusrun.launcher.rundir.ownership import files_of
from zeusrun.launcher.rundir.record import read_live
from zeusrun.view.terminal_plot import LEAST_WIDTH, draw_plot

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.analysis.plots import Plot
    from zeusrun.history.base import History

What = Literal["cost", "arms", "curves", "power"]
_PLOTS = {"cost": cost_plot, "arms": arms_plot, "curves": curves_plot}


def plot(
    job: Annotated[str, Argument(metavar="JOB", help="A job; for power also a run.")],
    what: Annotated[
        What,
        Argument(
            metavar="WHAT",
            help="The cost of each recurrence, or by batch size; learning curves; the power of the "
            "last run.",
        ),
    ] = "cost",
) -> None:
    """Draw costs, batch sizes, curves or power in the terminal."""
    name, shown = job_name(job), console()
    home, store = open_home(job)
    if what == "power":
        drawn = _power(home, store, name, shown.width)
    else:
        drawn = _PLOTS[what](name, store.trials(known_job(store, name), NEWEST))
    if not any(series.points for series in drawn.series):
        raise UsageError(f"{job} has nothing to plot for {what!r} yet: `zeusrun history {job}`")
    width = max(LEAST_WIDTH, shown.width)
    shown.print(draw_plot(drawn, width, sys.stdout.encoding), soft_wrap=True)


def _power(home: Path, store: History, name: str, width: int) -> Plot:
    trial = find_trial(name, store)
    paths = files_of(store, home, trial)
    trace = read_power(paths.power, 2 * width)
    if trace is None:
        raise UsageError(f"the run {trial.trial} has no power samples: {paths.power}")
    live = None if trial.status.finished else read_live(paths)
    source = trial.energy_source if live is None else live.trial.energy_source
    times_s, powers_w, limits_w = zip(
        *((span.time_s, span.mean_w, span.limit_w) for span in trace.spans), strict=True
    )
    return power_plot(trial.trial, times_s, powers_w, limits_w, source)

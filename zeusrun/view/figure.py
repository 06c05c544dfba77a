"""The figure of ``simulate``: regret over recurrences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.export.destination import check_output
from zeusrun.plugins import check_extra

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from zeusrun.simulate.study import Summary

FORMATS = (".png", ".svg", ".pdf")
_COLUMNS = 3
# Okabe and Ito (2008): distinct for colour-blind readers and in greyscale.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREY = "#555555"
_RUNAWAY = 10.0  # if the largest regret is this many times the least, the axis is logarithmic


def check_figure(path: Path) -> None:
    """Check, before a long simulation, that a figure can be drawn and written.

    Raises:
        UsageError: If matplotlib is not installed, or the file cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end in {', '.join(FORMATS)}")
    check_extra("--plot", "report", "matplotlib")
    check_output(path, "--plot")


def draw_regret(title: str, summaries: Sequence[Summary], path: Path) -> None:
    """Draw cumulative regret: one panel per workload, one line and one band per policy.

    Lines are medians over seeds; bands reach from the 5th to the 95th percentile. The unit of the
    vertical axis is the expected cost of a run with the best batch size.

    Raises:
        UsageError: If the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    workloads = list(dict.fromkeys(each.workload for each in summaries))
    policies = list(dict.fromkeys(each.policy for each in summaries))
    colours = {policy: _COLOURS[at % len(_COLOURS)] for at, policy in enumerate(policies)}
    columns = min(_COLUMNS, len(workloads))
    rows = math.ceil(len(workloads) / columns)
    figure = Figure(figsize=(max(5.0, 3.1 * columns + 0.4), 2.5 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for at, panel in enumerate(panels.flat):
        if at >= len(workloads):
            panel.set_axis_off()
            continue
        own = [each for each in summaries if each.workload == workloads[at]]
        _draw_panel(panel, workloads[at], own, colours)
        if at + columns >= len(workloads):
            panel.set_xlabel("recurrence", fontsize=9, color=_GREY)
    figure.supylabel("regret, in runs of the best batch size", fontsize=9, color=_GREY)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    style = {"ncols": len(labels), "frameon": False, "fontsize": 9}
    figure.legend(handles, labels, loc="outside lower center", **style)
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise UsageError(f"--plot {path} cannot be written: {error.strerror or error}") from error


def _draw_panel(
    panel: Axes, workload: str, summaries: Sequence[Summary], colours: dict[str, str]
) -> None:
    for each in summaries:
        regret = each.cumulative_regret_best_runs
        recurrences = range(1, each.recurrences + 1)
        colour = colours[each.policy]
        panel.fill_between(recurrences, regret["p5"], regret["p95"], color=colour, alpha=0.15, lw=0)
        panel.plot(recurrences, regret["median"], color=colour, lw=1.8, label=each.policy)
    panel.set_title(workload, loc="left", fontsize=10)
    panel.set_xlim(1, max(2, *(each.recurrences for each in summaries)))
    panel.axhline(0, color=_GREY, lw=0.8)
    ends = [max(each.cumulative_regret_best_runs["p95"]) for each in summaries]
    if max(ends) > _RUNAWAY * max(1.0, min(ends)):  # a linear axis would flatten the other lines
        low = min(0.0, *(min(each.cumulative_regret_best_runs["p5"]) for each in summaries))
        power = math.floor(math.log10(max(1.0, min(ends))))
        panel.set_yscale("symlog", linthresh=10.0**power)
        panel.set_ylim(bottom=1.1 * low - 0.1 * 10.0**power)
        panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(axis="y", color="#E4E4E4", lw=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left", "bottom"]].set_visible(False)
    panel.tick_params(colors=_GREY, length=0, labelsize=8)

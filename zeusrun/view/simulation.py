"""The table of ``simulate``, which fits 80 columns, and its progress bar."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from zeusrun.simulate.report import BASELINE, pooled_regret
from zeusrun.view import units
from zeusrun.view.console import Labelled, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from zeusrun.simulate.report import Summary

_WIDE = 118  # columns from which joules, spread, attempts and failures are also shown
_NOTES = {
    "regret": "what not knowing the best batch size has cost, in runs of it, over all recurrences: "
    "mean and median over seeds",
    "default": "never optimising: the default batch size, highest power limit",
    "zeus": "policy zeus, as published",
    "best": "the best batch size from the start, as if it were known",
    "energy, time": "against never optimising, too",
    "gave up": "recurrences of all seeds that ended without a model; they are charged what their "
    "attempts took",
}
_WIDE_NOTES = {
    "cost": "of all recurrences, mean over seeds",
    "5–95 %": "nine seeds of ten have a regret between these",  # noqa: RUF001
    "tries, failed": "attempts per recurrence; share that missed the target",
}
_MADE_UP_NOTE = {"seed": "another job of the family, and other runs of it"}
_TRACE_NOTE = {"seed": "other draws among the recorded runs of the same job"}


def simulation_sheet(
    title: str, summaries: Sequence[Summary], width: int, *, made_up: bool = True
) -> RenderableType:
    """Return the table of a study and a legend of its columns.

    Args:
        title: What was simulated.
        summaries: The results, sorted by workload.
        width: Columns of the console; a wide one shows more.
        made_up: Whether the jobs are synthetic, so that every seed is another job.
    """
    wide = width >= _WIDE
    table = plain_table()
    table.add_column("\nworkload", no_wrap=True, max_width=13)
    table.add_column("\npolicy", no_wrap=True)
    names = ["\ncost"] if wide else []
    names += ["regret\nmean", "\nmedian"]
    names += ["\n5–95 %"] if wide else []  # noqa: RUF001
    names += ["cost vs\ndefault", "\nzeus", "\nbest", "\nenergy", "\ntime", "gave\nup"]
    names += ["\ntries", "\nfailed"] if wide else []
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    above = None
    for each in summaries:
        if above is not None and each.workload != above:
            table.add_section()
        name = "" if each.workload == above else each.workload
        above = each.workload
        table.add_row(name, each.policy, *_cells(each, wide=wide))
    legend = _NOTES | (_WIDE_NOTES if wide else {}) | (_MADE_UP_NOTE if made_up else _TRACE_NOTE)
    notes = [(Text(f"  {name}", "dim"), Text(note, "dim")) for name, note in legend.items()]
    findings = [Text(""), *_findings(summaries), Text("")]
    return Group(Text(title, style="bold"), Text(""), table, *findings, Labelled(notes))


def _cells(each: Summary, *, wide: bool) -> list[RenderableType]:
    regret = each.regret_best_runs
    cells: list[RenderableType] = [units.energy(each.cost_j["mean"])] if wide else []
    cells += [_runs(regret["mean"]), _runs(regret["median"])]
    if wide:
        cells.append(f"{_runs(regret['p5'])} … {_runs(regret['p95'])}")
    cells += [
        _change(each.to_never.cost, coloured=True),
        _change(None if each.policy == BASELINE else each.to_zeus.cost),
        _change(each.to_best.cost),
        _change(each.to_never.energy),
        _change(each.to_never.time),
        str(each.unreached),
    ]
    if wide:
        cells += [f"{each.attempts:.2f}", units.percent(each.failed_share)]
    return cells


def _findings(summaries: Sequence[Summary]) -> Iterator[Text]:
    """Yield one line per policy about its regret, and warnings."""
    workloads = len({each.workload for each in summaries})
    for policy in dict.fromkeys(each.policy for each in summaries):
        share = pooled_regret(summaries, policy)
        if policy == BASELINE or share is None:
            continue
        where = "all workloads together" if workloads > 1 else "in runs of the best"
        text = f" has {share:.2f} times the regret of {BASELINE}, {where}"
        yield Text.assemble("  ", (policy, "bold"), text)
    for each in summaries:
        if each.unreached:
            of_all = f"{each.unreached} of {each.seeds * each.recurrences} recurrences"
            text = f"{of_all} ended without a model"
            yield Text(f"  ! {each.workload}, {each.policy}: {text}", style="yellow")


def _runs(number: float) -> str:
    digits = 0 if abs(number) >= 99.5 else 1
    return f"{round(number, digits) + 0.0:.{digits}f}".replace("-", units.MINUS)


def _change(ratio: float | None, *, coloured: bool = False) -> Text:
    """Return a ratio as a change: 0.8 as minus 20 %."""
    if ratio is None:
        return Text(units.UNKNOWN, style="dim")
    share = round(ratio - 1, 2)
    style = "green" if share < 0 else "yellow" if share > 0 else ""
    text = f"{share:+.0%}".replace("-", units.MINUS) if share else "0%"
    if share >= 1:  # such as +412 %
        text = f"×{ratio:.3g}"  # noqa: RUF001
    return Text(text, style=style if coloured else "")


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Callable[[float], None]]:
    """Show a progress bar, on a terminal only, and remove it at the end.

    Yields:
        A function to call with the finished share, from 0 to 1.
    """
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)

"""The table of ``simulate``, which fits 80 columns, and its progress bar."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from zeusrun.simulate.study import BASELINE, pooled_regret
from zeusrun.view import units
from zeusrun.view.columns import Column, column_table
from zeusrun.view.console import Labelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from zeusrun.simulate.study import Summary

_NOTES = {
    "regret": "cost above that of always using the best batch size, added up over all recurrences; "
    "1.0 is the cost of one run with the best batch size; mean and median over seeds",
    "default": "never optimising: the default batch size, highest power limit",
    "zeus": "policy zeus, as published",
    "best": "the best batch size from the start, as if it were known",
    "energy, time": "against never optimising, too",
    "gave up": "recurrences of all seeds that ended without a model; they are charged what their "
    "attempts took",
}
_MADE_UP_SEED = "each seed makes up another job of the same kind"
_TRACE_SEED = "each seed picks other recorded runs of the same job at random"


def simulation_sheet(
    title: str, summaries: Sequence[Summary], width: int, *, made_up: bool = True
) -> RenderableType:
    """Return the table of a study, sorted by workload, and a legend of its columns.

    ``made_up``: the jobs are synthetic, so that every seed is another job. ``width``: of the
    console; columns for which it has no room are left out.
    """
    names = [each.workload for each in summaries]
    begin = [number for number, name in enumerate(names) if name not in names[:number]]
    first = Column("\nworkload", lambda each: each.workload if each in firsts else "", left=True)
    firsts = [summaries[number] for number in begin]
    table = column_table([first, *_COLUMNS], summaries, width, lines=begin[1:])
    legend = _NOTES | {"seed": _MADE_UP_SEED if made_up else _TRACE_SEED}
    notes = [(Text(f"  {name}", "dim"), Text(note, "dim")) for name, note in legend.items()]
    findings = [Text(""), *_findings(summaries), Text("")]
    return Group(Text(title, style="bold"), Text(""), table, *findings, Labelled(notes))


def _findings(summaries: Sequence[Summary]) -> Iterator[Text]:
    """Yield one line per policy about its regret, and warnings."""
    workloads = len({each.workload for each in summaries})
    for policy in dict.fromkeys(each.policy for each in summaries):
        share = pooled_regret(summaries, policy)
        if policy == BASELINE or share is None:
            continue
        where = ", all workloads together" if workloads > 1 else ""
        text = f" has {share:.2f} times the regret of {BASELINE}{where}"
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


def _to_zeus(summary: Summary) -> Text:
    return _change(None if summary.policy == BASELINE else summary.to_zeus.cost)


_COLUMNS = (
    Column("\npolicy", lambda each: each.policy, left=True),
    Column("regret\nmean", lambda each: _runs(each.regret_best_runs["mean"])),
    Column("\nmedian", lambda each: _runs(each.regret_best_runs["median"]), leaves=4),
    Column("cost vs\ndefault", lambda each: _change(each.to_never.cost, coloured=True)),
    Column("\nzeus", _to_zeus),
    Column("\nbest", lambda each: _change(each.to_best.cost)),
    Column("\nenergy", lambda each: _change(each.to_never.energy), leaves=2),
    Column("\ntime", lambda each: _change(each.to_never.time), leaves=1),
    Column("gave\nup", lambda each: str(each.unreached), leaves=3),
)


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Callable[[float], None]]:
    """Show a progress bar, on a terminal only; yields what takes the finished share, 0 to 1."""
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)

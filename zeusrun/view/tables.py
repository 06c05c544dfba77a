"""The tables of ``history`` and ``status``; each fits 80 columns."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.analysis.estimates import group_by
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import EnergySource
from zeusrun.view import columns, units
from zeusrun.view.claims import claim_cost, claim_in_use, claim_style, range_of
from zeusrun.view.columns import Column, column_table
from zeusrun.view.console import STATUS_STYLES, Labelled, trial_head, warning_lines

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.amounts import Total
    from zeusrun.analysis.estimates import Savings
    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.trial import Trial, TrialStatus

_SOURCE_NOTES = {
    EnergySource.INTEGRATED: "∫ integrated from sampled power",
    EnergySource.ESTIMATED: "~ estimated from CPU time",
}
_GROUP = 8  # characters of the name of a group that a table shows; longer ones fold
_HOST = 15  # characters of the name of a host
_NAME = 24  # characters of the name of a run that a table shows before it leaves out numbers


def net_lines(savings: Savings) -> list[Text]:
    """Return what the batch size in use saves, and what all recurrences saved with exploring.

    Empty before any exploration.
    """
    if not savings.explored:
        return []
    if savings.net is None:
        return [Text(f"savings: {savings.note}", style="dim")]
    in_use, default = savings.in_use, savings.default
    head = f"batch size {default}, the default, is in use"
    if in_use != default:
        head = claim_in_use(savings) or head
    count = len(savings.by_trial)
    of = units.plural(count, "recurrence")
    of = f"{count} of {savings.ended} recurrences" if count < savings.ended else of
    basis = f"{of}, exploring included: {claim_cost(savings.net)}"
    if savings.pays_back_in is not None:
        basis += f"; pays back in about {savings.pays_back_in} more"
    heads = [] if in_use is None else [Text(head, style=claim_style(savings.share, savings.net))]
    return [*heads, Text(basis, style="dim")]


def savings_block(savings: Savings) -> list[RenderableType]:
    """Return ``net_lines`` as they are printed."""
    lines = net_lines(savings)
    return [Labelled([(Text(), line) for line in lines])] if lines else []


def plan_sheet(
    trial: Trial, command: str, env: Mapping[str, str], kept: Sequence[str]
) -> RenderableType:
    """Return what a submit would choose and start; ``kept`` as for ``explain_table``."""
    variables = [Text(f"  {name}={value}", style="dim") for name, value in env.items()]
    variables = variables or [Text("--verbose shows the whole command.", style="dim")]
    return Group(remarks(kept), trial_head(trial), Text(""), Text(command), Text(""), *variables)


def remarks(kept: Sequence[str]) -> Labelled:
    """Return remarks about past trials that are interpreted differently now."""
    texts = [Text(f"history: {text}", style="dim") for text in kept]
    return Labelled([(Text("·", style="dim"), text) for text in texts], gap=1)


def history_table(
    job: str,
    trials: Sequence[Trial],
    last: int | None = None,
    *,
    count: int | None = None,
    running: Mapping[str, Live] = MappingProxyType({}),
    width: int = 80,
) -> RenderableType:
    """Return the savings of a job and a table of its ``last`` trials, oldest first.

    Args:
        job: The name of the job.
        trials: The trials to show, and those to compare them with.
        last: ``None`` for all.
        count: The number of trials of the job; ``None`` for as many as are given.
        running: Unfinished trials with their live numbers, by id.
        width: Of the console. If there is no room for carbon, price and so on, they are not shown.
    """
    shown = trials if last is None else trials[-last:]
    savings, alive = find_savings(trials), {name: each.alive for name, each in running.items()}
    now = {name: each.trial for name, each in running.items()}
    rows = [each if each.status.finished else now.get(each.trial, each) for each in shown]
    # The date alone may make room for another column.
    tables = [
        column_table(
            _history_columns(job, shown, savings, alive, moment),
            rows,
            width,
            {number: "dim" for number, each in enumerate(rows) if each.forgotten},
        )
        for moment in _moment_forms(shown)
    ]
    dead = [dead_note(each) for each in rows if alive.get(each.trial) is False]
    notes = _history_notes(shown, savings)
    count = len(trials) if count is None else count
    notes += [f"{count - len(shown)} earlier: --last {count}"] if len(shown) < count else []
    parts: list[RenderableType] = [Text(job, style="bold"), *savings_block(savings), Text("")]
    parts.append(max(tables, key=lambda table: len(table.columns)))
    parts += [Labelled([(Text(), Text(" · ".join(notes), style="dim"))])] if notes else []
    return Group(*parts, *dead)


def _moment_forms(trials: Sequence[Trial]) -> list[str]:
    if len({trial.started_at[:4] for trial in trials}) > 1:
        return ["%Y-%m-%d"]
    return ["%m-%d %H:%M", "%m-%d"]


def _history_columns(
    job: str, shown: Sequence[Trial], savings: Savings, alive: Mapping[str, bool], moment: str
) -> list[Column]:
    """Return the columns of ``history``; ``alive`` says which trials run."""

    def status(trial: Trial) -> Text:
        if trial.forgotten:
            return Text("forgotten")
        text = status_text(trial.status, alive=alive.get(trial.trial))
        return text.append("*") if trial.shared else text

    host = Column("host", _host, left=True, leaves=6)
    ranks = Column("ranks", units.ranks, leaves=6)
    return [
        Column("when", lambda each: units.moment(each.started_at, moment), left=True, leaves=8),
        Column("run", lambda each: each.trial.removeprefix(f"{job}-"), left=True),
        *([host] if len({each.host for each in shown} - {None}) > 1 else []),
        Column("batch", units.batch_size, folds=99),
        *([ranks] if any(each.world_sizes for each in shown) else []),
        columns.LIMIT,
        Column("epochs", _epochs, leaves=3),
        *(columns.TIME, columns.ENERGY, columns.PRICE, columns.CARBON, columns.COST),
        Column("status", status, left=True),
        Column(
            "saved",
            lambda each: range_of(savings.shown_share(each.trial)),
            optional=True,
            folds=99,
            leaves=9,
        ),
    ]


def _history_notes(shown: Sequence[Trial], savings: Savings) -> list[str]:
    """Return what explains the marks in the table."""
    sources = {trial.energy_source for trial in shown}
    notes = [note for source, note in _SOURCE_NOTES.items() if source in sources]
    if any(savings.shown_share(trial.trial) is not None for trial in shown):
        notes.append("saved: expected range, all attempts counted")
    differing = next((each for each in map(units.batch_size, shown) if "≠" in each), None)
    if differing is not None:
        notes.append(f"{differing}: trained with {differing.partition('≠')[2]}, teaches nothing")
    if any(each.shared and not each.forgotten for each in shown):
        notes.append("* shared its GPU or CPU: its cost is not compared")
    if len({each.eta_knob for each in shown}) > 1:
        notes.append("costs of different eta_knob")
    return notes


def _host(trial: Trial) -> str:
    """Return the name of a host without its domain, or its address."""
    host = trial.host or units.UNKNOWN
    return units.shortened(host if host[0].isdigit() else host.partition(".")[0], _HOST)


def dead_note(trial: Trial) -> Text:
    """Return a warning about a trial whose launcher is dead."""
    text = f"  zeusrun was killed during {trial.trial}; `zeusrun repair` records it"
    return Text(text, style="yellow")


def status_text(status: TrialStatus, *, alive: bool | None = None) -> Text:
    """Return a status in its colour; ``RUNNING`` or ``DEAD`` if it is known which."""
    if alive is None or status.finished:
        return Text(status.value, style=STATUS_STYLES[status])
    return Text("RUNNING", STATUS_STYLES[status]) if alive else Text("DEAD", style="red")


def status_table(
    found: Sequence[Live],
    waiting: Sequence[Ticket] = (),
    deferred: Mapping[str, str] = MappingProxyType({}),
    queued: Mapping[str, str] = MappingProxyType({}),
    *,
    host: str | None = None,
    width: int = 80,
    brief: bool = False,
) -> RenderableType:
    """Return the running trials, oldest first, and the submits that wait, in their order.

    ``deferred`` are jobs whose start a schedule has deferred, each with the start and the reason;
    ``queued`` says of each allocation where it is.
    If a trial runs on another machine than ``host``, a column names the machines. If the names
    leave no room in ``width`` columns, energy, cost and power are not shown. ``brief``: without the
    cost, and each warning is cut to one line.
    """
    shown = [
        Column("run", _running_name, left=True, folds=_NAME),
        columns.HOST,
        Column("batch", lambda each: units.batch_size(each.trial)),
        Column("epoch", lambda each: _epoch(each.trial)),
        Column("metric", _metric),
        Column("time", _running_time),
        Column("energy", lambda each: columns.ENERGY.value(each.trial), leaves=2),
        Column("cost", lambda each: columns.COST.value(each.trial), leaves=4),
        Column("power", lambda each: units.power(each.power_w if each.alive else None), leaves=3),
        Column("data wait", lambda each: _data_wait(each.trial), optional=True, leaves=1),
    ]
    here = host is None or {running.host for running in found} <= {None, host}
    left_out = {"host" if here else None, "cost" if brief else None}
    steady = {"metric": 13, "power": 6} if brief else {}
    shown = [replace(c, least=steady.get(c.name, 0)) for c in shown if c.name not in left_out]
    dim = {number: "dim" for number, each in enumerate(found) if not each.alive}
    table = column_table(shown, found, width - 1, dim)
    notes = [dead_note(running.trial) for running in found if not running.alive]
    warnings = [
        f"{running.trial.trial}: {running.trial.warnings[-1]}"
        for running in found
        if running.trial.warnings
    ]
    queue = []
    for place, ticket in enumerate(waiting, 1):
        thing = "GPUs" if ticket.gpus else "the run before it"
        since = units.moment(ticket.since)
        text = f"{ticket.job} waits since {since} for {thing}"
        if ticket.allocation:
            text = f"{ticket.job} since {since}: {queued.get(ticket.allocation, ticket.allocation)}"
        queue.append((Text(f"  {place}."), Text(text)))
    parts: list[RenderableType] = [table] if found else []
    parts += [*notes, *(map(warning_line, warnings) if brief else [warning_lines(warnings)])]
    queue += [(Text(" "), Text(f"{job} starts {start}")) for job, start in deferred.items()]
    parts += [Text("")] if found and queue else []
    return Group(*parts, Labelled(queue, gap=1))


def warning_line(text: str) -> Text:
    """Return a warning on one line, which is cut where there is no room."""
    one = " ".join(text.split())
    return Text.assemble(("! ", "yellow"), one, no_wrap=True, overflow="ellipsis")


def _running_name(running: Live) -> Text:
    return Text(running.trial.trial, style="bold cyan" if running.alive else "dim")


def _metric(running: Live) -> str:
    value, target = running.last_metric, running.trial.target
    return units.UNKNOWN if value is None else f"{value:.4g} → {target:g}"


def _data_wait(trial: Trial) -> str:
    """Return the share of the training time that waited for data."""
    wait_s, time_s = trial.data_wait_s, trial.time_s
    return units.percent(wait_s / time_s if wait_s is not None and time_s else None)


def _running_time(running: Live) -> Text:
    if not running.alive:
        return Text("DEAD", style="red")
    time_s = running.trial.time_s
    return Text("starting" if time_s is None else units.duration(time_s))


def _epoch(trial: Trial) -> str:
    """Return how far a run is: ``3/10``, or ``12.8k samples`` if it reports within epochs."""
    if trial.by_samples:
        return f"{units.short_count(float(f'{trial.whole_samples or 0:.3g}'))} samples"
    if trial.by_reports:
        return f"{trial.whole_epochs} reports"
    return f"{trial.whole_epochs or 0}/{trial.max_epochs}"


def _epochs(trial: Trial) -> str:
    """Return the epochs of a run, with a fraction if it was evaluated within epochs."""
    if trial.by_samples and trial.progress is not None:
        return f"{trial.progress:.3g}"
    return units.number(trial.epochs)


def totals_table(
    group: str,
    totals: Sequence[Total],
    whole: Total,
    eta_knobs: Collection[float] = (),
    width: int = 80,
) -> RenderableType:
    """Return a row for each group and one for all of them, and what is not included.

    Args:
        group: What each of ``totals`` stands for.
        totals: A row each.
        whole: The last row.
        eta_knobs: Of the runs whose costs are added.
        width: Of the console; columns for which it has no room are not shown.
    """
    heading = "GPU" if group == "gpu" else group
    shown = [
        Column(heading, lambda each: each.name, left=True, folds=_GROUP),
        Column("runs", lambda each: f"{each.runs:,}"),
        replace(columns.TIME, leaves=3),
        Column("energy", _total_energy, leaves=4),
        Column("price", _prices, optional=True, leaves=2),
        columns.CARBON,
        columns.COST,
    ]
    if len(totals) > 1:
        rows, bold = [*totals, whole], {len(totals): "bold"}
        table = column_table(shown, rows, width, bold)
    else:
        table = column_table(shown, totals, width)
    return Group(
        table, *[Text(f"  {note}", style="dim") for note in _total_notes(whole, eta_knobs)]
    )


def _total_energy(total: Total) -> str:
    return ("~" if total.estimated_j else "") + units.electricity(total.energy_j)


def _prices(total: Total) -> str:
    sums = (units.money(amount, name) for name, amount in sorted(total.prices.items()))
    return "\n".join(sums) or units.UNKNOWN


def _total_notes(whole: Total, eta_knobs: Collection[float]) -> list[str]:
    amounts = {"energy": True, "price": whole.prices, "carbon": whole.carbon_g is not None}
    known = [name for name, is_known in amounts.items() if is_known]  # of some run
    lacking = group_by(known, lambda name: whole.unknown[name])
    notes = ["~ includes energy that was estimated from CPU time"] if whole.estimated_j else []
    notes += [
        f"unknown, so not included: {' and '.join(names)} of {units.plural(count, 'run')}"
        for count, names in lacking.items()
        if count
    ]
    if len(eta_knobs) > 1:
        knobs = ", ".join(f"{each:g}" for each in sorted(eta_knobs))
        notes.append(f"the cost adds costs of different eta_knob ({knobs})")
    if not whole.prices:
        notes.append("no run has a price; the section price of a job file sets one")
    notes.append("a run counts from its first step to its target, else to its last step or report")
    return notes

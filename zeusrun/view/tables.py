"""The tables of ``history``, ``status``, ``explain`` and ``show``; each fits 80 columns."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from zeusrun.analysis.cost_shifts import describe_shifts
from zeusrun.analysis.curve_unit import counts_reports, epochs_by_samples
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view import units
from zeusrun.view.claims import claim_cost, claim_share, is_good
from zeusrun.view.columns import (
    CARBON,
    COST,
    ENERGY,
    EPOCHS,
    PRICE,
    TIME,
    Column,
    column_table,
)
from zeusrun.view.console import Labelled, warning_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.critical import CriticalSize
    from zeusrun.analysis.estimate import Savings
    from zeusrun.bandit.problem import ArmBelief
    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.trial import Trial

STATUS_STYLES = {
    TrialStatus.DISPATCHED: "cyan",
    TrialStatus.REACHED: "green",
    TrialStatus.MISSED: "yellow",
    TrialStatus.STOPPED: "yellow",
    TrialStatus.OOM: "red",
    TrialStatus.FAILED: "red",
    TrialStatus.CANCELLED: "dim",
    TrialStatus.PREEMPTED: "dim",
    TrialStatus.LOST: "red",
}
_SOURCE_NOTES = {
    EnergySource.INTEGRATED: "∫ integrated from sampled power",
    EnergySource.ESTIMATED: "~ estimated from CPU time",
}
_HOST = 15  # characters of the name of a host
_NAME = 24  # characters of the name of a run that a table shows before it leaves out numbers
_LEGEND = {
    "epochs, cost": "expected of the next run, until it reaches the target",
    "90 % range": "of the cost of the next run",
    "risk": "the probability that the next run is stopped, or misses the target",
    "worth": "what a try is expected to save in later recurrences, less its own cost",
    "next": "the probability that the next run uses this batch size",
}


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
    if savings.share is not None and in_use != default:
        claim = claim_share(savings.share, " a run")
        head = f"batch size {in_use} {claim} against {default}"
        if not savings.share.is_shown:
            head = f"batch size {in_use} against {default}: {claim}"
    count = len(savings.by_trial)
    of = units.plural(count, "recurrence")
    of = f"{count} of {savings.ended} recurrences" if count < savings.ended else of
    basis = f"{of}, exploring included: {claim_cost(savings.net)}"
    if savings.pays_back_in is not None:
        basis += f"; pays back in about {savings.pays_back_in} more"
    heads = [] if in_use is None else [Text(head, style=_STYLES[is_good(savings.share)])]
    return [*heads, Text(basis, style="dim")]


_STYLES = {True: "green", False: "yellow", None: ""}


def savings_block(savings: Savings) -> list[RenderableType]:
    """Return ``net_lines`` as they are printed."""
    lines = net_lines(savings)
    return [Labelled([(Text(), line) for line in lines])] if lines else []


def plan_sheet(
    trial: Trial, command: str, env: Mapping[str, str], kept: Sequence[str]
) -> RenderableType:
    """Return what a submit would choose and start; ``kept`` as for ``explain_table``."""
    variables = [Text(f"  {name}={value}", style="dim") for name, value in env.items()]
    return Group(_remarks(kept), trial_head(trial), Text(""), Text(command), Text(""), *variables)


def _remarks(kept: Sequence[str]) -> Labelled:
    texts = [Text(f"history: {text}", style="dim") for text in kept]
    return Labelled([(Text("·", style="dim"), text) for text in texts], gap=1)


def trial_head(trial: Trial) -> RenderableType:
    """Return the choice and its reason, in two lines."""
    rate = "" if trial.learning_rate is None else f" · learning rate {trial.learning_rate:g}"
    ranks = units.plural(trial.world_size, "rank")
    adapts = "" if trial.variant is None else f", adapted by {trial.variant}"
    choice = f"  batch size {trial.global_batch_size}{adapts}{rate} · {ranks}"
    return Group(
        Text.assemble((trial.trial, "bold"), choice),
        Labelled([(Text(), Text(f"{trial.stage.value}: {trial.why}", style="dim"))]),
    )


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
    rows = [each if each.status.finished else _now(each, running) for each in shown]
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
    return Group(*parts, *dead, warning_lines(describe_shifts(trials)))


def _now(trial: Trial, running: Mapping[str, Live]) -> Trial:
    """Return a trial with its live numbers, as far as they are known."""
    live = running.get(trial.trial)
    return trial if live is None else live.trial


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
        return status_text(trial.status, alive=alive.get(trial.trial))

    host = Column("host", _host, left=True, leaves=6)
    return [
        Column("when", lambda each: units.moment(each.started_at, moment), left=True, leaves=8),
        Column("run", lambda each: each.trial.removeprefix(f"{job}-"), left=True),
        *([host] if len({each.host for each in shown} - {None}) > 1 else []),
        Column("batch", units.batch_size, folds=99),
        Column("limit", lambda each: units.power(each.power_limit_w), optional=True, leaves=5),
        replace(EPOCHS, value=_epochs),
        *(TIME, ENERGY, PRICE, CARBON, COST),
        Column("status", status, left=True),
        Column(
            "saved",
            lambda each: units.percent(savings.shown_share(each.trial)),
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
        notes.append("saved: expected, all attempts counted")
    differing = next((each for each in map(units.batch_size, shown) if "≠" in each), None)
    if differing is not None:
        notes.append(f"{differing}: trained with {differing.partition('≠')[2]}, teaches nothing")
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
    *,
    host: str | None = None,
    width: int = 80,
) -> RenderableType:
    """Return the running trials, oldest first, and the submits that wait, in their order.

    ``deferred`` are jobs whose start a schedule has deferred, each with the start and the reason.
    If a trial runs on another machine than ``host``, a column names the machines. If the names
    leave no room in ``width`` columns, energy, cost and power are not shown.
    """
    columns = [
        Column("run", _running_name, left=True, folds=_NAME),
        Column("host", lambda each: each.host or units.UNKNOWN, left=True, folds=99),
        Column("batch", lambda each: units.batch_size(each.trial)),
        Column("epoch", lambda each: _epoch(each.trial)),
        Column("metric", _metric),
        Column("time", _running_time),
        *(
            replace(column, value=_of_trial(column), leaves=leaves)
            for column, leaves in ((ENERGY, 1), (COST, 3))
        ),
        Column("power", lambda each: units.power(each.power_w if each.alive else None), leaves=2),
    ]
    if host is None or {running.host for running in found} <= {None, host}:
        del columns[1]
    dim = {number: "dim" for number, each in enumerate(found) if not each.alive}
    table = column_table(columns, found, width - 1, dim)
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
        queue.append((Text(f"  {place}."), Text(text)))
    parts: list[RenderableType] = [table] if found else []
    parts += [*notes, warning_lines(warnings)]
    queue += [(Text(" "), Text(f"{job} starts {start}")) for job, start in deferred.items()]
    parts += [Text("")] if found and queue else []
    return Group(*parts, Labelled(queue, gap=1))


def _of_trial(column: Column) -> Callable[[Live], str | Text]:
    return lambda running: column.value(running.trial)


def _running_name(running: Live) -> Text:
    return Text(running.trial.trial, style="bold cyan" if running.alive else "dim")


def _metric(running: Live) -> str:
    value, target = running.last_metric, running.trial.target
    return units.UNKNOWN if value is None else f"{value:.4g} → {target:g}"


def _running_time(running: Live) -> Text:
    if not running.alive:
        return Text("DEAD", style="red")
    time_s = running.trial.time_s
    return Text("starting" if time_s is None else units.duration(time_s))


def explain_table(
    title: str,
    beliefs: Sequence[ArmBelief],
    kept: Sequence[str] = (),
    limits: Mapping[int, tuple[float, int]] = MappingProxyType({}),
    critical: CriticalSize | None = None,
    *,
    lead: Sequence[str] = (),
    width: int = 80,
    by_samples: bool = False,
) -> RenderableType:
    """Return what a policy believes about each batch size: a table, then a verdict on each.

    ``kept`` are remarks about past trials that are interpreted differently now. ``limits`` are, by
    arm, the best power limit in watts and the number of measured ones. ``lead``: a headline,
    and sentences that come first. ``width``: of the console; columns for which it has no room are
    not shown. ``by_samples``: what is said of epochs is of samples.
    """
    columns = _BELIEF_COLUMNS
    if by_samples:
        columns = [replace(each, name=each.name.replace("epoch", "sample")) for each in columns]
    likely = [belief.chance >= 0.5 for belief in beliefs]
    bold = {number: "bold" for number, each in enumerate(likely) if each}
    table = column_table(columns, beliefs, width, bold)
    names = {column.header for column in table.columns}
    verdicts = Table.grid(padding=(0, 2, 0, 0))
    verdicts.add_column(justify="right", no_wrap=True, min_width=5)
    verdicts.add_column(overflow="fold")
    for belief, bright in zip(beliefs, likely, strict=True):
        next_ = lead and belief.verdict.startswith("next: ")  # the first sentence says why
        verdict = "the next run uses it; see above" if next_ else belief.verdict
        size = Text(str(belief.global_batch_size))
        verdicts.add_row(size, Text(verdict), style=None if bright else "dim")
    told = {n.replace("epochs", "samples") if by_samples else n: t for n, t in _LEGEND.items()}
    legend = [f"{name}: {text}" for name, text in told.items() if name.split(", ")[-1] in names]
    if limits:
        best = [f"{arm}: {units.power(w)}, best of {of}" for arm, (w, of) in limits.items()]
        legend.append(f"power limit: {' · '.join(best)}")
    if critical is not None and (
        size := _critical_text(critical, "samples" if by_samples else "epochs")
    ):
        legend.append(size)
    if lead and any(belief.reached for belief in beliefs):
        legend.append("with other settings: zeusrun simulate JOB --set objective.eta_knob=1")
    notes = [Text(f"  {text}", style="dim") for text in legend]
    blank = Text("")
    first: list[RenderableType] = []
    if lead:
        sentences = Labelled([(Text(), Text(text)) for text in lead[1:]])
        first = [Text(lead[0], style="bold"), sentences, blank]
    head = Text(title, style="dim" if lead else "bold")
    return Group(*first, head, blank, table, blank, verdicts, blank, *notes, _remarks(kept))


def _epoch(trial: Trial) -> str:
    """Return how far a run is: ``3/10``, or ``12.8k samples`` if it reports within epochs."""
    if trial.by_samples:
        return f"{units.short_count(float(f'{trial.samples or 0:.3g}'))} samples"
    if counts_reports(trial):
        return f"{trial.epochs} reports"
    return f"{trial.epochs or 0}/{trial.max_epochs}"


def _epochs(trial: Trial) -> str:
    """Return the epochs of a run, with a fraction if it was evaluated within epochs."""
    epochs = epochs_by_samples(trial) if trial.by_samples else None
    if epochs is not None:
        return f"{epochs:.3g}"
    return units.number(trial.epochs)


def _critical_text(critical: CriticalSize, unit: str) -> str:
    """Return the critical batch size with its range; "" if nothing is known of it."""
    low, value, high, sizes = critical
    ends = [None if end is None else units.three_digits(end) for end in (low, high)]
    text = f"{units.three_digits(value)} ({ends[0]} to {ends[1]})"
    if None in ends:
        text = f"at least {ends[0]}" if ends[0] else f"at most {ends[1]}" if ends[1] else ""
    what = "beyond it, larger ones need about as many steps"
    return text and f"critical batch size: {text}, by the {unit} of {sizes} batch sizes; {what}"


def _expected(epochs: float | None) -> str:
    """Return expected epochs, or samples: with a fraction below 10, else three digits at most."""
    if epochs is None or epochs < 9.95:
        return units.number(epochs, ".1f")
    return units.three_digits(epochs)


_BELIEF_COLUMNS = [
    Column("batch", lambda each: str(each.global_batch_size)),
    Column(
        "reached",
        lambda each: f"{each.reached}/{each.trials}" if each.trials else units.UNKNOWN,
        leaves=2,
    ),
    Column("epochs", lambda each: _expected(each.epochs), leaves=4),
    Column("cost/\nepoch", lambda each: units.energy(each.epoch_cost_j), leaves=1),
    COST,
    Column("90 % range", lambda each: units.energy_range(each.cost_range_j), leaves=6),
    Column("risk", lambda each: units.percent(each.failure_chance), leaves=3),
    Column(
        "worth",
        lambda each: units.gain(each.value_j) if each.value_j else units.UNKNOWN,
        optional=True,
        leaves=5,
    ),
    Column("next", lambda each: units.percent(each.chance)),
]

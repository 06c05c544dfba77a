"""The tables of ``history``, ``status``, ``explain`` and ``show``; each fits 80 columns."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from zeusrun.analysis.cost_baseline import describe_shifts
from zeusrun.analysis.curves import counts_reports, epochs_by_samples
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view import units
from zeusrun.view.claims import claim_cost, claim_share, is_good
from zeusrun.view.console import Labelled, fitting_columns, plain_table, warning_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.amounts import Savings
    from zeusrun.analysis.critical import CriticalSize
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
_TEXTS = {"when", "run", "host", "status"}  # columns of words; those of numbers are aligned right
# The columns that a table too wide for its console leaves out, in this order.
_LEFT_OUT = ("carbon", "price", "epochs", "time", "limit", "host", "energy", "when", "saved")
_LEFT_OUT_BELIEFS = ("cost/\nepoch", "reached", "risk", "epochs", "worth", "90 % range")
_HOST = 15  # columns for the name of a host
_NAME = 24  # columns for the names of runs; fewer columns of numbers are shown rather
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
    savings = find_savings(trials)
    proved = any(savings.shown_share(trial.trial) is not None for trial in shown)
    limited = any(trial.power_limit_w is not None for trial in shown)
    names = ["when", "run", *(["host"] if len({each.host for each in shown} - {None}) > 1 else [])]
    names += ["batch", *(["limit"] if limited else []), "epochs", "time", "energy"]
    names += ["price"] if any(trial.price is not None for trial in shown) else []
    names += ["carbon"] if any(trial.carbon_g is not None for trial in shown) else []
    names += ["cost", "status", *(["saved"] if proved else [])]
    rows: list[tuple[dict[str, str | Text], str | None]] = []
    dead = []
    years = len({stored.started_at[:4] for stored in shown})
    form = "%Y-%m-%d" if years > 1 else "%m-%d %H:%M"
    for stored in shown:
        now = None if stored.status.finished else running.get(stored.trial)
        trial = stored if now is None else now.trial
        if now is not None and not now.alive:
            dead.append(dead_note(trial))
        status = status_text(trial.status, alive=None if now is None else now.alive)
        cells: dict[str, str | Text] = {
            "when": units.moment(trial.started_at, form),
            "run": trial.trial.removeprefix(f"{job}-"),
            "host": _host(trial),
            "batch": units.batch_size(trial),
            "limit": units.power(trial.power_limit_w),
            "epochs": _epochs(trial),
            "time": units.duration(trial.time_s),
            "energy": units.energy(trial.energy_j, trial.energy_source),
            "price": units.money(trial.price, trial.currency),
            "carbon": units.carbon(trial.carbon_g),
            "cost": units.energy(trial.cost_j),
            "status": Text("forgotten") if trial.forgotten else status,
            "saved": units.percent(savings.shown_share(trial.trial)),
        }
        rows.append((cells, "dim" if trial.forgotten else None))
    fit = fitting_columns(names, [cells for cells, _ in rows], _LEFT_OUT, width)
    if years < 2 and len(fit) < len(names):  # the date alone may make room
        dated = [({**cells, "when": str(cells["when"])[:5]}, style) for cells, style in rows]
        more = fitting_columns(names, [cells for cells, _ in dated], _LEFT_OUT, width)
        fit, rows = (more, dated) if len(more) > len(fit) else (fit, rows)
    names = fit
    table = plain_table()
    for name in names:
        shrinks = name in {"batch", "saved"}  # on a narrow terminal
        table.add_column(name, justify="left" if name in _TEXTS else "right", no_wrap=not shrinks)
    for cells, style in rows:
        table.add_row(*(cells[name] for name in names), style=style)
    sources = {trial.energy_source for trial in shown}
    differing = [each for each in map(units.batch_size, shown) if "≠" in each][:1]
    notes = [note for source, note in _SOURCE_NOTES.items() if source in sources]
    notes += ["saved: expected, all attempts counted"] if proved else []
    notes += [
        f"{each}: trained with {each.partition('≠')[2]}, teaches nothing" for each in differing
    ]
    notes += ["costs of different eta_knob"] if len({each.eta_knob for each in shown}) > 1 else []
    count = len(trials) if count is None else count
    notes += [f"{count - len(shown)} earlier: --last {count}"] if len(shown) < count else []
    parts = [Text(job, style="bold"), *savings_block(savings), Text(""), table]
    parts += [Labelled([(Text(), Text(" · ".join(notes), style="dim"))])] if notes else []
    return Group(*parts, *dead, warning_lines(describe_shifts(trials)))


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
    rows = [_status_cells(running) for running in found]
    names = ["run", "host", "batch", "epoch", "metric", "time", "energy", "cost", "power"]
    if host is None or {running.host for running in found} <= {None, host}:
        names.remove("host")
    short = [{**cells, "run": cells["run"][:_NAME]} for cells in rows]  # longer ones fold
    names = fitting_columns(names, short, ("energy", "power", "cost"), width - 1)
    table = plain_table()
    for name in names:
        if name in {"run", "host"}:
            table.add_column(name, overflow="fold")  # the columns that shrink
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for running, cells in zip(found, rows, strict=True):
        table.add_row(*map(cells.get, names), style=None if running.alive else "dim")
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


def _status_cells(running: Live) -> dict[str, Text]:
    trial, value, alive = running.trial, running.last_metric, running.alive
    time = Text("starting" if trial.time_s is None else units.duration(trial.time_s))
    metric = units.UNKNOWN if value is None else f"{value:.4g} → {trial.target:g}"
    return {
        "run": Text(trial.trial, style="bold cyan" if alive else "dim"),
        "host": Text(running.host or units.UNKNOWN),
        "batch": Text(units.batch_size(trial)),
        "epoch": Text(_epoch(trial)),
        "metric": Text(metric),
        "time": time if alive else Text("DEAD", style="red"),
        "energy": Text(units.energy(trial.energy_j, trial.energy_source)),
        "cost": Text(units.energy(trial.cost_j)),
        "power": Text(units.power(running.power_w if alive else None)),
    }


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
    names = ["batch", "reached", "epochs", "cost/\nepoch", "cost", "90 % range", "risk"]
    names += ["worth"] if any(belief.value_j is not None for belief in beliefs) else []
    rows = [_belief_cells(belief) for belief in beliefs]
    if by_samples:
        names = [name.replace("epoch", "sample") for name in names]
        rows = [{key.replace("epoch", "sample"): text for key, text in row.items()} for row in rows]
    names = fitting_columns([*names, "next"], rows, _LEFT_OUT_BELIEFS, width)
    table = plain_table()
    for name in names:
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    verdicts = Table.grid(padding=(0, 2, 0, 0))
    verdicts.add_column(justify="right", no_wrap=True, min_width=5)
    verdicts.add_column(overflow="fold")
    for belief, cells in zip(beliefs, rows, strict=True):
        likely = belief.chance >= 0.5
        table.add_row(*map(cells.get, names), style="bold" if likely else None)
        next_ = lead and belief.verdict.startswith("next: ")  # the first sentence says why
        verdict = "the next run uses it; see above" if next_ else belief.verdict
        verdicts.add_row(Text(cells["batch"]), Text(verdict), style=None if likely else "dim")
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


def _belief_cells(belief: ArmBelief) -> dict[str, str]:
    return {
        "batch": str(belief.global_batch_size),
        "reached": f"{belief.reached}/{belief.trials}" if belief.trials else units.UNKNOWN,
        "epochs": _expected(belief.epochs),
        "cost/\nepoch": units.energy(belief.epoch_cost_j),
        "cost": units.energy(belief.cost_j),
        "90 % range": units.energy_range(belief.cost_range_j),
        "risk": units.percent(belief.failure_chance),
        "worth": units.gain(belief.value_j) if belief.value_j else units.UNKNOWN,
        "next": units.percent(belief.chance),
    }

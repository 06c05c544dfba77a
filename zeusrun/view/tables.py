"""The tables of ``history``, ``explain``, ``show`` and ``doctor``; each fits 80 columns."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from zeusrun.analysis.cost_shifts import describe_shifts
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view import units
from zeusrun.view.lines import Labelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType

    from zeusrun.analysis.savings import Saving, Savings
    from zeusrun.bandit.problem import ArmBelief
    from zeusrun.maintenance.doctor import Check
    from zeusrun.maintenance.running import RunningTrial
    from zeusrun.trial import PowerPoint, Trial

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


def net_lines(savings: Savings) -> list[Text]:
    """Return what exploring has saved so far, compared with always using the default.

    The first line is the net, the second what it is compared with. Empty before any exploration.
    """
    if not savings.explored:
        return []
    net_j, compared = savings.net_j, len(savings.by_trial)
    of = f"{compared} of {savings.ended}" if compared < savings.ended else str(compared)
    net = f"net so far: {units.gain(net_j)} of {units.energy(savings.default_j)} ({of} recurrences)"
    if net_j < 0 and savings.coming_j == 0:
        net += "; the default is in use"
    elif savings.pays_back_in is not None:
        net += f"; pays back in about {savings.pays_back_in} more"
    bases = {_basis(each): each.default_runs for each in savings.by_trial.values()}
    basis = next(iter(bases))
    if len(bases) > 1:
        basis = f"the default batch size, by its {sum(bases.values())} runs under equal conditions"
    style = "green" if net_j >= 0 else "yellow"
    return [Text(f"  {net}", style=style), Text(f"  against {basis}", style="dim")]


def saving_lines(savings: Savings, trial: Trial) -> list[Text]:
    """Return what the recurrence of its last trial saved, and what all recurrences saved."""
    saving = savings.by_trial.get(trial.trial)
    if saving is None:
        return []
    own = Text(f"  this recurrence: {units.gain(saving.saved_j)} against {_basis(saving)}")
    return [*([own] if saving.explored else []), *net_lines(savings)[:1]]


def _basis(saving: Saving) -> str:
    runs = "1 run" if saving.default_runs == 1 else f"the mean of {saving.default_runs} runs"
    return f"batch size {saving.default}: {units.energy(saving.default_j)}, {runs}"


def plan_sheet(
    trial: Trial, command: str, env: Mapping[str, str], kept: Sequence[str]
) -> RenderableType:
    """Return the trial that a submit would choose and the command that it would start."""
    variables = [Text(f"  {name}={value}", style="dim") for name, value in env.items()]
    notes = [Text(f"· history: {text}", style="dim") for text in kept]
    return Group(*notes, trial_head(trial), Text(""), Text(command), Text(""), *variables)


def trial_head(trial: Trial) -> RenderableType:
    """Return the choice and its reason, in two lines."""
    rate = "" if trial.learning_rate is None else f" · learning rate {trial.learning_rate:g}"
    choice = f"  batch size {trial.global_batch_size}{rate} · {_ranks(trial)}"
    head = Text.assemble((trial.trial, "bold"), choice)
    return Group(head, Text(f"  {trial.stage.value}: {trial.why}", style="dim"))


def _ranks(trial: Trial) -> str:
    return f"{trial.world_size} rank" + ("" if trial.world_size == 1 else "s")


def history_table(
    job: str,
    trials: Sequence[Trial],
    last: int | None,
    count: int | None = None,
    running: Mapping[str, RunningTrial] = MappingProxyType({}),
) -> RenderableType:
    """Return the savings of a job and a table of its trials, oldest first.

    Args:
        job: The name of the job.
        trials: The trials to show, and those to compare them with.
        last: The number of trials to show; ``None`` for all of them.
        count: The number of trials of the job; ``None`` for as many as are given.
        running: Unfinished trials with their live numbers, by id.
    """
    shown = trials if last is None else trials[-last:] if last else []
    savings = find_savings(trials)
    table = plain_table()
    table.add_column("when", no_wrap=True)
    table.add_column("run", no_wrap=True)
    table.add_column("batch", justify="right")
    limited = any(trial.power_limit_w is not None for trial in shown)
    if limited:
        table.add_column("limit", justify="right")
    for name in ("epochs", "time", "energy", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    shares = {name: each.share for name, each in savings.by_trial.items() if each.explored}
    proved = any(trial.trial in shares for trial in shown)
    if proved:
        table.add_column("saved", justify="right")
    for stored in shown:
        now = None if stored.status.finished else running.get(stored.trial)
        trial = stored if now is None else now.trial
        cells: list[RenderableType] = [
            units.moment(trial.started_at),
            f"{trial.recurrence}-{trial.attempt}",
            str(trial.global_batch_size),
            *([units.power(trial.power_limit_w)] if limited else []),
            units.count(trial.epochs),
            units.duration(trial.time_s),
            units.energy(trial.energy_j, trial.energy_source),
            units.energy(trial.cost_j),
            Text("forgotten")
            if trial.forgotten
            else status_text(trial.status, alive=now is not None and now.alive),
            *([units.percent(shares.get(trial.trial))] if proved else []),
        ]
        table.add_row(*cells, style="dim" if trial.forgotten else None)
    going = [running.get(trial.trial) for trial in trials if not trial.status.finished]
    dead = [each for each in going if each is not None and not each.alive]
    head = [Text(job, style="bold"), *net_lines(savings), Text("")]
    footnotes = _footnotes(len(trials) if count is None else count, shown, proved=proved)
    moves = describe_shifts(trials)
    notes = [notes_sheet(moves)] if moves else []
    dead_notes = [dead_note(each.trial) for each in dead]
    return Group(*head, table, *footnotes, *dead_notes, *notes)


def dead_note(trial: Trial) -> Text:
    """Return a warning about a trial whose launcher is dead."""
    return Text(f"  the launcher of {trial.trial} is dead: zeusrun repair", style="yellow")


def notes_sheet(texts: Sequence[str]) -> RenderableType:
    """Return warnings, one per line."""
    return Labelled([(Text("!", style="yellow"), Text(text)) for text in texts], gap=1)


def _footnotes(count: int, shown: Sequence[Trial], *, proved: bool) -> Iterable[Text]:
    sources = {trial.energy_source for trial in shown}
    notes = [note for source, note in _SOURCE_NOTES.items() if source in sources]
    if proved:
        notes.append("saved: with all attempts")
    if len({trial.eta_knob for trial in shown}) > 1:
        notes.append("costs of different eta_knob")
    if len(shown) < count:
        notes.append(f"{count - len(shown)} earlier: --last {count}")
    if notes:
        yield Text("  " + " · ".join(notes), style="dim")


def limit_text(trial: Trial) -> str:
    """Return the limit of a trial, such as ``150 W, 3 others tried``."""
    others = {point.power_limit_w for point in trial.power_profile} - {trial.power_limit_w, None}
    tried = f", {len(others)} other{'s'[: len(others) > 1]} tried" if others else ""
    return units.power(trial.power_limit_w) + tried


def explain_table(
    title: str,
    beliefs: Sequence[ArmBelief],
    kept: Sequence[str] = (),
    limits: Mapping[int, tuple[float, int]] | None = None,
) -> RenderableType:
    """Return what a policy believes about each batch size: a table, then a verdict on each.

    Columns that the policy does not use are left out.

    Args:
        title: The heading of the table.
        beliefs: One for each arm.
        kept: Remarks about past trials that are interpreted differently now.
        limits: Best power limit in watts, and of how many measured, by arm.
    """
    table = plain_table(title=title)
    valued = any(belief.value_j is not None for belief in beliefs)
    for name in (
        *("batch", "reached", "epochs", "cost/\nepoch", "cost", "90 % range", "risk"),
        *(("worth",) if valued else ()),
        "next",
    ):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    verdicts = Table.grid(padding=(0, 2, 0, 0))
    verdicts.add_column(justify="right", no_wrap=True, min_width=5)
    verdicts.add_column(overflow="fold")
    for belief in beliefs:
        likely = belief.chance >= 0.5
        arm = str(belief.global_batch_size)
        table.add_row(
            arm,
            f"{belief.reached}/{belief.trials}" if belief.trials else units.UNKNOWN,
            units.UNKNOWN if belief.epochs is None else f"{belief.epochs:.1f}",
            units.energy(belief.epoch_cost_j),
            units.energy(belief.cost_j),
            units.energy_range(belief.cost_range_j),
            units.percent(belief.failure_chance),
            *([_worth(belief)] if valued else []),
            units.percent(belief.chance),
            style="bold" if likely else None,
        )
        verdicts.add_row(Text(arm), Text(belief.verdict), style=None if likely else "dim")
    notes = [
        Text(""),
        Text("  90 % range: of the cost of the next run", style="dim"),
        Text("  risk: that it costs more than it may and is stopped, or misses", style="dim"),
    ]
    notes += [Text(f"  worth: {_WORTH}", style="dim")] if valued else []
    if limits:
        best = [f"{arm}: {units.power(w)}, best of {of}" for arm, (w, of) in limits.items()]
        notes.append(Text(f"  power limit: {' · '.join(best)}", style="dim"))
    notes += [Text(f"· history: {text}", style="dim") for text in kept]
    return Group(table, Text(""), verdicts, *notes)


_WORTH = "what a try would save in the recurrences to come, less its cost"


def _worth(belief: ArmBelief) -> str:
    """Return the worth of a try; 0 and unknown are shown as a dash."""
    return units.gain(belief.value_j) if belief.value_j else units.UNKNOWN


def trial_sheet(
    trial: Trial, failure: str | None, *, run_dir_exists: bool, alive: bool = False
) -> RenderableType:
    """Return everything about one trial.

    Args:
        trial: The trial as recorded, or with its live numbers.
        failure: The traceback of a crash.
        run_dir_exists: Whether its run directory still exists.
        alive: Whether it is running.
    """
    head = Text.assemble((trial.trial, "bold"), "  ", status_text(trial.status, alive=alive))
    source = trial.energy_source.value if trial.energy_source else None
    better = "≤" if trial.mode == "min" else "≥"
    rows = [
        ("reason", trial.reason),
        ("forgotten", _unforget(trial) if trial.forgotten else None),
        ("batch size", f"{trial.global_batch_size} ({_ranks(trial)})"),
        ("chosen", f"{trial.stage.value}: {trial.why}"),
        ("learning rate", None if trial.learning_rate is None else f"{trial.learning_rate:g}"),
        ("power limit", limit_text(trial) if trial.power_limit_w else None),
        (
            "device",
            (f"{trial.gpu_count} x {trial.gpu_model}" if trial.gpu_model else "no GPU")
            + (", shared with other processes" if trial.shared else ""),
        ),
        ("started", units.moment(trial.started_at)),
        ("start-up", units.duration(trial.startup_s)),
        ("time", units.duration(trial.time_s)),
        ("energy", units.energy(trial.energy_j) + (f" ({source})" if source else "")),
        ("", units.accounts(trial.energy_counter_j, trial.energy_integrated_j)),
        ("cost", f"{units.energy(trial.cost_j)} (eta_knob {trial.eta_knob:g}){_profiling(trial)}"),
        ("epochs", f"{units.count(trial.epochs)} of at most {trial.max_epochs}"),
        ("steps", units.count(trial.steps)),
        ("speed", "\n".join(_speed(point) for point in trial.power_profile)),
        (
            units.shortened(trial.metric),
            f"best {units.metric(trial.best_metric)}, target {better} {trial.target:g}",
        ),
        ("", units.sparkline([point.value for point in trial.curve])),
        ("run", trial.run_dir if run_dir_exists else f"{trial.run_dir} (gone)"),
    ]
    # Text, so that nothing a user wrote is taken for markup.
    labelled = [(Text(name, style="dim"), Text(value)) for name, value in rows if value]
    parts: list[RenderableType] = [head, Labelled(labelled)]
    parts += [] if alive or trial.status.finished else [dead_note(trial)]
    parts += [Text(f"! {warning}", style="yellow") for warning in trial.warnings]
    if failure:
        # A traceback aligns its lines: do not break them.
        whole = Text(failure.rstrip(), style="red", no_wrap=True, overflow="ignore")
        parts += [Text(""), whole]
    return Group(*parts)


def _unforget(trial: Trial) -> str:
    return f"to learn from it again: zeusrun history --unforget {trial.trial}"


def _profiling(trial: Trial) -> str:
    if trial.profiling_cost_j is None:
        return ""
    return f", {units.energy(trial.profiling_cost_j)} of it for trying power limits"


def _speed(point: PowerPoint) -> str:
    """Return a point of a power profile, such as ``12.3 steps/s at 143 W``."""
    limit_w = point.power_limit_w
    limit = "" if limit_w is None else f" (limit {units.power(limit_w)})"
    return f"{point.steps_per_s:.3g} steps/s at {units.power(point.power_w)}{limit}"


def doctor_sheet(checks: Sequence[Check]) -> RenderableType:
    """Return the checks of ``doctor``."""
    marks = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}
    rows = []
    for check in checks:
        mark, style = marks[check.well]
        body = Text(check.found)
        if check.advice:
            body.append(f"\n→ {check.advice}", style="yellow" if check.well is False else "dim")
        rows.append((Text.assemble((mark, style), (f" {check.name}", "bold")), body))
    return Labelled(rows, gap=1)


def status_text(status: TrialStatus, *, alive: bool = False) -> Text:
    """Return a status in its colour; ``RUNNING`` if the launcher is alive."""
    return Text("RUNNING" if alive else status.value, style=STATUS_STYLES[status])


def plain_table(title: str | None = None) -> Table:
    """Return an empty table in the common style."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )

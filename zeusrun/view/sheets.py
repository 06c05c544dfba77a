"""The sheets of ``show``: everything about one trial, and every metric that it produced."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.analysis.amounts import time_after_target
from zeusrun.analysis.curves import amount_in, curve_in, curve_unit
from zeusrun.bandit.proof import Doubt, as_undisturbed, is_resized, prove
from zeusrun.trial import split_variant
from zeusrun.trial.resizes import describe_resize
from zeusrun.view import units
from zeusrun.view.columns import Column, column_table
from zeusrun.view.console import Labelled, warning_lines
from zeusrun.view.tables import dead_note, status_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from zeusrun.metrics.progress import TrainingSummary
    from zeusrun.trial import PowerPoint, Trial

_NAME = 24  # columns for the name of a metric; longer ones fold
_SYNCS = 6  # the last changes of how the ranks agree
_RESIZES = 8  # the last changes of the ranks


def trial_sheet(
    trial: Trial,
    failure: str | None,
    *,
    run_dir_exists: bool,
    alive: bool = False,
    sight: TrainingSummary | None = None,
    elsewhere: str | None = None,
    shared: bool = False,
) -> RenderableType:
    """Return everything about one trial.

    ``failure`` is the traceback of a crash; ``elsewhere`` names the other machine or home that
    has its files, such as ``on node-2``. ``shared``: with other machines, so the host is shown.
    """
    gone = "" if run_dir_exists else " (gone)"
    gone = gone if elsewhere is None else f" {elsewhere}"
    head = Text.assemble((trial.trial, "bold"), "  ", status_text(trial.status, alive=alive))
    forgotten = f"to learn from it again: zeusrun history --unforget {trial.trial}"
    rows = [
        ("reason", trial.reason),
        ("forgotten", forgotten if trial.forgotten else None),
        *trial_rows(trial, sight),
        ("host", trial.host if shared or trial.allocation else None),
        ("runs in", trial.allocation),
        ("", units.sparkline([each.value for each in curve_in(trial, curve_unit([trial]))])),
        ("run", trial.run_dir + gone),
    ]
    # Text, so that nothing a user wrote is taken for markup.
    labelled = [(Text(name, style="dim"), Text(value)) for name, value in rows if value]
    parts: list[RenderableType] = [head, Labelled(labelled)]
    parts += [] if alive or trial.status.finished else [dead_note(trial)]
    parts.append(warning_lines(trial.warnings))
    if failure:
        # A traceback aligns its lines: do not break them.
        whole = Text(failure.rstrip(), style="red", no_wrap=True, overflow="ignore")
        parts += [Text(""), whole]
    return Group(*parts)


def _host_rows(trial: Trial) -> list[tuple[str, str | None]]:
    """Return each host of a run on several, with its ranks and its part of the energy."""
    return [
        (
            "" if number else "hosts",
            f"{share.name}: {units.plural(share.ranks, 'rank')}"
            + ("" if share.energy_j is None else f", {units.electricity(share.energy_j)}"),
        )
        for number, share in enumerate(trial.hosts)
    ]


def trial_rows(trial: Trial, sight: TrainingSummary | None = None) -> list[tuple[str, str | None]]:
    """Return what was chosen for a trial and what it took, with names.

    Without a name, a row belongs to the one before it; without a text, it is left out.
    """
    source = f" ({trial.energy_source.value})" if trial.energy_source else ""
    device = f"{trial.gpu_count} x {trial.gpu_model}" if trial.gpu_model else "no GPU"
    cost = f"{units.energy(trial.cost_j)} (eta_knob {trial.eta_knob:g})"
    if trial.profiling_cost_j is not None:
        cost += f", {units.energy(trial.profiling_cost_j)} of it for trying power limits"
    best = f"best {units.number(trial.best_metric, '.4g')}, {units.target_text(trial)}"
    path = units.path_text(trial.batch_sizes) or str(trial.global_batch_size)
    adapts, sync = split_variant(trial.variant)
    on = time_after_target(trial) is not None
    steps_after = f" to the target, {units.number(trial.whole_steps)} in all" if on else ""
    origin, resizes = None, trial.world_sizes[-_RESIZES - 1 :]
    if sight is not None and sight.source is not None:
        origin = f"from {seen_by(sight, trial.metric)}"
    return [
        ("batch size", f"{trial.global_batch_size} ({units.plural(trial.world_size, 'rank')})"),
        *_host_rows(trial),
        ("ranks", units.path_text(trial.world_sizes, last=_RESIZES)),
        *(("", describe_resize(a.world_size, b)) for a, b in pairwise(resizes)),
        ("adapted", None if adapts is None else f"{adapts}: {path}"),
        ("sync", sync or ("all-reduce" if trial.syncs else None)),
        *(("", units.sync_text(change)) for change in trial.syncs[-_SYNCS:]),
        ("observed", observed_text(trial, sight)),
        ("chosen", f"{trial.stage.value}: {trial.why}"),
        ("learning rate", None if trial.learning_rate is None else f"{trial.learning_rate:g}"),
        ("power limit", units.limit_text(trial) if trial.power_limit_w else None),
        ("device", device + (", shared with other programs" if trial.shared else "")),
        ("started", units.moment(trial.started_at)),
        ("start-up", units.duration(trial.startup_s)),
        ("time", units.duration(trial.time_s)),
        ("waiting", units.waiting_text(trial)),
        ("workers", units.workers_text(trial)),
        ("energy", units.electricity(trial.energy_j) + source),
        *_spent_rows(trial),
        ("cost", cost),
        ("", _cost_parts(trial)),
        ("", undisturbed_text(trial)),
        _length(trial),
        ("steps", units.number(trial.steps) + steps_after),
        ("gradients", units.gradients_text(trial, whole=True)),
        ("speed", "\n".join(map(_speed, trial.power_profile))),
        (units.shortened(trial.metric), best),
        ("", origin),
    ]


def _cost_parts(trial: Trial) -> str | None:
    """Return how energy and time make up a cost; ``None`` if it depends on one of them alone."""
    energy_j, power_w, time_s, knob = (
        trial.energy_j,
        trial.max_power_w,
        trial.time_s,
        trial.eta_knob,
    )
    if energy_j is None or power_w is None or time_s is None or knob in {0, 1}:
        return None
    energy, power, time = units.energy(energy_j), units.power(power_w), units.duration(time_s)
    return f"{knob:g} · {energy} + {1 - knob:g} · {power} (maximum power) · {time}"


def undisturbed_text(trial: Trial) -> str | None:
    """Return what a run would have cost without interruptions; ``None`` if that is its cost."""
    if not trial.interruptions or is_resized(trial):
        return None
    proof, cost_j, why = prove(trial), as_undisturbed(trial).cost_j, _interruptions(trial)
    if proof.learning is Doubt.UNCLEAR:
        return (
            f"unknown without interruptions: {why}; whether it began anew or went on cannot be told"
        )
    if proof.learning is Doubt.RESTARTED:
        why += ", and it began anew"
    if proof.speed is Doubt.INTERRUPTED:
        return f"no epoch without an interruption: {why}"
    if cost_j is None or trial.cost_j is None or cost_j >= trial.cost_j:
        return None
    text = units.energy(cost_j)
    same = text == units.energy(trial.cost_j)
    return None if same else f"{text} without interruptions: {why}"


def _interruptions(trial: Trial) -> str:
    """Return by what a run was interrupted, and in which epochs."""
    epochs = dict.fromkeys(each.epochs + 1 for each in trial.interruptions)
    where = f"in epoch{'s' * (len(epochs) > 1)} {', '.join(map(str, epochs))}"
    if not trial.preemptions:
        return f"the ranks were restarted {where}"
    if len(trial.interruptions) <= trial.preemptions:
        return f"it was preempted {where}"
    return f"it was preempted, or the ranks were restarted, {where}"


def observed_text(trial: Trial, sight: TrainingSummary | None) -> str | None:
    """Return with what batch size a training was seen to train; ``None`` without a record."""
    size = trial.observed_batch_size
    if trial.batch_sizes and size in {None, trial.global_batch_size}:
        return None  # it changed as planned
    if sight is None:
        return None if size is None else f"batch size {size}"
    applied = "".join(f"\n{text}" for text in sight.applied)
    if size is None and trial.unapplied:
        return f"not observed: nothing has taken batch size {trial.global_batch_size}{applied}"
    if size is None:
        return (
            "not observed: no data loader with one batch size feeds the optimizer steps, or a pass "
            "has too few of them"
        )
    how = f" ({sight.steps})" if sight.steps else ""  # an earlier part has shown it
    rates = "".join(f", learning rate {rate:g}" for rate in sight.learning_rates[:1])
    return f"batch size {size}{how}{rates}{applied}"


def seen_by(sight: TrainingSummary, metric: str) -> str:
    """Return the source of the metric, with the library's version and how it is logged."""
    source = sight.source or ""
    versions = [version for name, version, _ in sight.libraries if name == source]
    shown = {"report": "run.report of the script"}.get(source, " ".join([source, *versions]))
    hows = [seen.how for name, by, seen in sight.metrics if (name, by) == (metric, source)]
    return ", ".join([shown, *filter(None, hows)])


def sight_sheet(trial: Trial, sight: TrainingSummary, width: int) -> RenderableType:
    """Return every metric that a trial produced, with its source and its values."""
    table = metrics_table(sight, trial.metric, width)
    head = Text.assemble((trial.trial, "bold"), f"  {trial.metric}, {units.target_text(trial)}")
    if sight.source is None:
        then = (
            "correct objective.metric or metrics.name" if sight.metrics else "see docs/metrics.md"
        )
        end = f"{trial.metric} never came; {then}"
    else:
        end = f"{trial.metric} is taken from {seen_by(sight, trial.metric)}"
    return Group(
        head, table if sight.metrics else Text("no metric was seen"), Text(end, style="dim")
    )


def metrics_table(sight: TrainingSummary, metric: str, width: int) -> Table:
    """Return the metrics that were seen; the values of ``metric`` that count are bold.

    Columns for which the console has no room are left out; longer names fold.
    """
    styles = {
        number: "bold"
        if (name, source) == (metric, sight.source)
        else "dim"
        if seen.each_step
        else ""
        for number, (name, source, seen) in enumerate(sight.metrics)
    }
    return column_table(_METRIC_COLUMNS, sight.metrics, width, styles)


def _value_column(name: str, field: str, leaves: int) -> Column:
    return Column(name, lambda each: units.number(getattr(each[2], field), ".5g"), leaves=leaves)


# Of a name, a source and what was seen.
_METRIC_COLUMNS = (
    Column("metric", lambda each: each[0], left=True, folds=_NAME),
    Column("source", lambda each: each[1], left=True, leaves=6),
    Column("records", lambda each: f"{each[2].times:,}", leaves=5),
    _value_column("first", "first", 4),
    _value_column("last", "last", 0),
    Column("range", lambda each: f"{each[2].low:.5g} to {each[2].high:.5g}", leaves=3),
    Column("how", lambda each: each[2].how or units.UNKNOWN, left=True, optional=True, leaves=1),
)


def _length(trial: Trial) -> tuple[str, str]:
    """Return the row of epochs, or of samples where the metric is reported within epochs."""
    if trial.by_reports and not trial.by_samples:  # nothing else says how far it went
        return "reports", units.number(trial.epochs)
    to_target = " to the target" if time_after_target(trial) else ""
    if not trial.by_samples:
        done = f", {units.number(trial.whole_epochs)} done" if to_target else ""
        return (
            "epochs",
            f"{units.number(trial.epochs)}{to_target}{done} of at most {trial.max_epochs}",
        )
    of = "" if trial.progress is None else f" ({trial.progress:.3g} epochs)"
    done = f", {units.count(trial.whole_samples)} in all" if to_target else ""
    return "samples", units.count(amount_in(trial, "samples")) + of + to_target + done


def _spent_rows(trial: Trial) -> list[tuple[str, str | None]]:
    """Return the rows of price and carbon; the first one names a PUE."""
    site = "" if trial.pue in {None, 1.0} else f" (PUE {trial.pue:g})"
    price = None if trial.price is None else units.money(trial.price, trial.currency) + site
    carbon = None if trial.carbon_g is None else f"{units.carbon(trial.carbon_g)} CO2e"
    return [("price", price), ("carbon", carbon and carbon + ("" if price else site))]


def _speed(point: PowerPoint) -> str:
    """Return a point of a power profile, such as ``12.3 steps/s at 143 W``."""
    limit_w = point.power_limit_w
    limit = "" if limit_w is None else f" (limit {units.power(limit_w)})"
    return f"{point.steps_per_s:.3g} steps/s at {units.power(point.power_w)}{limit}"

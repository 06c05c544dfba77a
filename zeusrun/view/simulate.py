"""The tables of ``simulate``, which fit 80 columns, its JSON and its progress bar."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Group
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from zeusrun.analysis.estimates import Estimate, name_ends
from zeusrun.view import units
from zeusrun.view.claims import claim_style, join_ends, short_share, signed
from zeusrun.view.columns import column_table, tuple_columns
from zeusrun.view.console import Labelled, warning_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from zeusrun.simulate.own_job import JobModel
    from zeusrun.simulate.replay import Forecast

Case: TypeAlias = "tuple[str, JobModel, Forecast]"
"""A policy's name, what the history says under the settings, and what the replay found."""

_SAME = 0.005  # a smaller difference in nine of ten replays is none
_LEAST_REPLAYS = 19  # one more lies between the ends of fewer in less than nine of ten cases
_FEW = 10  # runs; with fewer, the spread between runs is mostly assumed


def forecast_sheet(
    cases: Sequence[Case],
    overrides: Sequence[str],
    recurrences: int,
    seeds: int,
    *,
    width: int,
    settings: str | None = None,
) -> RenderableType:
    """Return the forecast of a job as it is, and with its changed settings if there are any.

    ``width``: of the console. ``settings`` says whose settings the job has; ``None``: those of the
    job file that was named.
    """
    _, model, _ = cases[-1]
    title = f"{model.job}: the next {units.plural(recurrences, 'recurrence')}"
    if overrides:
        title += f", as it is and with {', '.join(overrides)}"
    blank = Text("")
    legend = [*_legend(cases, seeds), *([settings] if settings else [])]
    return Group(
        Text(title, style="bold"),
        blank,
        _comparison(cases, width),
        blank,
        _basis(model, width),
        blank,
        Labelled([(Text(), Text(text, style="dim")) for text in legend]),
        warning_lines(list(_warnings(model))),
    )


def saved_share(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return what a change saves, as a share, and where nine of ten replays lie.

    The same seed gave both settings the same luck. Few replays show no difference.
    """
    low, share, high = _quantiles([1 - b / a for a, b in zip(before, after, strict=True)])
    if len(before) < _LEAST_REPLAYS:
        low, high = min(low, 0.0), max(high, 0.0)
    return Estimate(share, low, high)


def _is_same(saved: Estimate) -> bool:
    return max(abs(saved.low), abs(saved.high)) < _SAME


def _short_claim(saved: Estimate) -> Text:
    """Return what is saved for a cell: a number if it is shown, and below it the range."""
    if _is_same(saved):
        return Text("none")
    share, _, ends = short_share(saved).partition(" (")
    head = (share, claim_style(saved)) if saved.is_shown else "not shown"
    return Text.assemble(head, "\n", (ends.removesuffix(")"), "dim"))


def _comparison(cases: Sequence[Case], width: int) -> Table:
    """Return what runs take: a row each for the batch size, the cost, and so on."""
    found = [forecast for *_, forecast in cases]
    known = all(model.energy_known for _, model, _ in cases)
    amounts: list[tuple[str, str, Callable[[float], str]]] = [
        ("cost of a run", "cost_j", units.energy),
        *([("energy of a run", "energy_j", units.energy)] if known else []),
        ("time of a run", "time_s", units.duration),
        ("cost of exploring", "exploring_j", units.energy),
        *([("cost of control runs", "control_j", units.energy)] if _has_control(cases) else []),
    ]

    def rows() -> Iterator[tuple[str | Text, ...]]:
        none = Text(units.UNKNOWN, style="dim")
        yield "batch size in the end", *map(_in_use, found), none
        for label, name, text in amounts:
            taken = [getattr(each, name) for each in found]
            saved = _short_claim(saved_share(*taken)) if name in _compared(cases) else none
            yield label, *(spread_text(values, text) for values in taken), saved

    names = ["", *("today", "changed")[: len(cases)], *(["saved"] if len(cases) > 1 else [])]
    return column_table(tuple_columns(names), list(rows()), width)


def _compared(cases: Sequence[Case]) -> list[str]:
    """Return what can be compared of a run."""
    if len(cases) == 1:
        return []
    names = [] if _has_two_knobs(cases) else ["cost_j"]
    known = all(model.energy_known for _, model, _ in cases)
    return [*names, *(["energy_j"] if known else []), "time_s"]


def _short(seconds: float) -> str:
    """Return the time of an epoch, which may be milliseconds."""
    return f"{1000 * seconds:.2g} ms" if 0 < seconds < 0.05 else units.duration(seconds)


def _has_two_knobs(cases: Sequence[Case]) -> bool:
    return len({model.problem.eta_knob for _, model, _ in cases}) > 1


def _has_control(cases: Sequence[Case]) -> bool:
    return any(model.problem.control for _, model, _ in cases)


def _in_use(forecast: Forecast) -> str:
    sizes = Counter(forecast.batch_sizes).most_common(3)
    if len(sizes) == 1:
        return str(sizes[0][0])
    return "\n".join(
        f"{arm} ({units.percent(times / len(forecast.batch_sizes))})" for arm, times in sizes
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 5th, 50th and 95th percentile of what the values were drawn from.

    One more draw lies within the ends in nine of ten cases.
    """
    ordered = sorted(values)
    beyond = max(1, int(0.05 * (len(ordered) + 1)))
    return ordered[beyond - 1], statistics.median(ordered), ordered[-beyond]


def spread_text(values: Sequence[float], text: Callable[[float], str]) -> Text:
    """Return the median, and below it where nine of ten values lie."""
    low, median, high = (signed(each, text) for each in _quantiles(values))
    ends = "" if low == high else join_ends(low, high).replace(" to ", " to\n")
    return Text.assemble(median, ("\n" if ends else "", ""), (ends, "dim"))


def _basis(model: JobModel, width: int) -> Table:
    """Return the table of the measured values with which each batch size is simulated."""
    rows = []
    for arm in model.arms:
        rate = min(arm.rates.values(), key=lambda rate: rate.epoch_s)
        never = "has never reached the target" if arm.missing >= 1 else ""
        rows.append(
            (
                str(arm.batch_size),
                str(arm.runs),
                units.UNKNOWN if never else f"{math.exp(arm.log_epochs):.1f}",
                _short(rate.epoch_s),
                units.power(rate.power_w if model.energy_known else None),
                Text(never, style="dim"),
            )
        )
    names = ("batch", "runs", "epochs", "an epoch", "power", "")
    return column_table(tuple_columns(names), rows, width)


def _legend(cases: Sequence[Case], seeds: int) -> Iterator[str]:
    _, model, forecast = cases[-1]
    yield f"The forecast uses {units.plural(model.reached, 'run')} that reached the target."
    yield (
        f"The median of {units.plural(seeds, 'replay')}, and where nine of ten lie: each replay "
        "draws what is uncertain, and the runs, anew. Exploring: what tries of other batch sizes "
        "cost more."
    )
    if _has_control(cases):
        yield "Control runs: what those of the default cost more than a run in the end."
    if any(len(arm.rates) > 1 for arm in model.arms):
        yield "Only power limits that were measured are simulated; others may be better."
    if _has_two_knobs(cases):
        yield "Costs of different eta_knob cannot be compared; energy and time can."
    if sum(forecast.unreached):
        yield f"{sum(forecast.unreached)} recurrences of all replays ended without a model."


def _warnings(model: JobModel) -> Iterator[str]:
    if model.reached < _FEW:
        yield f"only {model.reached} runs: the true spread may be much wider"
    if model.left_out:
        sizes = ", ".join(map(str, model.left_out))
        yield f"left out, because they crash or have no runs on these devices and settings: {sizes}"


def forecast_json(
    cases: Sequence[Case], overrides: Sequence[str], recurrences: int, seeds: int
) -> dict[str, Any]:
    """Return the forecast as plain JSON; ``changed`` is ``None`` without changes.

    ``saved`` is the share that a changed run saves, of what can be compared.
    """
    found = [forecast for *_, forecast in cases]
    return {
        "job": cases[0][1].job,
        "set": list(overrides),
        "recurrences": recurrences,
        "seeds": seeds,
        "today": _case_json(cases[0]),
        "changed": _case_json(cases[1]) if len(cases) > 1 else None,
        "saved": {
            name: name_ends("share", saved_share(*(getattr(each, name) for each in found)))
            for name in _compared(cases)
        },
    }


def _case_json(case: Case) -> dict[str, Any]:
    policy, model, forecast = case
    sizes = Counter(forecast.batch_sizes).most_common()
    spreads: dict[str, dict[str, float] | None] = {
        name: dict(zip(("p5", "median", "p95"), _quantiles(getattr(forecast, name)), strict=True))
        for name in ("cost_j", "energy_j", "time_s", "exploring_j", "control_j")
    }
    if not model.energy_known:
        spreads["energy_j"] = None
    return {
        "policy": policy,
        "eta_knob": model.problem.eta_knob,
        "runs": model.reached,
        "batch_sizes": {arm: times / len(forecast.batch_sizes) for arm, times in sizes},
        **spreads,
        "unreached": sum(forecast.unreached),
        "candidates": [
            {
                "global_batch_size": arm.batch_size,
                "runs": arm.runs,
                "epochs": math.exp(arm.log_epochs) if arm.missing < 1 else None,
            }
            for arm in model.arms
        ],
        "left_out": list(model.left_out),
    }


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Callable[[float], None]]:
    """Show a progress bar, on a terminal only; yields what takes the finished share, 0 to 1."""
    columns = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share: bar.update(task, completed=share)

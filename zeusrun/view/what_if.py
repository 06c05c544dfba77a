"""The table of ``simulate JOB``, which fits 80 columns, and its JSON."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Group
from rich.text import Text

from zeusrun.simulate.own_job import lowest_limit_w
from zeusrun.view import units
from zeusrun.view.console import Labelled, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from zeusrun.simulate.own_job import KnownArm, Model
    from zeusrun.simulate.what_if import Forecast

Case: TypeAlias = "tuple[str, Model, Forecast]"
"""A policy's name, what the history says under the settings, and what the replay found."""

_SAME = 0.005  # a smaller difference is none
_LITTLE = 0.05  # of a run
_SPREADS = ("cost_j", "energy_j", "time_s", "exploring_j")
_FEW = 10  # runs; with fewer, the spread between runs is mostly assumed


def forecast_sheet(
    cases: Sequence[Case], overrides: Sequence[str], recurrences: int, seeds: int
) -> RenderableType:
    """Return the forecast of a job as it is, and with its changed settings if there are any."""
    _, model, _ = cases[-1]
    title = f"{model.job}: the next {units.plural(recurrences, 'recurrence')}"
    if overrides:
        title += f", as it is and with {' '.join(overrides)}"
    blank = Text("")
    notes = [(Text("!", style="yellow"), Text(text)) for text in _warnings(cases[-1])]
    return Group(
        Text(title, style="bold"),
        Labelled([(Text(), Text(text)) for text in _lead(cases)]),
        blank,
        _comparison(cases),
        blank,
        _basis(model),
        blank,
        Labelled([(Text(), Text(text, style="dim")) for text in _legend(cases, seeds)]),
        *([Labelled(notes, gap=1)] if notes else []),
    )


def _lead(cases: Sequence[Case]) -> Iterator[str]:
    """Yield what a run will take, in plain sentences."""
    (_, model, before), (_, _, after) = cases[0], cases[-1]
    arm, cost_j = _usual_size(after), statistics.median(after.cost_j)
    share = after.batch_sizes.count(arm) / len(after.batch_sizes)
    often = "" if share == 1 else f" in {share:.0%} of the replays"
    if len(cases) == 1:
        size = f"In the end, a run uses batch size {arm}{often}"
        yield f"{size}, and costs about {units.energy(cost_j)}. {_to_explore(after)}"
        return
    changes = [_than(before.time_s, after.time_s, "time")]
    if model.energy_known:
        changes.insert(0, _than(before.energy_j, after.energy_j, "energy"))
    then = _usual_size(before)
    today = ", as today" if arm == then else f"; today it uses {then}"
    yield (
        f"Changed, a run takes {' and '.join(changes)}. In the end it uses batch size "
        f"{arm}{often}{today}. {_to_explore(after)}"
    )


def _to_explore(forecast: Forecast) -> str:
    spent_j, run_j = (statistics.median(each) for each in (forecast.exploring_j, forecast.cost_j))
    if spent_j < _LITTLE * run_j:
        return "Exploring costs hardly anything."
    return f"Exploring costs about {units.energy(spent_j)}, as much as {spent_j / run_j:.1f} runs."


def _usual_size(forecast: Forecast) -> int:
    return statistics.mode(forecast.batch_sizes)


def _than(before: Sequence[float], after: Sequence[float], what: str) -> str:
    """Compare two forecasts in words, with the range that nine of ten replays are in."""
    low, share, high = _quantiles([b / a - 1 for a, b in zip(before, after, strict=True)])
    text = f"about as much {what}"
    if abs(share) >= _SAME:
        text = f"about {abs(share):.0%} {'more' if share > 0 else 'less'} {what}"
    return text if high - low < _SAME else f"{text} ({_change(low)} to {_change(high)})"


def _comparison(cases: Sequence[Case]) -> Table:
    table = plain_table()
    table.add_column("", no_wrap=True)
    for name in ("today", "changed")[: len(cases)]:
        table.add_column(name, justify="right")
    if len(cases) > 1:
        table.add_column("difference", justify="right", no_wrap=True)
    same = len({model.problem.eta_knob for _, model, _ in cases}) == 1
    known = all(model.energy_known for _, model, _ in cases)
    found = [forecast for *_, forecast in cases]
    none = [Text(units.UNKNOWN, style="dim")] * (len(cases) - 1)
    table.add_row("batch size in the end", *map(_in_use, found), *none)
    rows: list[tuple[str, str, Callable[[float], str], bool]] = [
        ("cost of a run", "cost_j", units.energy, same),
        *([("energy of a run", "energy_j", units.energy, True)] if known else []),
        ("time of a run", "time_s", units.duration, True),
        ("cost of exploring", "exploring_j", _exploring, False),
    ]
    for label, name, text, compared in rows:
        columns: list[tuple[float, ...]] = [getattr(each, name) for each in found]
        cells = [_spread(column, text) for column in columns]
        changes = (
            [b / a - 1 for a, b in zip(columns[0], columns[-1], strict=True)] if compared else []
        )
        change = [_spread(changes, _change)] if compared else none
        table.add_row(label, *cells, *change[: len(cases) - 1])
    return table


def _in_use(forecast: Forecast) -> str:
    """Return the batch sizes in use at the end, the usual one first, with their shares."""
    sizes = Counter(forecast.batch_sizes).most_common(3)
    if len(sizes) == 1:
        return str(sizes[0][0])
    shares = [f"{arm} ({times / len(forecast.batch_sizes):.0%})" for arm, times in sizes]
    return "\n".join(shares)


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 5th, 50th and 95th percentile."""
    ordered = sorted(values)
    last = len(ordered) - 1
    low, high = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
    return low, statistics.median(ordered), high


def _spread(values: Sequence[float], text: Callable[[float], str]) -> Text:
    """Return the median, and below it where nine of ten values lie."""
    low, median, high = _quantiles(values)
    if text(low) == text(high):
        return Text(text(median))
    return Text.assemble(text(median), "\n", (f"{text(low)} to {text(high)}", "dim"))


def _exploring(joules: float) -> str:
    return units.gain(joules).removeprefix("+")


def _change(share: float) -> str:
    share = round(share, 2)
    return f"{share:+.0%}".replace("-", units.MINUS) if share else "0%"


def _basis(model: Model) -> Table:
    """Return what each batch size is simulated with, and where that is from."""
    table = plain_table()
    for name in ("batch", "runs", "epochs", "an epoch", "power", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for arm in model.arms:
        guess = not arm.runs
        rate = min(arm.rates.values(), key=lambda rate: rate.epoch_s)
        table.add_row(
            str(arm.batch_size),
            str(arm.runs) if arm.runs else units.UNKNOWN,
            _epochs(arm, model),
            units.duration(rate.epoch_s),
            units.power(rate.power_w if model.energy_known else None),
            Text(_source(arm), style="dim"),
            style="dim" if guess else None,
        )
    return table


def _source(arm: KnownArm) -> str:
    if not arm.runs:
        return "a guess"
    return "never reaches the target" if arm.missing >= 1 else ""


def _epochs(arm: KnownArm, model: Model) -> str:
    epochs = math.exp(arm.log_epochs)
    return units.UNKNOWN if epochs > 100 * model.problem.max_epochs else f"{epochs:.1f}"


def _legend(cases: Sequence[Case], seeds: int) -> Iterator[str]:
    _, model, forecast = cases[-1]
    guesses = [arm.batch_size for arm in model.arms if not arm.runs]
    sure = f"It rests on {units.plural(model.reached, 'run')} that reached the target."
    if guesses:
        sizes = ", ".join(map(str, guesses))
        sure += (
            f" No run shows {sizes}: guessed from the others, by the critical batch size and the "
            "time of a step."
        )
    yield sure
    yield (
        f"The median of {units.plural(seeds, 'replay')}, and where nine of ten lie: each replay "
        "draws what is uncertain, and the runs, anew. Exploring: what tries of other batch sizes "
        "cost more."
    )
    if len({model.problem.eta_knob for _, model, _ in cases}) > 1:
        yield "Costs of different eta_knob cannot be compared; energy and time can."
    if sum(forecast.unreached):
        yield f"{sum(forecast.unreached)} recurrences of all replays ended without a model."


def _warnings(case: Case) -> Iterator[str]:
    _, model, forecast = case
    guesses = {arm.batch_size for arm in model.arms if not arm.runs}
    if _usual_size(forecast) in guesses:
        yield f"{_usual_size(forecast)}, used in the end, is a guess: no run shows it"
    limit_w = lowest_limit_w(model, _usual_size(forecast))
    if limit_w is not None:
        yield (
            f"power limits below {units.power(limit_w)} were not measured, and may be better: a "
            "run may take less energy than this"
        )
    if model.reached < _FEW:
        yield f"only {model.reached} runs: the true spread may be much wider"
    if model.left_out:
        sizes = ", ".join(map(str, model.left_out))
        yield f"left out, because memory or a crash rules it out: {sizes}"


def forecast_json(
    cases: Sequence[Case], overrides: Sequence[str], recurrences: int, seeds: int
) -> dict[str, Any]:
    """Return the forecast as plain JSON; ``changed`` is ``None`` without changes."""
    found = [_case_json(case) for case in cases]
    return {
        "job": cases[0][1].job,
        "set": list(overrides),
        "recurrences": recurrences,
        "seeds": seeds,
        "today": found[0],
        "changed": found[1] if len(found) > 1 else None,
    }


def _case_json(case: Case) -> dict[str, Any]:
    policy, model, forecast = case
    spreads = {name: _spread_json(getattr(forecast, name)) for name in _SPREADS}
    sizes = Counter(forecast.batch_sizes).most_common()
    return {
        "policy": policy,
        "eta_knob": model.problem.eta_knob,
        "runs": model.reached,
        "batch_sizes": {arm: times / len(forecast.batch_sizes) for arm, times in sizes},
        **spreads,
        **({} if model.energy_known else {"energy_j": None}),
        "unreached": sum(forecast.unreached),
        "candidates": [
            {
                "global_batch_size": arm.batch_size,
                "runs": arm.runs,
                "guess": not arm.runs,
                "epochs": math.exp(arm.log_epochs) if arm.missing < 1 else None,
            }
            for arm in model.arms
        ],
        "left_out": list(model.left_out),
    }


def _spread_json(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(("p5", "median", "p95"), _quantiles(values), strict=True))

"""The table of ``simulate JOB``, which fits 80 columns, and its JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Group
from rich.text import Text

from zeusrun.view import units
from zeusrun.view.console import Labelled, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from zeusrun.simulate.own_job import KnownArm, Model
    from zeusrun.simulate.report import Spread
    from zeusrun.simulate.what_if import Forecast

Case: TypeAlias = "tuple[str, Model, Forecast]"
"""A policy's name, what the history says under the settings, and what the replay found."""

_FEW = 10  # runs; with fewer, the spread between runs is mostly assumed


def forecast_sheet(
    cases: Sequence[Case], overrides: Sequence[str], recurrences: int, seeds: int
) -> RenderableType:
    """Return the forecast of a job as it is, and with its changed settings if there are any."""
    _, model, _ = cases[-1]
    title = f"{model.job}: its next {units.plural(recurrences, 'recurrence')}"
    if overrides:
        title += f", as it is and with {' '.join(overrides)}"
    blank = Text("")
    notes = [(Text("!", style="yellow"), Text(text)) for text in _warnings(model)]
    return Group(
        Text(title, style="bold"),
        blank,
        _comparison(cases),
        blank,
        _basis(model),
        blank,
        Labelled([(Text(), Text(text, style="dim")) for text in _legend(cases, seeds)]),
        *([Labelled(notes, gap=1)] if notes else []),
    )


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
    table.add_row("batch size in the end", *map(_in_use, found), *_no_change(cases))
    rows: list[tuple[str, str, Callable[[float], str], bool]] = [
        ("cost a run", "cost_j", units.energy, same),
        ("energy a run", "energy_j", units.energy, known),
        ("time a run", "time_s", units.duration, True),
        ("exploring", "exploring_j", _exploring, False),
    ]
    for label, name, text, compared in rows:
        spreads: list[Spread] = [getattr(each, name) for each in found]
        cells = [_spread(each, text) for each in spreads]
        if name == "energy_j" and not known:
            cells = [units.UNKNOWN] * len(cells)
        change = [_change(spreads)] if compared and len(cases) > 1 else _no_change(cases)
        table.add_row(label, *cells, *change)
    return table


def _no_change(cases: Sequence[Case]) -> list[Text]:
    return [Text(units.UNKNOWN, style="dim")] if len(cases) > 1 else []


def _in_use(forecast: Forecast) -> str:
    """Return the batch size in use at the end, or several with their shares of the seeds."""
    shares = list(forecast.batch_sizes.items())
    if len(shares) == 1:
        return str(shares[0][0])
    return ", ".join(f"{arm} ({share:.0%})" for arm, share in shares[:3])


def _spread(spread: Spread, text: Callable[[float], str]) -> str:
    return f"{text(spread['median'])} ({text(spread['p5'])} to {text(spread['p95'])})"


def _exploring(joules: float) -> str:
    return units.gain(joules).removeprefix("+")


def _change(spreads: Sequence[Spread]) -> Text:
    before, after = (each["median"] for each in spreads)
    share = round(after / before - 1, 2) if before else 0.0
    style = "green" if share < 0 else "yellow" if share > 0 else ""
    sign = f"{share:+.0%}".replace("-", units.MINUS) if share else "0%"
    return Text(sign, style=style)


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
    if forecast.unreached > 0.005:
        yield f"{forecast.unreached:.0%} of the recurrences ended without reaching the target."


def _warnings(model: Model) -> Iterator[str]:
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
    found = asdict(forecast)
    if not model.energy_known:
        found["energy_j"] = None
    return {
        "policy": policy,
        "eta_knob": model.problem.eta_knob,
        "runs": model.reached,
        **found,
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

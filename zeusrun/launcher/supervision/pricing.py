"""What the energy of a run costs, in money and in carbon, with the rates that held meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.tariff import amount

if TYPE_CHECKING:
    from zeusrun.launcher.context import Submission
    from zeusrun.tariff import Tariffs
    from zeusrun.trial import Outcome, Trial


def price_at_end(submission: Submission, trial: Trial, outcome: Outcome) -> Outcome:
    """Return the outcome of the last part of a trial with its price and its carbon.

    If a CSV file ended before the run did, read it again: prices of the next day come every day.
    """
    priced = price_outcome(trial, outcome, submission.tariffs)
    if priced.warnings == outcome.warnings:
        return priced
    try:
        newer = load_tariffs(submission.spec, submission.home)
    except JobFileError:  # a file that changed during the run must not fail it
        return priced
    return price_outcome(trial, outcome, newer)


def price_outcome(trial: Trial, outcome: Outcome, tariffs: Tariffs) -> Outcome:
    """Return the outcome of the last part of a trial with the price and carbon of its energy.

    If a rate is unknown for a part of the time, so is the amount, and a warning says which part.
    """
    if outcome.time_s is None or outcome.energy_j is None:
        return outcome
    if tariffs.price is None and tariffs.carbon is None:
        return outcome
    began = datetime.fromisoformat(trial.started_at).timestamp() + (outcome.startup_s or 0.0)
    span = began, began + outcome.time_s
    price = amount(tariffs.price, outcome.energy_j, tariffs.pue, *span)
    rates = {"price": tariffs.price, "carbon": tariffs.carbon}
    gaps = {name: rate.describe_gap(*span) for name, rate in rates.items() if rate is not None}
    warnings = [f"its {name} is unknown: {name}.csv {gap}" for name, gap in gaps.items() if gap]
    return replace(
        outcome,
        price=price,
        currency=None if price is None else tariffs.currency,
        carbon_g=amount(tariffs.carbon, outcome.energy_j, tariffs.pue, *span),
        pue=tariffs.pue,
        warnings=(*outcome.warnings, *warnings),
    )

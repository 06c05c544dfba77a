"""What a run costs: in joules so far, in money and carbon with the rates that held meanwhile."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.cost import cost_j
from zeusrun.errors import JobFileError
from zeusrun.jobfile.tariffs import load_tariffs
from zeusrun.launcher.parts import cost_with_earlier
from zeusrun.launcher.processes.torchrun import TICK_S
from zeusrun.metrics.progress import take_energy
from zeusrun.tariff import amount

if TYPE_CHECKING:
    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.context import Submission
    from zeusrun.metrics.progress import Progress
    from zeusrun.tariff import Tariffs
    from zeusrun.trial import Outcome, Trial


def charge(progress: Progress, before: Progress, trial: Trial, meter: Meter) -> Progress:
    """Return the progress of a training that has begun with its energy and cost so far."""
    since_t, time_s = progress.training_t or 0.0, progress.time_s
    # One tick ago lies within the power samples. Later energy is extrapolated: first tick.
    until_t = since_t + (time_s or 0.0)
    seen_t = min(until_t, progress.now_t - TICK_S)
    energy_j = meter.energy_between(since_t, seen_t if seen_t > since_t else until_t)
    progress = take_energy(progress, before, energy_j, meter.power_w())
    if progress.may_be_baseline:
        return progress
    spent = cost_j(progress.energy_j, meter.max_power_w, time_s, trial.eta_knob)
    return replace(progress, cost_j=cost_with_earlier(trial, spent))


def price_at_end(submission: Submission, trial: Trial, outcome: Outcome) -> Outcome:
    """Return the outcome of the last part of a trial with its price and its carbon.

    If a CSV file ended before the run did, read it again: prices of the next day come every day.
    """
    priced = price_outcome(trial, outcome, submission.tariffs)
    if len(priced.warnings) == len(outcome.warnings):  # nothing is unknown
        return priced
    try:
        newer = load_tariffs(submission.spec, submission.home)
    except JobFileError:  # a file that changed during the run must not fail it
        return priced
    return price_outcome(trial, outcome, newer)


def price_outcome(trial: Trial, outcome: Outcome, tariffs: Tariffs) -> Outcome:
    """Return the outcome of the last part of a trial with the price and carbon of its energy.

    If a rate is unknown for a part of the time, so is the amount, and a warning says why.
    """
    rates = {"price": tariffs.price, "carbon": tariffs.carbon}
    if outcome.time_s is None or outcome.energy_j is None or not any(rates.values()):
        return outcome
    began = datetime.fromisoformat(trial.started_at).timestamp() + (outcome.startup_s or 0.0)
    span = began, began + outcome.time_s
    amounts = {n: amount(rate, outcome.energy_j, tariffs.pue, *span) for n, rate in rates.items()}
    warnings = [
        f"its {name} is unknown: {name}.csv has rates {_between(rate.times[0], rate.times[-1])}, "
        f"and the run trained {_between(*span)}"
        for name, rate in rates.items()
        if rate is not None and amounts[name] is None
    ]
    return replace(
        outcome,
        price=amounts["price"],
        currency=None if amounts["price"] is None else tariffs.currency,
        carbon_g=amounts["carbon"],
        pue=tariffs.pue,
        warnings=(*outcome.warnings, *warnings),
    )


def _between(began: float, ended: float) -> str:
    first, last = (
        datetime.fromtimestamp(t, timezone.utc).astimezone().isoformat(" ", "minutes")
        for t in (began, ended)
    )
    return f"from {first} to {last}"

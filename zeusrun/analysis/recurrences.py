"""What each recurrence took, and what it saved. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import find_ended, sum_attempts
from zeusrun.analysis.curve_unit import amount_in
from zeusrun.analysis.sizes import size_label
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.estimate import Estimate, Savings
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class RecurrenceFacts:
    """One recurrence: the sums of its attempts, and against the default. ``None``: unknown."""

    recurrence: int
    trial: str  # the last attempt
    started_at: str
    size: str  # label of the batch size of its last attempt
    is_default: bool  # whether that is the default, or none is known
    attempts: int
    status: str
    reached: bool
    cost_j: float | None
    energy_j: float | None
    time_s: float | None
    epochs: int | None  # of the last attempt
    samples: int | None  # likewise
    saved: Estimate | None  # joules of cost; ``None``: unknown
    saved_share: float | None  # ``None``: unknown, or in doubt
    default_j: float | None  # what a run of the default is expected to cost
    price: float | None
    currency: str | None
    carbon_g: float | None


def build_recurrences(trials: Sequence[Trial], savings: Savings) -> list[RecurrenceFacts]:
    """Return the recurrences that have ended, oldest first."""
    return [_facts(own, savings) for own in find_ended(trials)]


def _facts(own: Sequence[Trial], savings: Savings) -> RecurrenceFacts:
    last = own[-1]
    saved = savings.by_trial.get(last.trial)
    currencies = {trial.currency for trial in own if trial.price is not None}
    currency = currencies.pop() if len(currencies) == 1 else None
    return RecurrenceFacts(
        recurrence=last.recurrence,
        trial=last.trial,
        started_at=own[0].started_at,
        size=size_label(last),
        is_default=last.default_batch_size in {None, last.global_batch_size},
        attempts=len(own),
        status="forgotten" if last.forgotten else last.status.value,
        reached=last.status is TrialStatus.REACHED,
        cost_j=sum_attempts(own, lambda trial: trial.cost_j),
        energy_j=sum_attempts(own, lambda trial: trial.energy_j),
        time_s=sum_attempts(own, lambda trial: trial.time_s),
        epochs=last.epochs,
        samples=amount_in(last, "samples"),
        saved=saved,
        saved_share=savings.shown_share(last.trial),
        default_j=None if saved is None else savings.default_j,
        price=sum_attempts(own, lambda trial: trial.price) if currency else None,
        currency=currency,
        carbon_g=sum_attempts(own, lambda trial: trial.carbon_g),
    )

"""What was saved, each amount with its doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Estimate:
    """An amount, and from where to where it lies in nine of ten cases."""

    value: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether it differs from 0 beyond doubt."""
        return self.low > 0 or self.high < 0

    def __neg__(self) -> Estimate:
        """Return what is lost where this is saved."""
        return Estimate(-self.value, -self.high, -self.low)

    def less(self, amount: float) -> Estimate:
        """Return it less an amount that is known."""
        return Estimate(self.value - amount, self.low - amount, self.high - amount)


@dataclass(frozen=True)
class Savings:
    """What the recurrences saved that can be compared with the default: joules of cost.

    ``by_trial`` is what each is expected to have saved, exploring included, by the name of its last
    trial. It is negative for a loss: a recurrence without a model has lost what its attempts cost.
    It is empty, and the estimates are ``None``, where nothing can be compared.
    """

    ended: int  # recurrences that have ended, compared or not
    explored: bool  # whether zeusrun has ever chosen another batch size than the default
    by_trial: Mapping[str, Estimate] = field(default_factory=dict)
    so_far: Sequence[float] = ()  # what all had saved by then, in the order of ``by_trial``
    default: int | None = None
    default_j: float | None = None  # expected cost of a run of the default
    default_runs: int = 0  # that show it
    in_use: int | None = None  # the batch size that was exploited last
    share: Estimate | None = None  # that a run with it saves of the cost of the default
    net: Estimate | None = None  # that all of them saved
    since: str | None = None  # when the first of them began
    note: str | None = None  # why nothing can be compared: a sentence

    def shown_share(self, trial: str) -> float | None:
        """Return what a recurrence saved, by its last trial, as a share of the default's cost.

        ``None``: unknown, or in doubt.
        """
        saved = self.by_trial.get(trial)
        if saved is None or not saved.is_shown or self.default_j is None:
            return None
        return saved.value / self.default_j

    @property
    def pays_back_in(self) -> int | None:
        """Recurrences until the loss so far is recovered; ``None``: no loss, or unknown."""
        if self.net is None or self.share is None or not self.default_j:
            return None
        if self.net.high >= 0 or self.share.low <= 0:
            return None
        return math.ceil(-self.net.value / (self.share.value * self.default_j))


@dataclass(frozen=True)
class NetAmounts:
    """Sums over the recurrences that can be compared; negative for a loss, ``None``: unknown."""

    energy_j: Estimate | None = None
    energy_runs: int = 0  # recurrences of which the energy is known
    money: Mapping[str, Estimate] = field(default_factory=dict)  # by currency
    money_runs: int = 0
    carbon_g: Estimate | None = None
    carbon_runs: int = 0


def add_estimates(estimates: Iterable[Estimate | None]) -> Estimate | None:
    """Return the sum of what is known of different jobs; ``None`` if nothing is.

    Their doubts are independent, so the squares of the distances to the ends add up.
    """
    known = [each for each in estimates if each is not None]
    if not known:
        return None
    value = math.fsum(each.value for each in known)
    below = math.hypot(*(each.value - each.low for each in known))
    above = math.hypot(*(each.high - each.value for each in known))
    return Estimate(value, value - below, value + above)


def name_ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return an estimate and its ends as JSON: ``saved_j``, ``saved_low_j``, ``saved_high_j``."""
    head, _, unit = name.partition("_")
    unit = unit and f"_{unit}"
    names = (name, f"{head}_low{unit}", f"{head}_high{unit}")
    ends = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    return dict(zip(names, ends, strict=True))


SAVED = tuple(name_ends("saved_j", None))
"""The fields of what a recurrence saved."""

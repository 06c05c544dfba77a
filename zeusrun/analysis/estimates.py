"""What was saved, as estimates with their doubt; and trials in groups, such as recurrences."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from zeusrun.trial import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zeusrun.trial import Trial


_Item = TypeVar("_Item")


_Key = TypeVar("_Key")


MOST = 1e30
"""A larger amount has diverged, or comes from a damaged record."""


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Return items by what ``key`` returns for them, both in their order."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def find_ended(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the attempts of each recurrence that has ended."""
    groups = group_by(trials, lambda trial: trial.recurrence)
    return [attempts for attempts in groups.values() if all(each.status.final for each in attempts)]


def is_forced(attempts: Sequence[Trial]) -> bool:
    """Whether the user chose a batch size of a recurrence."""
    return any(trial.stage is Stage.FORCED for trial in attempts)


def is_other(trial: Trial) -> bool:
    """Whether a trial had another batch size than the default."""
    return trial.default_batch_size not in {None, trial.global_batch_size}


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


_MOST_RUNS = 200


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
    shares: Mapping[str, Estimate] = field(default_factory=dict)  # the same, of the default's cost
    so_far: Sequence[float] = ()  # what all had saved by then, in the order of ``by_trial``
    default: int | None = None
    default_j: float | None = None  # expected cost of a run of the default
    default_runs: int = 0  # that show it
    in_use: int | None = None  # the batch size that was exploited last
    share: Estimate | None = None  # that a run with it saves of the cost of the default
    net: Estimate | None = None  # that all of them saved
    since: str | None = None  # when the first of them began
    note: str | None = None  # why nothing can be compared: a sentence

    def shown_share(self, trial: str) -> Estimate | None:
        """Return what a recurrence saved, by its last trial, as a share of the default's cost.

        ``None``: unknown, or in doubt.
        """
        saved = self.shares.get(trial)
        return saved if saved is not None and saved.is_shown else None

    @property
    def shown_in(self) -> int | None:
        """Runs of each batch size until the difference shows, if it is as large as it looks.

        By the number of the default's runs: the doubt falls with its square root. ``None``: it
        shows already, or needs more than ``_MOST_RUNS``.
        """
        share = self.share
        if share is None or share.is_shown or not share.value:
            return None
        doubt = share.value - share.low if share.value > 0 else share.high - share.value
        more = math.ceil(self.default_runs * ((doubt / share.value) ** 2 - 1) - 1e-9)
        return max(1, more) if more <= _MOST_RUNS else None

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

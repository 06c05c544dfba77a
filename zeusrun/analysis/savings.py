"""What choosing batch sizes has saved against the default every time, failures included. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.analysis.cost_baseline import conditions, has_cost, setting
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.trial import Trial

_MOST_J = 1e30  # beyond it, a cost is a damaged record
_GAVE_UP = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.OOM})
_OPEN = frozenset({TrialStatus.DISPATCHED, TrialStatus.PREEMPTED})


@dataclass(frozen=True)
class Saving:
    """What one recurrence saved.

    Attributes:
        saved_j: What the default costs, less all attempts; negative for a loss. A recurrence that
            never reached the target has lost what its attempts at other batch sizes cost.
        default_j: Mean cost of the comparable runs of the default that reached the target.
        default_runs: How many these are.
        default: The default batch size.
        explored: Whether an attempt had another batch size.
    """

    saved_j: float
    default_j: float
    default_runs: int
    default: int
    explored: bool

    @property
    def share(self) -> float:
        """What was saved, as a share of what the default costs."""
        return self.saved_j / self.default_j


@dataclass(frozen=True)
class Savings:
    """What all recurrences saved that can be compared with the default.

    Attributes:
        by_trial: By the last trial of each such recurrence, oldest first.
        ended: Recurrences that have ended, compared or not.
        coming_j: What a recurrence saves from now on, by the batch size in use; 0 where that is
            the default, ``None`` if unknown.
    """

    by_trial: Mapping[str, Saving]
    ended: int
    coming_j: float | None

    @property
    def net_j(self) -> float:
        """Joules saved in all; negative while exploring has cost more than it has saved."""
        return sum(each.saved_j for each in self.by_trial.values())

    @property
    def default_j(self) -> float:
        """Joules that the default would have cost in these recurrences."""
        return sum(each.default_j for each in self.by_trial.values())

    @property
    def explored(self) -> bool:
        """Whether any of them ran another batch size than the default."""
        return any(each.explored for each in self.by_trial.values())

    @property
    def pays_back_in(self) -> int | None:
        """Recurrences until the loss so far is made good; ``None`` if none is, or unknown."""
        if self.net_j >= 0 or self.coming_j is None or self.coming_j <= 0:
            return None
        return math.ceil(-self.net_j / self.coming_j)


class _Defaults(NamedTuple):
    """Runs of the default batch size under one learning rate, and their costs together."""

    runs: int = 0
    cost_j: float = 0.0


def find_savings(trials: Sequence[Trial]) -> Savings:
    """Compare each recurrence, with all its attempts, with what the default batch size costs.

    Only runs of the default under the same conditions count (objective, hardware, kind of energy,
    learning-rate rule), that had their GPUs for themselves. Not compared are recurrences without
    such runs, and those with an attempt that others disturbed, that is forgotten, or of unknown
    cost.

    Args:
        trials: Of one job, oldest first.
    """
    recurrences: defaultdict[int, list[Trial]] = defaultdict(list)
    defaults: defaultdict[tuple[object, ...], dict[float | None, _Defaults]] = defaultdict(dict)
    for trial in trials:
        recurrences[trial.recurrence].append(trial)
        if trial.global_batch_size == trial.default_batch_size and _is_usable(trial):
            by_rate, rate = defaults[_job(trial)], trial.learning_rate
            before = by_rate.pop(rate, _Defaults())  # the newest rate comes last
            by_rate[rate] = _Defaults(before.runs + 1, before.cost_j + (trial.cost_j or 0.0))
    ended = [own for own in recurrences.values() if not _OPEN & {each.status for each in own}]
    by_trial: dict[str, Saving] = {}
    newest: Trial | None = None
    for own in ended:
        saving = _compare(own, _comparable(defaults[_job(own[-1])], own[-1]))
        if saving is not None:
            newest = own[-1]
            by_trial[newest.trial] = saving
    coming_j = None if newest is None else _coming_j(trials, newest, by_trial[newest.trial])
    return Savings(by_trial, len(ended), coming_j)


def _is_usable(trial: Trial) -> bool:
    return has_cost(trial) and trial.cost_j is not None and trial.cost_j < _MOST_J


def _job(trial: Trial) -> tuple[object, ...]:
    return trial.default_batch_size, setting(trial)


def _compare(own: Sequence[Trial], defaults: _Defaults | None) -> Saving | None:
    """Compare the attempts of a recurrence with runs of the default; ``None`` if that is unfair."""
    last, default = own[-1], own[-1].default_batch_size
    spent = [_spent_j(each) for each in own]
    known = [cost_j for cost_j in spent if cost_j is not None]
    unlike = any(each.cost_j is not None and _job(each) != _job(last) for each in own)
    odd = own[0].attempt != 1 or any(not each.teaches or each.shared is True for each in own)
    if default is None or defaults is None or odd or unlike or len(known) < len(spent):
        return None
    mean_j = defaults.cost_j / defaults.runs
    others = [each for each in own if each.global_batch_size != default]
    if last.status is TrialStatus.REACHED:
        saved_j = mean_j - sum(known)
    else:
        lost = [each.cost_j for each in others if each.status in _GAVE_UP]
        if all(cost_j is None for cost_j in lost):
            # Nothing was measured, or the default failed: it would have done so in any case.
            return None
        saved_j = -sum(cost_j or 0.0 for cost_j in lost)
    return Saving(saved_j, mean_j, defaults.runs, default, explored=bool(others))


def _spent_j(trial: Trial) -> float | None:
    """Return what an attempt cost; 0 if it never trained, ``None`` if that is unknown."""
    if trial.cost_j is None:
        return 0.0 if trial.time_s is None and not trial.steps else None
    return trial.cost_j if 0 <= trial.cost_j < _MOST_J else None


def _comparable(by_rate: Mapping[float | None, _Defaults], trial: Trial) -> _Defaults | None:
    """Return the runs of the default whose learning rate belongs to the same rule.

    A job file knows three rules: the rate stays, or grows with the batch size or with its root.
    Where runs of the default under several rates fit, the newest rate counts.
    """
    if not trial.default_batch_size:  # unknown, or a damaged record
        return None
    ratio = trial.global_batch_size / trial.default_batch_size
    for rate in reversed(list(by_rate)):
        if _same_rule(trial.learning_rate, rate, ratio):
            return by_rate[rate]
    return None


def _same_rule(rate: float | None, default: float | None, ratio: float) -> bool:
    if rate is None or default is None:
        return rate == default
    factors = (1.0, ratio, math.sqrt(ratio)) if ratio > 0 else (1.0,)
    return any(math.isclose(rate, default * factor, rel_tol=1e-9) for factor in factors)


def _coming_j(trials: Sequence[Trial], newest: Trial, saving: Saving) -> float | None:
    in_use = next(
        (
            each
            for each in reversed(trials)
            if each.stage is Stage.EXPLOIT and _job(each) == _job(newest)
        ),
        None,
    )
    if in_use is None or in_use.global_batch_size == saving.default:
        return None if in_use is None else 0.0
    same = [each for each in trials if _is_usable(each) and conditions(each) == conditions(in_use)]
    if not same:
        return None
    return saving.default_j - sum(each.cost_j or 0.0 for each in same) / len(same)

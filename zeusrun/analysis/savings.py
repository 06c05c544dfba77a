"""What choosing batch sizes has saved compared with always using the default."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import MOST, by_recurrence, never_trained
from zeusrun.analysis.cost_baseline import conditions, run_cost_j, setting
from zeusrun.bandit.observation import OUTDONE
from zeusrun.bandit.proof import Doubt, as_undisturbed, prove
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.trial import Trial

_ODD = {Doubt.FORGOTTEN, Doubt.OTHER_SIZE, Doubt.SHARED}


@dataclass(frozen=True)
class Saving:
    """What one recurrence saved.

    A recurrence that never reached the target has lost what its attempts at other batch sizes cost.
    """

    saved_j: float  # the cost of the default less that of all attempts; negative for a loss
    default_j: float  # mean cost of the comparable runs of the default that reached the target
    default_runs: int  # how many these are
    default: int  # the default batch size
    explored: bool  # whether an attempt had another batch size
    compared: tuple[Trial, ...] = ()  # the runs of the default

    @property
    def share(self) -> float:
        """What was saved, as a share of what the default costs."""
        return self.saved_j / self.default_j


@dataclass(frozen=True)
class Savings:
    """What all recurrences saved that can be compared with the default."""

    by_trial: Mapping[str, Saving]  # by the last trial of each such recurrence, oldest first
    ended: int  # recurrences that have ended, compared or not
    coming_j: float | None  # what each recurrence with the batch size in use saves from now on

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
        """Recurrences until the loss so far is recovered; ``None``: no loss, or unknown."""
        if self.net_j >= 0 or self.coming_j is None or self.coming_j <= 0:
            return None
        return math.ceil(-self.net_j / self.coming_j)


def find_ended(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the attempts of each recurrence that has ended."""
    return [own for own in by_recurrence(trials).values() if all(each.status.final for each in own)]


def find_savings(trials: Sequence[Trial]) -> Savings:
    """Compare each recurrence, with all its attempts, with the cost of the default batch size.

    That is the mean of the runs of the default that prove their cost, of the same variant, under
    the same objective, hardware, kind of energy and learning-rate rule. What interruptions cost
    does not count on either side. A recurrence is not compared if there is no such run, if one of
    its attempts shared its GPUs or CPUs, is forgotten, or has an unknown cost, or if it is in doubt
    how many epochs its last attempt needed. ``trials`` are of one job, oldest first.
    """
    defaults: defaultdict[tuple[object, ...], dict[float | None, list[Trial]]] = defaultdict(dict)
    for trial in trials:
        if run_cost_j(trial) is not None and trial.global_batch_size == trial.default_batch_size:
            by_rate, rate = defaults[_job(trial)], trial.learning_rate
            by_rate[rate] = by_rate.pop(rate, [])  # the newest rate comes last
            by_rate[rate].append(trial)
    ended = find_ended(trials)
    by_trial: dict[str, Saving] = {}
    newest: Trial | None = None
    for own in ended:
        saving = _compare(own, _comparable(defaults[_job(own[-1])], own[-1]))
        if saving is not None:
            newest = own[-1]
            by_trial[newest.trial] = saving
    coming_j = None if newest is None else _coming_j(trials, newest, by_trial[newest.trial])
    return Savings(by_trial, len(ended), coming_j)


def _job(trial: Trial) -> tuple[object, ...]:
    return trial.default_batch_size, trial.variant, setting(trial)


def _compare(own: Sequence[Trial], compared: Sequence[Trial]) -> Saving | None:
    """Compare a recurrence's attempts with runs of the default; ``None`` if not comparable."""
    last, default = own[-1], own[-1].default_batch_size
    spent = [_spent_j(each) for each in own]
    known = [cost_j for cost_j in spent if cost_j is not None]
    unlike = any(each.cost_j is not None and _job(each) != _job(last) for each in own)
    proofs = [prove(each) for each in own]
    odd = own[0].attempt != 1 or any(proof.speed in _ODD for proof in proofs)
    odd = odd or (last.status is TrialStatus.REACHED and proofs[-1].learning is not None)
    if default is None or not compared or odd or unlike or len(known) < len(spent):
        return None
    mean_j = sum(run_cost_j(trial) or 0.0 for trial in compared) / len(compared)
    others = [each for each in own if each.global_batch_size != default]
    if last.status is TrialStatus.REACHED:
        saved_j = mean_j - sum(known)
    else:
        lost = [each for each in others if each.status in OUTDONE and each.cost_j is not None]
        if not lost:
            # Nothing was measured, or only the default failed: that was no choice of zeusrun.
            return None
        saved_j = -sum(_spent_j(each) or 0.0 for each in lost)
    runs = tuple(compared)
    return Saving(saved_j, mean_j, len(runs), default, explored=bool(others), compared=runs)


def _spent_j(trial: Trial) -> float | None:
    """Return what an attempt cost, to compare; 0 if it never trained, ``None`` if unknown."""
    cost_j = as_undisturbed(trial).cost_j
    if cost_j is None:
        return 0.0 if never_trained(trial) else None
    return cost_j if 0 <= cost_j < MOST else None


def _comparable(by_rate: dict[float | None, list[Trial]], trial: Trial) -> Sequence[Trial]:
    """Return the runs of the default whose learning rate belongs to the same rule.

    A job file has three rules: the rate is constant, or grows with the batch size or with its
    square root. If several rates of the default fit, the newest counts.
    """
    if not trial.default_batch_size:  # unknown, or a damaged record
        return ()
    ratio = trial.global_batch_size / trial.default_batch_size
    rates = (rate for rate in reversed(by_rate) if _same_rule(trial, rate, ratio))
    return next((by_rate[rate] for rate in rates), ())


def _same_rule(trial: Trial, default: float | None, ratio: float) -> bool:
    rate = trial.learning_rate
    if rate is None or default is None:
        return rate == default
    factors = (1.0, ratio, math.sqrt(ratio)) if ratio > 0 else (1.0,)
    return any(math.isclose(rate, default * factor, rel_tol=1e-9) for factor in factors)


def _coming_j(trials: Sequence[Trial], newest: Trial, saving: Saving) -> float | None:
    """Return what the batch size that was exploited last saves against the default."""
    exploited = (each for each in reversed(trials) if each.stage is Stage.EXPLOIT)
    in_use = next((each for each in exploited if _job(each) == _job(newest)), None)
    if in_use is None or in_use.global_batch_size == saving.default:
        return None if in_use is None else 0.0
    alike = [each for each in trials if conditions(each) == conditions(in_use)]
    costs = [cost_j for each in alike if (cost_j := run_cost_j(each)) is not None]
    return saving.default_j - sum(costs) / len(costs) if costs else None

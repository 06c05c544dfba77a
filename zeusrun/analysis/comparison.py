"""Compares the recurrences of a job with its default batch size, by draws of what runs cost."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from zeusrun.analysis import amounts
from zeusrun.analysis.estimates import (
    Estimate,
    NetAmounts,
    Savings,
    find_ended,
    is_forced,
    is_other,
)
from zeusrun.analysis.run_costs import RunCosts, draw_run_costs
from zeusrun.analysis.usual import SETTING, has_cost, setting
from zeusrun.bandit.auto.drift import weigh_shown
from zeusrun.bandit.problem import Problem
from zeusrun.bandit.proof import Doubt, is_resized, prove, same_learning
from zeusrun.bandit.reinterpret import read_trials
from zeusrun.clock import local_time
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.bandit.problem import Array, Runs
    from zeusrun.trial import Trial

_NO_COST = (
    "no cost is known yet; it is once a run that no other program disturbs has reached the target, "
    "and its energy was measured or estimated"
)
LOOKS = 3  # a difference counts once it was there at so many looks in a row
_QUANTILES = (0.05, 0.5, 0.95)
_ODD = frozenset({Doubt.FORGOTTEN, Doubt.OTHER_SIZE})
Counted: TypeAlias = "tuple[int | None, float, float]"
"""Of a recurrence: ``Compared.arm``, ``Compared.lost_j``, and what a joule counts, or its price."""


class Compared(NamedTuple):
    """A recurrence that is compared with a run of the default."""

    own: Sequence[Trial]  # its attempts
    arm: int | None  # the batch size that reached the target; ``None``: it ended without a model
    lost_j: float  # what its attempts without a model took

    @property
    def last(self) -> Trial:
        """Its last attempt."""
        return self.own[-1]


@dataclass(frozen=True)
class Comparison:
    """The recurrences that are compared, and what runs are believed to cost."""

    problem: Problem  # the conditions of the newest run that shows its cost
    newest: Trial  # that run
    trials: Sequence[Trial]
    era: Runs  # runs since the training last changed, oldest first
    # What runs cost, drawn as known now and before each of the last recurrences; empty if nothing
    # was known of the default.
    looks: Sequence[Mapping[int, RunCosts]]
    compared: Sequence[Compared]  # those whose batch size has a known cost now

    def estimate_saved(self, counted: Iterable[Counted]) -> Estimate:
        """Return what recurrences saved.

        At a look at which nothing was known of a batch size, it saved nothing.
        """
        default, lost = self.problem.default, 0.0
        reached: defaultdict[int, float] = defaultdict(float)
        for arm, joules, worth in counted:
            lost += worth * joules
            if arm is not None and arm != default:
                reached[arm] += worth
        if not reached:  # what was lost is known
            return Estimate(*(0.0 - lost,) * 3)

        def saved(drawn: Mapping[int, RunCosts]) -> Array:
            usual_j = drawn[default].expected
            known = [arm for arm in reached if arm in drawn]
            more = sum(reached[arm] * (usual_j - drawn[arm].reached) for arm in known)
            return np.asarray(more - lost)

        return _over_looks([saved(drawn) if drawn else None for drawn in self.looks])

    def add_up(self) -> list[float]:
        """Return what recurrences had saved after each of them; sums of medians are no medians."""
        drawn, default = self.looks[0], self.problem.default
        sums, now = [], np.zeros(())
        for each in self.compared:
            now = now - each.lost_j
            if each.arm is not None and each.arm != default:
                now = now + drawn[default].expected - drawn[each.arm].reached
            sums.append(float(np.median(now)))
        return sums

    def estimate_share(
        self, arm: int | None, against: int, lost_j: float | None = None
    ) -> Estimate:
        """Return what a run with a batch size saves, as a share of what another one costs.

        ``lost_j`` is what attempts before it took; ``None``: as much as is expected. At a look at
        which nothing was known of the batch size, or without one, nothing else is saved.
        """

        def share(drawn: Mapping[int, RunCosts]) -> Array | None:
            if against not in drawn:
                return None
            cost_j = usual_j = drawn[against].expected
            if arm is not None and arm in drawn and arm != against:
                cost_j = drawn[arm].expected if lost_j is None else drawn[arm].reached
            return np.asarray(1 - (cost_j + (lost_j or 0.0)) / usual_j)

        return _over_looks([share(drawn) for drawn in self.looks])


def build_comparison(
    trials: Sequence[Trial], ended: Sequence[Sequence[Trial]], *, by_energy: bool = False
) -> Comparison | None:
    """Find out what can be compared; ``None`` if no run shows its cost.

    ``by_energy``: amounts are joules of energy, not of cost.
    """
    newest = next((trial for trial in reversed(trials) if has_cost(trial)), None)
    if newest is None or (newest.default_batch_size or 0) < 1 or not 0 <= newest.eta_knob <= 1:
        return None  # unknown, or a damaged record
    problem = _problem_like(newest, trials)
    if by_energy:  # at the limits that were held, not at those that save the most energy
        problem = replace(problem, eta_knob=1.0)
        trials = [replace(trial, power_profile=()) for trial in trials]
    problem, read = read_trials(problem, trials)
    shown = weigh_shown([run for run in read if run is not None])
    sure = {id(run): each.sure for run, each in shown}
    era = [run for run, each in shown if each.sure and run.epochs and run.arm > 0]
    of_today = {  # of today's training, as far as is known
        trial.trial
        for trial, run in zip(trials, read, strict=True)
        if run is None or sure.get(id(run), run.differs is None)
    }
    since = min((run.recurrence for run in era), default=math.inf)
    reached = {(run.recurrence, run.arm) for run in era if run.status is TrialStatus.REACHED}
    newest_first = sorted({run.recurrence for run in era}, reverse=True)
    looks = [
        draw_run_costs(problem, [run for run in era if run.recurrence not in newest_first[:back]])
        for back in range(LOOKS)
    ]
    compared, proven = [], set[int]()
    for attempts in ended:
        last, lost = attempts[-1], amounts.lost_j(attempts, proven, by_energy=by_energy)
        arm = last.global_batch_size if last.status is TrialStatus.REACHED else None
        if arm is not None:
            known = (last.recurrence, arm) in reached and arm in looks[0]
        else:  # nobody chose the default: that it failed is no loss
            known = (
                last.recurrence >= since
                and any(map(is_other, attempts))
                and all(
                    same_learning(problem, each) and each.trial in of_today for each in attempts
                )
            )
        odd = attempts[0].attempt != 1 or any(
            prove(each).learning in _ODD or is_resized(each) for each in attempts
        )
        alike = _job(last) == _job(newest)
        if known and alike and lost is not None and not odd and not is_forced(attempts):
            compared.append(Compared(attempts, arm, lost))
        if arm is not None and last.teaches and not last.forgotten:
            proven.add(arm)
    return Comparison(problem, newest, trials, era, looks, compared)


def _job(trial: Trial) -> tuple[object, ...]:
    return trial.default_batch_size, trial.variant, setting(trial)


def _problem_like(newest: Trial, trials: Sequence[Trial]) -> Problem:
    """Return the problem under whose conditions a trial ran."""
    default = newest.default_batch_size or newest.global_batch_size
    sizes = {trial.global_batch_size for trial in trials if trial.global_batch_size > 0}
    splits = {trial.global_batch_size: trial.micro_batch_size for trial in trials}  # the newest
    source = newest.energy_source
    return Problem(
        candidates=tuple(sorted({*sizes, default})),
        default=default,
        metric=newest.metric,
        mode="min" if newest.mode == "min" else "max",
        target=newest.target,
        max_epochs=newest.max_epochs,
        eta_knob=newest.eta_knob,
        recurrence=newest.recurrence + 1_000_000,  # none of theirs is decided now
        hardware=newest.hardware,
        energy_measured=None if source is None else source.measured,
        learning_rates=_rates_like(newest, trials),
        micro_batch_sizes={arm: micro for arm, micro in splits.items() if micro is not None},
        max_power_w=newest.max_power_w,
        variant=newest.variant,
    )


def _rates_like(newest: Trial, trials: Sequence[Trial]) -> dict[int, float | None]:
    """Return the newest learning rate of each batch size that follows the same rule.

    A job file has three rules: the rate is constant, or grows with the batch size or with its
    square root. A batch size without such a rate gets one that no run had.
    """
    rate, size = newest.learning_rate, max(1, newest.global_batch_size)
    rates: dict[int, float | None] = {}
    for trial in trials:
        arm, then = max(1, trial.global_batch_size), trial.learning_rate
        ratio = arm / size
        if rate is None or then is None:
            alike = rate == then
        else:
            factors = (1.0, ratio, math.sqrt(ratio))
            alike = any(math.isclose(then, rate * factor, rel_tol=1e-9) for factor in factors)
        if alike:
            rates[arm] = then
        else:
            rates.setdefault(arm, math.nan)
    return rates


def compare(trials: Sequence[Trial], ended: Sequence[Sequence[Trial]]) -> Savings:
    """Return the savings of a job that has explored; see ``find_savings``."""
    found = build_comparison(trials, ended)
    if found is None:
        return Savings(len(ended), explored=True, note=_NO_COST)
    default, now, compared = found.problem.default, found.looks[0], found.compared
    if not now:
        note = _why_nothing(found)
        return Savings(len(ended), explored=True, default=default, note=note)
    counted = [(each.arm, each.lost_j, 1.0) for each in compared]
    saved = {each: found.estimate_saved([each]) for each in set(counted)}  # most are alike
    in_use = _find_in_use(compared)
    return Savings(
        ended=len(ended),
        explored=True,
        by_trial={
            each.last.trial: saved[count] for each, count in zip(compared, counted, strict=True)
        },
        shares={
            each.last.trial: found.estimate_share(each.arm, default, each.lost_j)
            for each in compared
        },
        so_far=found.add_up(),
        default=default,
        default_j=float(np.median(now[default].expected)),
        default_runs=sum(
            run.arm == default and run.status is TrialStatus.REACHED for run in found.era
        ),
        in_use=in_use,
        share=None if in_use is None else found.estimate_share(in_use, default),
        net=found.estimate_saved(counted) if counted else None,
        since=compared[0].own[0].started_at if compared else None,
        note=None if compared else "no recurrence can be compared with the default yet",
    )


def sum_energy(trials: Sequence[Trial], savings: Savings) -> NetAmounts:
    """Return the energy, money and carbon that recurrences saved; see ``find_net_amounts``."""
    found = build_comparison(trials, find_ended(trials), by_energy=True)
    if found is None or not found.looks[0]:
        return NetAmounts()
    energy: list[Counted] = []
    carbon: list[Counted] = []
    money: defaultdict[str, list[Counted]] = defaultdict(list)
    for attempts, arm, lost in found.compared:
        if attempts[-1].trial not in savings.by_trial:
            continue
        energy.append((arm, lost, 1.0))
        gram = amounts.rate_of(attempts, [trial.carbon_g for trial in attempts])
        if gram is not None:
            carbon.append((arm, lost, gram))
        price = amounts.rate_of(attempts, [trial.price for trial in attempts])
        if price is not None and (currency := amounts.find_currency(attempts)) is not None:
            money[currency].append((arm, lost, price))
    return NetAmounts(
        energy_j=found.estimate_saved(energy) if energy else None,
        energy_runs=len(energy),
        money={currency: found.estimate_saved(attempts) for currency, attempts in money.items()},
        money_runs=sum(map(len, money.values())),
        carbon_g=found.estimate_saved(carbon) if carbon else None,
        carbon_runs=len(carbon),
    )


def _over_looks(looks: Sequence[Array | None]) -> Estimate:
    """Return the newest median, and the widest range of all looks.

    A look at which too little was known includes 0.
    """
    value, lows, highs = 0.0, [], []
    for drawn in reversed(looks):
        low, value, high = (0.0, value, 0.0) if drawn is None else np.quantile(drawn, _QUANTILES)
        lows.append(float(low))
        highs.append(float(high))
    return Estimate(float(value), min(lows), max(highs))


def _find_in_use(compared: Sequence[Compared]) -> int | None:
    """Return the batch size that was exploited last, else the one that reached the target last."""
    chosen = [each for each in compared if each.last.stage is not Stage.CONTROL]
    reached = [each for each in chosen if each.arm is not None]
    exploited = [each for each in reached if each.last.stage is Stage.EXPLOIT]
    return (exploited or reached)[-1].arm if reached else None


def _why_nothing(found: Comparison) -> str:
    """Say why no run of the default can be compared with the newest runs."""
    newest, default = found.newest, found.problem.default
    size = f"batch size {default}, the default,"
    costly = [trial for trial in found.trials if has_cost(trial)]
    of_default = [at for at, trial in enumerate(costly) if trial.global_batch_size == default]
    if not of_default:
        return f"{size} has never shown what it costs"
    then, later = costly[of_default[-1]], costly[of_default[-1] + 1 :]
    settings = zip(SETTING, setting(then), setting(newest), strict=True)
    changed = [what for what, was, now in settings if was != now]
    if then.variant != newest.variant:
        what = "how the batch size adapts, or the ranks agree"
    elif changed:
        what = changed[0]
    else:
        what = "the training"
        era = {run.recurrence for run in found.era}
        if then.recurrence in era:
            return f"no run of {size} can be compared with the newest runs"
        later = [trial for trial in later if trial.recurrence in era]
    first = next((trial for trial in later if _job(trial) == _job(newest)), newest)
    moment = local_time(first.started_at)
    when = "" if moment is None else f" on {moment.day} {moment:%B}"
    return (
        f"{what} changed{when}, and {size} has not shown what it costs since: counting begins "
        "again when it has (policy.control)"
    )

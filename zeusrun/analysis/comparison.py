"""Compares the recurrences of a job with its default batch size, by draws of what runs cost."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.analysis.amounts import find_ended, is_forced, is_other
from zeusrun.analysis.charges import lost_j, rate_of, spent_j, undisturbed_energy_j
from zeusrun.analysis.cost_baseline import has_cost, setting
from zeusrun.analysis.estimate import Estimate, NetAmounts, Savings
from zeusrun.analysis.run_costs import draw_run_costs
from zeusrun.bandit.auto.drift import is_cut, is_settled, weigh_runs
from zeusrun.bandit.likeness import same_learning
from zeusrun.bandit.problem import Problem
from zeusrun.bandit.proof import Doubt, prove
from zeusrun.bandit.reinterpret import read_trials
from zeusrun.clock import local_time
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zeusrun.bandit.auto.beliefs import Array
    from zeusrun.bandit.observation import Run
    from zeusrun.trial import Trial

LOOKS = 3  # a difference counts once it was there at so many looks in a row
_QUANTILES = (0.05, 0.5, 0.95)
_ODD = frozenset({Doubt.FORGOTTEN, Doubt.OTHER_SIZE})


class Compared(NamedTuple):
    """A recurrence that is compared with a run of the default."""

    own: Sequence[Trial]  # its attempts
    arm: int | None  # the batch size that reached the target; ``None``: it ended without a model

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
    read: Sequence[Run | None]  # the trials under ``problem``
    era: Sequence[Run]  # runs since the training last changed, oldest first
    compared: Sequence[Compared]

    def draw_looks(self) -> list[dict[int, Array]]:
        """Draw what runs cost, as known now and before each of the last recurrences."""
        numbers = sorted({run.recurrence for run in self.era})
        return [
            draw_run_costs(
                self.problem, [run for run in self.era if run.recurrence not in numbers[cut:]]
            )
            for cut in (len(numbers) - back for back in range(LOOKS))
        ]


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
    sure = _find_sure([run for run in read if run is not None])
    era = [run for run in sure if run.epochs and run.arm > 0]
    ids = set(map(id, sure))
    of_today = {trial.trial for trial, run in zip(trials, read, strict=True) if _counts(run, ids)}
    since = min((run.recurrence for run in era), default=math.inf)
    reached = {
        (run.recurrence, run.arm) for run in era if run.status is TrialStatus.REACHED and run.epochs
    }
    compared = []
    for own in ended:
        last = own[-1]
        arm = last.global_batch_size if last.status is TrialStatus.REACHED else None
        known = last.recurrence >= since and _job(last) == _job(newest)
        if arm is None:
            alike = (same_learning(problem, each) and each.trial in of_today for each in own)
            known = known and all(alike)
        else:
            known = known and (last.recurrence, arm) in reached
        odd = own[0].attempt != 1 or any(prove(each).learning in _ODD for each in own)
        # Nobody chose the default: that it failed is no loss.
        chosen = arm is not None or any(map(is_other, own))
        if known and chosen and not odd and not is_forced(own):
            compared.append(Compared(own, arm))
    return Comparison(problem, newest, trials, read, era, compared)


def _job(trial: Trial) -> tuple[object, ...]:
    return trial.default_batch_size, trial.variant, setting(trial)


def _counts(run: Run | None, sure: Collection[int]) -> bool:
    """Whether a run is of today's training, as far as is known; ``sure`` are those that count."""
    if run is None or not (is_settled(run) or is_cut(run)):
        return run is None or run.differs is None
    return id(run) in sure


def _find_sure(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that count fully: the training has not changed since."""
    shown = [run for run in runs if is_settled(run) or is_cut(run)]
    sure = {id(run) for run, each in zip(shown, weigh_runs(shown), strict=True) if each.sure}
    return [run for run in shown if id(run) in sure]


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
        world_size=newest.world_size,
        gpu_model=newest.gpu_model,
        gpu_count=newest.gpu_count,
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
        return Savings(len(ended), explored=True, note="no run shows its cost yet")
    default, looks = found.problem.default, found.draw_looks()
    now = looks[0]
    if default not in now:
        note = _why_nothing(found)
        return Savings(len(ended), explored=True, default=default, note=note)
    by_trial: dict[str, Estimate] = {}
    counted: list[tuple[int | None, float]] = []
    arms = {each.arm for each in found.compared}
    usual = {arm: estimate_saved(looks, default, [(arm, 0.0)]) for arm in arms}
    for each in found.compared:
        lost = lost_j(each.own, spent_j)
        if lost is None or (each.arm is not None and each.arm not in now):
            continue
        counted.append((each.arm, lost))
        by_trial[each.last.trial] = usual[each.arm].less(lost)
    kept = [each for each in found.compared if each.last.trial in by_trial]
    in_use = _find_in_use(kept)
    return Savings(
        ended=len(ended),
        explored=True,
        by_trial=by_trial,
        default=default,
        default_j=float(np.median(now[default])),
        default_runs=sum(
            run.arm == default and run.status is TrialStatus.REACHED for run in found.era
        ),
        in_use=in_use,
        share=None if in_use is None else estimate_share(looks, default, in_use),
        net=estimate_saved(looks, default, counted) if counted else None,
        since=kept[0].own[0].started_at if kept else None,
        note=None if kept else "no recurrence can be compared with the default yet",
    )


def sum_energy(trials: Sequence[Trial], savings: Savings) -> NetAmounts:
    """Return the energy, money and carbon that recurrences saved; see ``find_net_amounts``."""
    found = build_comparison(trials, find_ended(trials), by_energy=True)
    if found is None:
        return NetAmounts()
    default, looks = found.problem.default, found.draw_looks()
    counted: list[tuple[int | None, float]] = []
    grams: list[float | None] = []
    prices: defaultdict[str, dict[int, float]] = defaultdict(dict)  # per joule, by place
    for each in found.compared:
        lost = lost_j(each.own, undisturbed_energy_j)
        if lost is None or each.last.trial not in savings.by_trial:
            continue
        if default not in looks[0] or (each.arm is not None and each.arm not in looks[0]):
            continue
        grams.append(rate_of(each.own, [trial.carbon_g for trial in each.own]))
        price = rate_of(each.own, [trial.price for trial in each.own])
        currencies = {trial.currency for trial in each.own if trial.price is not None}
        if price is not None and len(currencies) == 1:
            prices[currencies.pop() or ""][len(counted)] = price
        counted.append((each.arm, lost))
    if not counted:
        return NetAmounts()
    with_carbon = {at: gram for at, gram in enumerate(grams) if gram is not None}

    def weigh(rates: Mapping[int, float]) -> Estimate:
        own = [counted[at] for at in rates]
        return estimate_saved(looks, default, own, list(rates.values()))

    return NetAmounts(
        energy_j=estimate_saved(looks, default, counted),
        energy_runs=len(counted),
        money={currency: weigh(rates) for currency, rates in prices.items()},
        money_runs=sum(map(len, prices.values())),
        carbon_g=weigh(with_carbon) if with_carbon else None,
        carbon_runs=len(with_carbon),
    )


def estimate_saved(
    looks: Sequence[dict[int, Array]],
    default: int,
    counted: Sequence[tuple[int | None, float]],
    worth: Sequence[float] | None = None,
) -> Estimate:
    """Return what recurrences saved: of each its batch size, and the joules that it lost.

    At a look at which nothing was known of a batch size, it saved nothing.
    ``worth`` weighs them, such as by their price per joule; ``None``: 1 each.
    """
    weights = [1.0] * len(counted) if worth is None else worth
    reached: dict[int, float] = {}
    lost = 0.0
    for (arm, lost_joules), weight in zip(counted, weights, strict=True):
        lost += weight * lost_joules
        if arm is not None and arm != default:
            reached[arm] = reached.get(arm, 0.0) + weight
    if not reached:  # what was lost is known
        return Estimate(*(0.0 - lost,) * 3)
    return _over_looks(
        [
            np.zeros(1)
            - lost
            + sum(n * (drawn[default] - drawn[arm]) for arm, n in reached.items() if arm in drawn)
            if default in drawn
            else None
            for drawn in looks
        ]
    )


def estimate_share(looks: Sequence[dict[int, Array]], default: int, arm: int) -> Estimate:
    """Return what a run with a batch size saves, as a share of what the default costs."""
    return _over_looks(
        [
            1 - drawn[arm] / drawn[default] if drawn.keys() >= {default, arm} else None
            for drawn in looks
        ]
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
    own = [each for each in compared if each.last.stage is not Stage.CONTROL]
    reached = [each for each in own if each.arm is not None]
    exploited = (each for each in reversed(reached) if each.last.stage is Stage.EXPLOIT)
    newest = next(exploited, reached[-1] if reached else None)
    return None if newest is None else newest.arm


def _why_nothing(found: Comparison) -> str:
    """Say why no run of the default can be compared with the newest runs."""
    newest, default = found.newest, found.problem.default
    size = f"batch size {default}, the default,"
    costly = [at for at, trial in enumerate(found.trials) if has_cost(trial)]
    own = [at for at in costly if found.trials[at].global_batch_size == default]
    if not own:
        return f"{size} has never shown what it costs"
    then, run = found.trials[own[-1]], found.read[own[-1]]
    later = [found.trials[at] for at in costly if at > own[-1]]
    if then.variant != newest.variant:
        what = "how the batch size is adapted"
    elif setting(then) != setting(newest):
        what = _changed_setting(then, newest)
    elif run is not None and run.status is TrialStatus.REACHED and run.epoch_cost_j is not None:
        what = "the training"
        era = {run.recurrence for run in found.era}
        later = [trial for trial in later if trial.recurrence in era]
    else:
        return f"no run of {size} can be compared with the newest runs"
    first = next((trial for trial in later if _job(trial) == _job(newest)), newest)
    moment = local_time(first.started_at)
    when = "" if moment is None else f" on {moment.day} {moment:%B}"
    return (
        f"{what} changed{when}, and {size} has not run since: counting begins again when it has "
        "(policy.control)"
    )


def _changed_setting(then: Trial, now: Trial) -> str:
    objective, hardware, _ = setting(then)
    if objective != setting(now)[0]:
        return "the objective"
    return "the hardware" if hardware != setting(now)[1] else "how energy is measured"

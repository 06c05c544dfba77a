"""Just-in-time profiling: which power limit to hold now. Reads no clock and sets no limit."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from zeusrun.bandit.problem import is_stale, step_cost_j
from zeusrun.launcher.power.probe import PAUSE_S, Probe, Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.lever import Lever
    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import PowerPoint

CHECK_EVERY_S = 60.0  # the choice is measured again so often, at no cost
FAIR_ERROR = 0.02  # the most that a probe may have which the end of the training cuts short
MOST_PROFILES = 3  # in one trial: a job whose speed keeps changing is not profiled again and again


class Profiling:
    """The search of one trial, while its training goes on.

    Limits are probed one after another as the policy asks for them. Then its choice is held, and
    measured again from time to time. ``known`` is the profile of the batch size from earlier
    trials, ``original`` the limit in force before anything is changed, ``ask`` the policy's
    ``next_lever``, and ``is_in_force`` returns whether every GPU has a limit now; ``None`` if
    that cannot be read.
    """

    def __init__(
        self,
        problem: Problem,
        known: Sequence[PowerPoint],
        original: Lever | None,
        ask: Callable[[Sequence[PowerPoint]], Lever | None],
        is_in_force: Callable[[Lever], bool | None] = lambda _lever: True,
    ) -> None:
        self.points: dict[Lever | None, PowerPoint] = {}  # by limit, in order of measurement
        self.chosen: Lever | None = None  # by the policy
        self.failure: str | None = None  # why nothing is measured any more
        self.stepped_under: set[Lever | None] = set()
        self._problem, self._original, self._ask = problem, original, ask
        self._is_in_force = is_in_force
        self._weights = objective_weights(problem)
        self._known = {point.lever: point for point in known}
        self._lever: Lever | None = None  # the one that is measured, or the choice
        self._probe: Probe | None = None
        self._before: Probe | None = None  # the last one that ended
        self._best: Lever | None = None  # the choice, whether it is still held or not
        self._begun = self._decided = self._paused = self._doubted = False
        self._kept = False  # whether the limit was in force when it was released for a pause
        self._profiles = 1
        self._check_t = 0.0
        self._held_steps: Counter[Lever | None] = Counter()  # while limits were tried
        self._counted = 0

    @property
    def probing(self) -> bool:
        """Whether a limit is held only to be measured."""
        return self._begun and not self._decided and self.failure is None

    def advance(
        self, count: StepCount, now_t: float, energy_between: EnergyBetween, *, wait: bool = False
    ) -> Lever | None:
        """Add the step clock of the slowest rank, about ten times a second; return the limit.

        ``None`` is the original one. While ``wait``, no new limit is tried.
        """
        if not self._begun:
            self._begun = True
            self._follow(count, now_t)
        stepped = count.steps > self._counted
        if stepped and not self._paused:
            self.stepped_under.add(self._lever)
            if self.failure is None:  # later steps are not the price of trying limits
                self._held_steps[self._lever] += count.steps - self._counted
        self._counted = count.steps
        if self.failure is not None:
            return self.chosen
        if self._paused and stepped and self._probe is not None:
            self._paused = False
            self._probe.hold_again(now_t, count.steps)
        try:
            self._measure(count, now_t, energy_between, wait=wait, stepped=stepped)
            pauses = self.probing and self._probe is not None and self._probe.pauses(now_t)
            if pauses and not self._paused:
                self._kept = self._is_held()  # raises if what was measured is false
        except ValueError as error:
            self.give_up(f"{error}: power limits are not tried any more")
            return self.chosen
        if pauses:
            self._paused = True  # do not slow down an evaluation, a checkpoint or a data stall
            return None
        between_probes = self.probing and self._probe is None
        if between_probes and now_t - count.last_step_t > PAUSE_S:
            return None  # likewise: the next limit waits for the next step
        return self._lever

    def settle(self, now_t: float) -> None:
        """Settle from now on, because setting the limit has taken time until now."""
        if self._probe is not None:
            self._probe.hold_again(now_t, self._counted)

    def give_up(self, why: str, *, released: bool = False) -> None:
        """Try no more limits; ``released``: not even the choice is held any more."""
        self.failure = why
        self._probe = None
        if released:
            self.chosen = None
        if self.chosen is None:
            self._lever = self._original

    def finish(self) -> None:
        """Keep the measurement of an interrupted probe, before the limit is restored."""
        if self._probe is None or self._lever in self._known:
            return
        measured = self._probe.measured(self._weights)
        if measured is None or measured.error > FAIR_ERROR:
            return
        with contextlib.suppress(ValueError):  # another limit is in force: the point is false
            if self._was_held():
                self.points[self._lever] = measured.point(self._lever)

    def extra_cost_j(self) -> float | None:
        """Return the joules above those of holding the best limit; ``None`` if that is unknown."""
        points = self._known | self.points
        costs_j = {
            lever: cost_j
            for lever in self._held_steps
            if lever in points and (cost_j := step_cost_j(points[lever], self._problem))
        }
        if len(costs_j) < 2:
            return None
        best = self._best if self._decided else min(costs_j, key=lambda lever: costs_j[lever])
        if best not in costs_j:
            return None
        return sum(
            self._held_steps[lever] * (cost_j - costs_j[best]) for lever, cost_j in costs_j.items()
        )

    def _follow(self, count: StepCount, now_t: float) -> None:
        """Hold the limit that the policy asks for, to measure it or because it is the choice."""
        wanted = self._ask(tuple(self._known.values()))
        self._lever = self._original if wanted is None else wanted
        self._decided = wanted is None or wanted in self._known
        self.chosen = self._best = self._lever if self._decided else None
        self._probe = self._next(count, now_t)

    def _measure(
        self,
        count: StepCount,
        now_t: float,
        energy_between: EnergyBetween,
        *,
        wait: bool,
        stepped: bool,
    ) -> None:
        if self._probe is None:
            if not self._decided and not wait and stepped:  # else it may be evaluating
                self._follow(count, now_t)
            elif self._decided and now_t >= self._check_t:
                self._probe = self._next(count, now_t)
            return
        self._probe.add(count)
        if not self._probe.meter(now_t, energy_between):
            return
        measured = self._probe.measured(self._weights)
        if measured is None or not measured.enough or not self._was_held():
            return
        self._take(measured.point(self._lever), count, now_t)

    def _was_held(self) -> bool:
        """Whether the limit was in force until now or, if released for a pause, until then."""
        return self._kept if self._paused else self._is_held()

    def _is_held(self) -> bool:
        """Whether the measured limit is in force; raises ``ValueError`` if another one is.

        False if it cannot be read now.
        """
        lever = self._lever
        in_force = True if lever is None else self._is_in_force(lever)
        if lever is not None and in_force is False:
            raise ValueError(
                f"a limit of {lever.value:g} W is not in force: somebody else sets them"
            )
        return in_force is True

    def _next(self, count: StepCount, now_t: float) -> Probe:
        before = self._probe or self._before
        return Probe(now_t, count.steps) if before is None else before.next(now_t, count.steps)

    def _take(self, point: PowerPoint, count: StepCount, now_t: float) -> None:
        """Keep a point. One that contradicts the known profile is measured once more first."""
        lever, before = self._lever, self._known.get(self._lever)
        contradicts = before is not None and is_stale(before, point)
        if contradicts and not self._doubted:
            self._doubted = True
            self._probe = self._next(count, now_t)
            return
        self._doubted = False
        if contradicts and self._profiles < MOST_PROFILES:
            self._profiles += 1
            self._decided, self.chosen = False, None
            self._known.clear()
            self.points.clear()
        self.points.pop(lever, None)
        self.points[lever] = self._known[lever] = point
        self._before, self._probe = self._probe, None
        self._check_t = now_t + CHECK_EVERY_S


def objective_weights(problem: Problem) -> tuple[Weights, ...]:
    """Return what must be known well of a step, in order to choose between limits."""
    weight, max_power_w = problem.energy_weight, problem.max_power_w
    if problem.power_objective.factor is not None:
        return Weights(1.0, 0.0), Weights(0.0, 1.0)
    if weight == 0:
        return (Weights(0.0, 1.0),)
    if max_power_w is None:
        return (Weights(1.0, 0.0),)
    return (Weights(weight, (1 - weight) * max_power_w),)

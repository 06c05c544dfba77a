"""Asks the policy about a running trial: once its speed is known, and after every epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.observation import Running
from zeusrun.cost import cost_j, energy_text
from zeusrun.launcher.resume import cost_with_earlier
from zeusrun.launcher.supervision.speed_check import (
    begins_with_look,
    has_seen_enough,
    measure_speed,
    read_look,
)
from zeusrun.launcher.supervision.stop_rules import StopCause, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.choose import Choice
    from zeusrun.launcher.context import Submission
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Decision, PowerPoint


class PolicyControl:
    """What the policy makes of one running trial.

    Attributes:
        checking: Whether the trial is still in its speed check.
        speed: What the speed check measured; ``None`` without one.
    """

    def __init__(self, submission: Submission, choice: Choice, meter: Meter) -> None:
        """Prepare; the policy is not asked yet."""
        self._submission, self._choice, self._meter = submission, choice, meter
        self._decision = choice.decision
        self.checking = begins_with_look(choice)
        self.speed: PowerPoint | None = None

    def check_speed(
        self, progress: Progress, limits_w: Collection[float | None]
    ) -> Decision | Verdict | None:
        """End the speed check if enough was seen, and ask the policy again.

        Args:
            progress: Of the trial, now.
            limits_w: The power limits under which it took steps, in watts per GPU.

        Returns:
            The decision that the trial carries out from now on, why it is ended, or ``None`` if
            there is nothing to decide.
        """
        choice, trial = self._choice, self._choice.trial
        if not self.checking or progress.reached is not None:
            return None
        if not has_seen_enough(progress, choice.problem, trial.global_batch_size):
            return None
        self.checking = False
        if len(limits_w) == 1:  # a mean over several limits says nothing about any of them
            (limit_w,) = limits_w
            self.speed = measure_speed(progress, limit_w, self._meter.energy_between)
        measured = read_look(choice.problem, trial, progress, self.speed, self._meter)
        if measured is None:  # then it is an exploration like any other
            return None
        answer = choose_again(self._submission, choice, measured)
        if isinstance(answer, str):
            return Verdict(StopCause.LOOKED, answer)
        self._decision = answer
        return answer

    def review(self, progress: Progress) -> Verdict | None:
        """Ask the policy, at the end of an epoch, whether another one is worth it."""
        trial = self._choice.trial
        last = progress.epochs == trial.max_epochs
        if progress.reached is not None or last or progress.may_be_baseline:
            return None
        point = progress.curve[-1]
        spent_j = cost_j(point.energy_j, self._meter.max_power_w, point.time_s, trial.eta_knob)
        spent_j = cost_with_earlier(trial, spent_j)
        running = Running(progress.epochs, spent_j, progress.best_value)
        reason = self._submission.policy.review(self._choice.problem, self._decision, running)
        return None if reason is None else Verdict(StopCause.HOPELESS, reason)

    def next_limit_w(self, profile: Sequence[PowerPoint]) -> float | None:
        """Return the power limit to hold next, in watts per GPU; ``None`` for the original one.

        Args:
            profile: What was measured under each limit so far.
        """
        policy, problem = self._submission.policy, self._choice.problem
        return policy.next_limit_w(problem, self._decision, profile)


def choose_again(submission: Submission, choice: Choice, measured: Run) -> Decision | str:
    """Ask the policy again, now that the speed of its batch size is known.

    Args:
        submission: The job and all it needs.
        choice: The one that the trial carries out.
        measured: The trial, as if cut short now.

    Returns:
        The decision that the trial carries out from now on, or why it is ended.
    """
    policy, problem, trial = submission.policy, choice.problem, choice.trial
    seed = [submission.spec.policy.seed, problem.recurrence, trial.attempt, 1]
    runs = [*choice.runs, measured]
    decision = policy.choose(problem, runs, np.random.default_rng(seed))
    if decision.global_batch_size == trial.global_batch_size:
        return decision
    beliefs = policy.explain(problem, runs, np.random.default_rng(seed))
    belief = next(each for each in beliefs if each.global_batch_size == trial.global_batch_size)
    epoch_j = belief.epoch_cost_j
    seen = "" if epoch_j is None else f"{energy_text(epoch_j)} an epoch; "
    follows = f"{decision.global_batch_size} follows"
    return f"only its speed was looked at: {seen}{belief.verdict}; {follows}"

"""When a recurrence ends without the target, and which attempt is its last. Pure.

``submit`` and ``simulate`` both ask here, so that a simulation ends where a submit would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.auto.evidence import FAILED
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.trial import Decision, Trial

OUTDONE = FAILED | {TrialStatus.OOM}
"""Endings after which another batch size may still reach the target, and the same one not."""


def is_last_attempt(made: Sequence[Trial], attempts: int) -> bool:
    """Whether the next attempt of a recurrence is the last one, after others that failed.

    Args:
        made: The trials of the recurrence so far. One cut short for its speed is no attempt.
        attempts: How many are allowed.
    """
    failed = sum(trial.status is not TrialStatus.CANCELLED for trial in made)
    return failed > 0 and failed + 1 >= attempts


def is_repeat(decision: Decision, made: Sequence[Trial]) -> bool:
    """Whether a decision repeats what failed in the recurrence, or exceeds what did not fit.

    Then the recurrence ends, before its last attempt, too: with the same data, batch size and seed
    most scripts miss the target again. A trial that was only stopped for its cost may run again
    without a bound.

    Args:
        decision: Of the next attempt.
        made: The trials of the recurrence so far.
    """
    arm = decision.global_batch_size
    final = OUTDONE if decision.bound else OUTDONE - {TrialStatus.STOPPED}
    failed = {trial.global_batch_size for trial in made if trial.status in final}
    too_large = [trial.global_batch_size for trial in made if trial.status is TrialStatus.OOM]
    return arm in failed or arm >= min(too_large, default=arm + 1)


def is_target_in_doubt(made: Sequence[Trial], runs: Sequence[Run]) -> bool:
    """Whether two arms have missed the target in the recurrence, and nothing ever reached it.

    Then the target is as likely to be wrong as the batch sizes.

    Args:
        made: The trials of the recurrence so far.
        runs: All runs of the job.
    """
    missed = {trial.global_batch_size for trial in made if trial.status in FAILED}
    return len(missed) > 1 and not any(run.status is TrialStatus.REACHED for run in runs)

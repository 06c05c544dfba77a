"""When a recurrence ends without the target, and which attempt is its last. Pure.

``submit`` and ``simulate`` both ask here, so that a simulation ends where a submit would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit.evidence import FAILED
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.run import Run
    from zeusrun.trial import Trial

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


def has_failed(arm: int, made: Sequence[Trial]) -> bool:
    """Whether an arm has failed in the recurrence, or is larger than one that did not fit.

    It is not repeated in the recurrence, as its last attempt neither: most scripts do the same
    again with the same data, batch size and seed.

    Args:
        arm: The arm.
        made: The trials of the recurrence so far.
    """
    failed = {trial.global_batch_size for trial in made if trial.status in OUTDONE}
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

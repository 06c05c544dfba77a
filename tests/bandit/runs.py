"""Short ways to write the runs of a job, as policies see them."""

from __future__ import annotations

from zeusrun.bandit.problem import Observation
from zeusrun.trial import TrialStatus

REACHED = TrialStatus.REACHED


def run(
    arm: int, epochs: int | None = 10, *, per_epoch: float | None = 100.0, **changes
) -> Observation:
    """One run; reached unless its status says otherwise, 100 J an epoch."""
    values = {
        "arm": arm,
        "recurrence": 1,
        "status": REACHED,
        "epochs": epochs,
        "epoch_cost_j": per_epoch,
        "cost_j": None if per_epoch is None or epochs is None else per_epoch * epochs,
        "power_w": 40.0,
        "pace": ((1, 0.3), (max(2, (epochs or 0) // 2), 0.7), (max(3, epochs or 0), 0.95)),
    }
    if changes.get("status", REACHED) is not REACHED:
        values["cost_j"] = None
    return Observation(**(values | changes))


def flying(arm: int, **changes) -> Observation:
    """A run in flight."""
    return Observation(arm, changes.pop("recurrence", 2), TrialStatus.DISPATCHED, **changes)


def speed_checked(arm: int, per_epoch: float, **changes) -> Observation:
    """A run of which only the speed was seen."""
    status = TrialStatus.CANCELLED
    return Observation(arm, 1, status, epoch_cost_j=per_epoch, power_w=40.0, **changes)

"""``live.json``: a running trial as it stands, for ``status`` and for the day its launcher dies."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from zeusrun.clock import timestamp
from zeusrun.cost import cost_j
from zeusrun.files.atomic import replace_file
from zeusrun.files.private import read_file
from zeusrun.launcher.resume import join
from zeusrun.launcher.supervision.outcome import limit_in_force
from zeusrun.trial import Outcome, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.supervision.outcome import Bill
    from zeusrun.metrics.progress import Progress

_UNREADABLE = (
    *(OSError, ValueError, TypeError, AttributeError),
    *(LookupError, ArithmeticError, RecursionError),
)
_MAX_BYTES = 16 << 20
LAUNCHER_DIED = "its launcher died"


@dataclass(frozen=True)
class Live:
    """A running trial at one moment.

    Attributes:
        trial: Dispatched, and with what it has taken so far: time, energy, epochs, curve.
        pid: Process id of its launcher.
        host: The machine it runs on.
        updated_at: RFC 3339.
        power_w: Watts now; ``None`` if unknown.
        preempted: Whether it is being ended for a scheduler.
    """

    trial: Trial
    pid: int
    host: str
    updated_at: str
    power_w: float | None = None
    preempted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        record = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**record, "trial": self.trial.to_json()}


def describe_live(
    trial: Trial,
    progress: Progress,
    bill: Bill,
    *,
    warnings: Sequence[str] = (),
    preempted: bool = False,
) -> Live:
    """Return a trial as it stands, metered up to ``progress.energy_j``."""
    begun_t = progress.training_t
    limit_w = None if begun_t is None else limit_in_force(trial, (), bill, begun_t, progress.now_t)
    outcome = Outcome(
        TrialStatus.LOST,
        LAUNCHER_DIED,
        timestamp(),
        startup_s=progress.startup_s,
        time_s=progress.time_s,
        energy_j=progress.energy_j,
        energy_source=None if progress.energy_j is None else bill.energy_source,
        max_power_w=bill.max_power_w,
        cost_j=cost_j(progress.energy_j, bill.max_power_w, progress.time_s, trial.eta_knob),
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
        power_limit_w=limit_w,
        shared=bill.shared,
        warnings=tuple(warnings),
    )
    so_far = trial.finish(join(trial, outcome))
    return Live(
        replace(so_far, status=TrialStatus.DISPATCHED, reason=None, finished_at=None),
        os.getpid(),
        socket.gethostname(),
        outcome.finished_at,
        progress.power_w,
        preempted,
    )


def write_live(paths: RunPaths, live: Live) -> None:
    """Replace the file; a disk that is full keeps the one before.

    It is not synced: what a power cut takes is in the history, or at most a second old.
    """
    with contextlib.suppress(OSError):
        replace_file(paths.live, json.dumps(live.to_json()).encode(), durable=False)


def read_live(paths: RunPaths) -> Live | None:
    """Return what a launcher left, or ``None`` if it left nothing that reads."""
    try:
        record = json.loads(read_file(paths.live, _MAX_BYTES))
        return Live(
            Trial.from_json(dict(record["trial"])),
            int(record["pid"]),
            str(record["host"]),
            str(record["updated_at"]),
            _checked(record.get("power_w")),
            record.get("preempted") is True,
        )
    except _UNREADABLE:
        return None


def _checked(value: float | None) -> float | None:
    if value is None:
        return None
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a number that JSON has")
    return float(value)

"""Takes the reports of a running training, and decides whether it goes on. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from zeusrun.bandit.problem import Running
from zeusrun.cost import cost_j
from zeusrun.reasons import ReasonCode
from zeusrun.target import better_value, meets_target
from zeusrun.trial import (
    Bound,
    CurvePoint,
    Decision,
    EnergySource,
    Outcome,
    Trial,
    TrialStatus,
    epochs_of,
    thin_curve,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.bandit.registry import Policy
    from zeusrun.server.zeus.messages import Report

LEASE_S = 3600.0
"""How long a training may be silent before it is LOST; longer if its epochs are long."""
_LONGEST_LEASE_S = 30 * 86400.0
_EPOCHS_OF_SILENCE = 3
_DIED = "its process ended before the first report"  # ``Trial.cause`` and ``Trial.reason``


@dataclass(frozen=True)
class Training:
    """A training between two reports: its trial so far, its bound and its lease."""

    trial: Trial
    bound: Bound | None
    lease_s: float

    def to_json(self, updated_at: str) -> dict[str, Any]:
        """Return what is stored while it runs: what ``status --json`` shows, and the bound."""
        trial, bound = self.trial, self.bound
        power_w = trial.energy_j / trial.time_s if trial.energy_j and trial.time_s else math.inf
        own: dict[str, Any] = {"alive": True, "pid": None, "updated_at": updated_at}
        own["power_w"] = power_w if math.isfinite(power_w) else None
        own["last_metric"] = trial.curve[-1].value if trial.curve else None
        kept = None if bound is None else asdict(bound)
        return {**trial.to_json(), **own, "bound": kept, "lease_s": self.lease_s}

    @classmethod
    def from_json(cls, stored: Trial, live: dict[str, Any] | None) -> Training:
        """Return a training as last stored; ``stored`` is its trial in the history.

        Reports that came after its lease had expired are in the trial alone.
        """
        if live is None:  # the server ended between two writes
            return cls(stored, None, LEASE_S)
        kept = live["bound"]
        bound = None
        if kept is not None:
            paces = tuple(tuple((n, value) for n, value in pace) for pace in kept["paces"])
            bound = Bound(kept["cost_j"], paces, kept["epochs"])
        seen = Trial.from_json(live)
        newest = stored if len(stored.curve) > len(seen.curve) else seen
        return cls(newest, bound, live["lease_s"])

    def with_report(self, report: Report) -> Training:
        """Return the training after another report; one that is late changes nothing.

        A later report of the same epoch replaces the earlier one.
        """
        trial, earlier = self.trial, self.trial.curve
        if earlier and (report.current_epoch, report.time) < (
            earlier[-1].epoch,
            earlier[-1].time_s,
        ):
            return self
        if earlier and report.current_epoch == earlier[-1].epoch:
            earlier = earlier[:-1]
        energy_j = report.energy or None  # the counter has not moved yet
        value = report.metric if math.isfinite(report.metric) else None
        point = CurvePoint(report.current_epoch, report.time, energy_j, value)
        curve = thin_curve((*earlier, point), trial.target, trial.mode)
        silence_s = report.time - (earlier[-1].time_s if earlier else 0.0)
        lease_s = max(self.lease_s, min(_LONGEST_LEASE_S, _EPOCHS_OF_SILENCE * silence_s))
        taken = replace(
            trial,
            time_s=report.time,
            energy_j=energy_j,
            energy_source=None if energy_j is None else EnergySource.COUNTER,
            cost_j=cost_j(energy_j, trial.max_power_w, report.time, trial.eta_knob),
            epochs=epochs_of(curve),
            best_metric=better_value(report.metric, trial.best_metric, trial.mode),
            curve=curve,
        )
        return Training(taken, self.bound, lease_s)

    def judge(self, problem: Problem, policy: Policy, report: Report, now: str) -> Outcome | None:
        """Return how the training ends after a report; ``None``: it goes on.

        One that reaches the target has reached it, whatever it cost.
        """
        trial = self.trial
        if meets_target(report.metric, trial.target, trial.mode):
            reason = f"{trial.metric} {report.metric:.4g} in epoch {report.current_epoch}"
            return trial.ended_as(TrialStatus.REACHED, ReasonCode.TARGET_REACHED, reason, now)
        if report.current_epoch >= trial.max_epochs:
            best = (
                "no finite value" if trial.best_metric is None else f"best {trial.best_metric:.4g}"
            )
            reason = f"{trial.metric} {best} after {trial.epochs} epochs, target {trial.target:g}"
            return trial.ended_as(TrialStatus.MISSED, ReasonCode.TARGET_MISSED, reason, now)
        decision = Decision(trial.global_batch_size, trial.stage, trial.why, bound=self.bound)
        running = Running(trial.epochs or 1, trial.cost_j, trial.best_metric)
        why = policy.review(problem, decision, running)
        if why is None:
            return None
        return trial.ended_as(TrialStatus.STOPPED, ReasonCode.HOPELESS, why, now)

    def end(self, now: str) -> Outcome:
        """Return the outcome of a training whose process ended while it was to go on."""
        trial, code = self.trial, ReasonCode.PROCESS_ENDED
        if not trial.curve:
            return replace(trial.ended_as(TrialStatus.FAILED, code, _DIED, now), cause=_DIED)
        reason = f"its process ended after {trial.epochs} of {trial.max_epochs} epochs"
        return trial.ended_as(TrialStatus.CANCELLED, code, reason, now)


def first_lease_s(trials: Sequence[Trial]) -> float:
    """Return the lease of a training before its first report, from earlier ones of the job."""
    longest_s = max(
        (
            later.time_s - earlier
            for trial in trials
            for earlier, later in zip(
                (0.0, *(point.time_s for point in trial.curve)), trial.curve, strict=False
            )
        ),
        default=0.0,
    )
    return max(LEASE_S, min(_LONGEST_LEASE_S, _EPOCHS_OF_SILENCE * longest_s))

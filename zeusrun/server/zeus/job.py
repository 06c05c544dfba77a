"""Reads a Zeus job as a problem of our policies, and its trainings as our trials. Pure.

The reports of a running training decide whether it goes on.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from zeusrun.bandit.auto.evidence import PROVEN
from zeusrun.bandit.problem import FAILED, Running
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import bounded_choice
from zeusrun.choice.choose import draft_trial
from zeusrun.choice.problem import Machine, Moment, build_problem
from zeusrun.cost import cost_j
from zeusrun.job_name import is_job_name
from zeusrun.jobfile.spec import sketch_spec
from zeusrun.reasons import ReasonCode
from zeusrun.target import better_value, meets_target
from zeusrun.trial import (
    Bound,
    CurvePoint,
    Decision,
    EnergySource,
    Hardware,
    Outcome,
    Trial,
    TrialStatus,
    epochs_of,
    thin_curve,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.bandit.registry import Policy
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.server.zeus.messages import Report, ZeusSettings

METRIC = "metric"  # Zeus gives it no name
DEATHS = 2  # in a row, after which a batch size no longer runs
DEATHS_OF_PROVEN = 4  # of one that has reached the target before: machines fail, too
_DEAD = frozenset({TrialStatus.FAILED, TrialStatus.LOST, TrialStatus.CANCELLED})
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def job_names(job_id: str) -> Iterator[str]:
    """Yield the names that a job's history can have, the best first.

    The first is the ``job_id`` itself if a job can have this name. All others keep its beginning,
    for tokens that are valid for ``team-*``, and end in a hash.
    """
    if is_job_name(job_id):
        yield job_id
    safe = _UNSAFE.sub("-", job_id).lstrip("._-") or "zeus"
    digest = hashlib.sha256(job_id.encode("utf-8", "backslashreplace")).hexdigest()
    for digits in (8, 16, 32):
        yield f"{safe[: 63 - digits]}-{digest[:digits]}"


def run_directory(job_id: str, number: int | None = None) -> str:
    """Return ``Trial.run_dir`` of a training that a Zeus client runs; without a number, its start.

    Its files are on a machine that we do not know. It also tells such trials from others.
    """
    return f"zeus://{quote(job_id, safe='')}/{'' if number is None else number}"


def find_dead(settings: ZeusSettings, trials: Sequence[Trial]) -> dict[int, int]:
    """Return the batch sizes whose last runs all died, and how many did; trials oldest first.

    A run died if it ended, or its lease expired for good, before a rule stopped it. Runs on other
    GPUs do not count. If no batch size would be left, all may run: the script is then the likely
    cause.
    """
    dead = {}
    for size in settings.batch_sizes:
        of_size = [
            trial
            for trial in reversed(trials)
            if trial.global_batch_size == size
            and trial.status.finished
            and not trial.forgotten
            and trial.hardware == _hardware(settings)
        ]
        deaths = sum(1 for _ in takewhile(_has_died, of_size))
        proven = any(trial.status is TrialStatus.REACHED for trial in of_size)
        if deaths >= (DEATHS_OF_PROVEN if proven else DEATHS):
            dead[size] = deaths
    return dead if len(dead) < len(settings.batch_sizes) else {}


def _has_died(trial: Trial) -> bool:
    return trial.status in _DEAD and trial.reason_code is not ReasonCode.REPORTED_LATE


def pose_problem(settings: ZeusSettings, recurrence: int, dead: Collection[int] = ()) -> Problem:
    """Return the policy's problem; ``dead`` batch sizes are no candidates."""
    problem = build_problem(read_spec(settings, dead), read_machine(settings), (), recurrence)
    # A Zeus client makes no further attempt, and cannot go on with another batch size.
    return replace(problem, attempts_left=None, speed_checks=False)


def read_spec(settings: ZeusSettings, dead: Collection[int] = (), name: str = "") -> JobSpec:
    """Return the job that a client describes.

    If the default is dead, the nearest candidate takes its place.
    """
    candidates = [size for size in settings.batch_sizes if size not in dead]
    begin = settings.default_batch_size
    objective = {
        "metric": METRIC,
        "mode": "max" if settings.higher_is_better_metric else "min",
        "target": settings.target_metric,
        "max_epochs": settings.max_epochs,
        "eta_knob": settings.eta_knob,
    }
    return sketch_spec(
        name,
        objective,
        candidates=candidates,
        default=min(candidates, key=lambda size: (abs(math.log(size / begin)), size)),
        cost_factor=settings.beta_knob,
        window=settings.window_size if settings.window_size > 0 else None,
    )


def read_machine(settings: ZeusSettings, host: str | None = None) -> Machine:
    """Return what a client says about its GPUs."""
    return Machine(
        host=host,
        hardware=_hardware(settings),
        energy_measured=True,
        max_power_w=settings.max_power,
    )


def _hardware(settings: ZeusSettings) -> Hardware:
    return Hardware(settings.number_of_gpus, settings.gpu_model, settings.number_of_gpus)


def choose(
    settings: ZeusSettings, policy: Policy, trials: Sequence[Trial], recurrence: int
) -> Decision:
    """Let the policy choose the batch size of the next training; trials oldest first.

    A slow machine alone stops no training: see ``fit_bound``. A client makes no further attempt, so
    after a training of a proven batch size was stopped, the next ones have no bound until one
    reaches the target or fails without a bound.
    """
    dead = find_dead(settings, trials)
    problem, runs = read_history(pose_problem(settings, recurrence, dead), trials)
    newest = reversed([run for run in runs if run.status in {*FAILED, TrialStatus.REACHED}])
    stopped = takewhile(lambda run: run.status is TrialStatus.STOPPED, newest)
    if any(run.stage in PROVEN for run in stopped):
        problem = replace(problem, attempts_left=1)
    rng = np.random.default_rng([abs(settings.mab_seed or 0), recurrence])
    decision = bounded_choice(lambda now, past: policy.choose(now, past, rng), problem, runs, [])
    if not dead:
        return decision
    left_out = ", ".join(f"{size} (its last {deaths} runs died)" for size, deaths in dead.items())
    return replace(decision, why=f"{decision.why}; left out: {left_out}")


def begin_trial(
    settings: ZeusSettings,
    job: str,
    recurrence: int,
    decision: Decision,
    *,
    started_at: str,
    uuid: str,
    host: str | None,
) -> Trial:
    """Return the dispatched trial of a training: every training of Zeus is its own recurrence."""
    trial = draft_trial(
        read_spec(settings, name=job),
        pose_problem(settings, recurrence),
        decision,
        attempt=1,
        machine=read_machine(settings, host),
        moment=Moment(now=started_at, uuid=uuid, runs=Path(), fingerprint={}),
    )
    directory = run_directory(settings.job_id or "", recurrence)
    return replace(trial, run_dir=directory, max_power_w=settings.max_power, fingerprint=None)


LEASE_S = 3600.0
"""How long a training may be silent before it is LOST; longer if its epochs are long."""
_LONGEST_LEASE_S = 30 * 86400.0
_EPOCHS_OF_SILENCE = 3
_DIED = "its process ended before the first report"  # ``Trial.cause`` and ``Trial.reason``


@dataclass(frozen=True)
class ReportedTraining:
    """A training between two reports: its trial so far, its bound and its lease."""

    trial: Trial
    bound: Bound | None
    lease_s: float

    def to_json(self, updated_at: str) -> dict[str, Any]:
        """Return what is stored while it runs: what ``status --json`` shows, and the bound."""
        trial, bound = self.trial, self.bound
        power_w = trial.energy_j / trial.time_s if trial.energy_j and trial.time_s else math.inf
        more: dict[str, Any] = {"alive": True, "pid": None, "updated_at": updated_at}
        more["power_w"] = power_w if math.isfinite(power_w) else None
        more["last_metric"] = trial.curve[-1].value if trial.curve else None
        kept = None if bound is None else asdict(bound)
        return {**trial.to_json(), **more, "bound": kept, "lease_s": self.lease_s}

    @classmethod
    def from_json(cls, stored: Trial, live: dict[str, Any] | None) -> ReportedTraining:
        """Return a training as last stored; ``stored`` is its trial in the history.

        Reports that came after its lease had expired are in the trial alone.
        """
        if live is None:  # nothing was kept
            return cls(stored, None, LEASE_S)
        kept = live["bound"]
        bound = None
        if kept is not None:
            paces = tuple(tuple((n, value) for n, value in pace) for pace in kept["paces"])
            bound = Bound(kept["cost_j"], paces, kept["epochs"])
        seen = Trial.from_json(live)
        newest = stored if len(stored.curve) > len(seen.curve) else seen
        return cls(newest, bound, live["lease_s"])

    def with_report(self, report: Report) -> ReportedTraining:
        """Return the training after another report; one that is late changes nothing.

        A later report of the same epoch replaces the earlier one.
        """
        trial, earlier = self.trial, self.trial.curve
        if earlier and (report.current_epoch, report.time) < earlier[-1][:2]:
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
            whole_time_s=report.time,
            whole_energy_j=energy_j,
            whole_epochs=epochs_of(curve),
            best_metric=better_value(report.metric, trial.best_metric, trial.mode),
            curve=curve,
        )
        return ReportedTraining(taken, self.bound, lease_s)

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
            later - earlier
            for trial in trials
            for earlier, later in pairwise((0.0, *(point.time_s for point in trial.curve)))
        ),
        default=0.0,
    )
    return max(LEASE_S, min(_LONGEST_LEASE_S, _EPOCHS_OF_SILENCE * longest_s))

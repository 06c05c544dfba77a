"""Reads a Zeus job as a problem of our policies, and its trainings as our trials. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from zeusrun.bandit.auto.evidence import PROVEN
from zeusrun.bandit.problem import FAILED
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import bounded_choice
from zeusrun.choice.choose import draft_trial
from zeusrun.choice.inputs import Machine, Moment
from zeusrun.choice.problem import build_problem
from zeusrun.job_name import is_job_name
from zeusrun.jobfile.spec import sketch_spec
from zeusrun.reasons import ReasonCode
from zeusrun.trial import Decision, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.bandit.registry import Policy
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.server.zeus.messages import Settings
    from zeusrun.trial import Trial

METRIC = "metric"  # Zeus gives it no name
DEATHS = 2  # in a row, after which a batch size no longer runs
DEATHS_OF_PROVEN = 4  # of one that has reached the target before: machines fail, too
_DIED = frozenset({TrialStatus.FAILED, TrialStatus.LOST, TrialStatus.CANCELLED})
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


def find_dead(settings: Settings, trials: Sequence[Trial]) -> dict[int, int]:
    """Return the batch sizes whose last runs all died, and how many did; trials oldest first.

    A run died if it ended, or its lease expired for good, before a rule stopped it. Runs on other
    GPUs do not count. If no batch size would be left, all may run: the script is then the likely
    cause.
    """
    hardware = (settings.gpu_model, settings.number_of_gpus)
    dead = {}
    for size in settings.batch_sizes:
        own = [
            trial
            for trial in reversed(trials)
            if trial.global_batch_size == size
            and trial.status.finished
            and not trial.forgotten
            and (trial.gpu_model, trial.gpu_count) == hardware
        ]
        deaths = sum(1 for _ in takewhile(_has_died, own))
        proven = any(trial.status is TrialStatus.REACHED for trial in own)
        if deaths >= (DEATHS_OF_PROVEN if proven else DEATHS):
            dead[size] = deaths
    return dead if len(dead) < len(settings.batch_sizes) else {}


def _has_died(trial: Trial) -> bool:
    return trial.status in _DIED and trial.reason_code is not ReasonCode.REPORTED_LATE


def pose_problem(settings: Settings, recurrence: int, dead: Collection[int] = ()) -> Problem:
    """Return the policy's problem; ``dead`` batch sizes are no candidates."""
    problem = build_problem(read_spec(settings, dead), read_machine(settings), (), recurrence)
    # A Zeus client makes no further attempt, and cannot go on with another batch size.
    return replace(problem, attempts_left=None, speed_checks=False)


def read_spec(settings: Settings, dead: Collection[int] = (), name: str = "") -> JobSpec:
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


def read_machine(settings: Settings, host: str | None = None) -> Machine:
    """Return what a client says about its GPUs."""
    return Machine(
        host=host,
        world_size=settings.number_of_gpus,
        gpu_model=settings.gpu_model,
        gpu_count=settings.number_of_gpus,
        energy_measured=True,
        max_power_w=settings.max_power,
    )


def choose(
    settings: Settings, policy: Policy, trials: Sequence[Trial], recurrence: int
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
    return Decision(
        decision.global_batch_size,
        decision.stage,
        f"{decision.why}; left out: {left_out}",
        bound=decision.bound,
    )


def begin_trial(
    settings: Settings,
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

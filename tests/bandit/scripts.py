"""Short ways to write a problem and a history."""

from __future__ import annotations

import dataclasses

import numpy as np

from tests.factories import build_trial
from zeusrun.bandit.power import first_lever, next_lever, sweep_lever
from zeusrun.bandit.problem import Problem
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.zeus.policy import Zeus
from zeusrun.lever import POWER, Lever, power_lever
from zeusrun.trial import Decision, EnergySource, Hardware, Trial, TrialStatus

PROBLEM = Problem(
    candidates=(16, 32, 64, 128, 256),
    default=64,
    metric="val_accuracy",
    mode="max",
    target=0.95,
    max_epochs=40,
    eta_knob=1.0,
    cost_factor=2.0,
    window=None,
    recurrence=1000,
    hardware=Hardware(2, "V100", 2),
    energy_measured=True,
    learning_rates=dict.fromkeys((16, 32, 64, 128, 256), 0.1),
)

REACHED = TrialStatus.REACHED
MISSED = TrialStatus.MISSED
STOPPED = TrialStatus.STOPPED
OOM = TrialStatus.OOM
DISPATCHED = TrialStatus.DISPATCHED


def problem(*, power_limits_w=(), **changes) -> Problem:
    return change(PROBLEM, levers=power_levers(power_limits_w), **changes)


def change(then: Problem, **changes) -> Problem:
    """Return a problem with other fields, or with other fields of its hardware."""
    own = {name: changes.pop(name) for name in Hardware._fields if name in changes}
    return dataclasses.replace(then, hardware=then.hardware._replace(**own), **changes)


def power_levers(limits_w):
    return tuple(Lever(POWER, limit_w) for limit_w in limits_w)


def watts(lever: Lever | None) -> float | None:
    return lever and lever.value


def next_limit_w(asked, profile, start_w=None):
    return watts(next_lever(asked, profile, power_lever(start_w)))


def first_limit_w(asked, runs, arm):
    return watts(first_lever(asked, runs, arm))


def sweep_limit_w(asked, profile):
    return watts(sweep_lever(asked, profile))


def trial(arm: int, status: TrialStatus = REACHED, energy_j: float | None = 100.0, **changes):
    """One trial that PROBLEM reads as it ended; DISPATCHED has no outcome."""
    values = {
        "trial": "t",
        "status": status,
        "global_batch_size": arm,
        "learning_rate": 0.1,
        "world_size": 2,
        "gpu_model": "V100",
        "gpu_count": 2,
        "metric": "val_accuracy",
        "target": 0.95,
        "max_epochs": 40,
        "eta_knob": 1.0,
    }
    if status is not DISPATCHED:
        values |= {
            "energy_j": energy_j,
            "energy_source": None if energy_j is None else EnergySource.COUNTER,
            "time_s": 10.0,
            "max_power_w": 50.0,
            "cost_j": energy_j,
            "epochs": 5,
        }
    return build_trial(**(values | changes))


def history(*entries) -> list[Trial]:
    """Trials in order; an entry is ``(arm, joules)`` for reached or ``(arm, status)``."""
    trials = []
    for number, (arm, what) in enumerate(entries):
        status, energy_j = (what, 100.0) if isinstance(what, TrialStatus) else (REACHED, what)
        trials.append(trial(arm, status, energy_j, trial=f"t{number}", recurrence=number))
    return trials


def choose(problem: Problem, trials, seed: int = 0) -> Decision:
    """What policy ``zeus`` chooses, its bound apart."""
    decision = Zeus().choose(*read_history(problem, trials), np.random.default_rng(seed))
    return dataclasses.replace(decision, bound=None)


def bound_j(problem: Problem, trials) -> float | None:
    """The cost at which ``zeus`` stops the next trial."""
    bound = Zeus().choose(*read_history(problem, trials), np.random.default_rng(0)).bound
    return None if bound is None else bound.cost_j


def share(problem: Problem, trials, arm: int, draws: int = 200) -> float:
    """How often an arm is chosen over many seeds."""
    return sum(choose(problem, trials, s).global_batch_size == arm for s in range(draws)) / draws

"""What is simulated under one name: where its job comes from, and when its recurrences begin."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.errors import UsageError
from zeusrun.simulate.cluster import Submission, load_groups
from zeusrun.simulate.job import SimulatedJob, never_optimising
from zeusrun.simulate.replay import Arrival
from zeusrun.simulate.synthetic import FAMILIES
from zeusrun.simulate.traces import load_jobs
from zeusrun.simulate.workloads import did_you_mean, parse_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_JOB_STREAM = 77  # with a seed: the generator that a synthetic job is made from


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A recurring job to simulate. Scenarios of one name are reported together.

    Attributes:
        name: For tables.
        build: Its job by seed: a synthetic family has another one for every seed. Must pickle.
        submissions: Of a cluster trace, if it comes from one; by time.
        salt: Added to every seed, so that scenarios of one name differ.
    """

    name: str
    build: Callable[[int], SimulatedJob]
    submissions: tuple[Submission, ...] = ()
    salt: tuple[int, ...] = ()

    @classmethod
    def of_job(cls, job: SimulatedJob) -> Scenario:
        """Return the scenario of a job that is the same for every seed."""
        return cls(name=job.name, build=partial(_same, job))

    @classmethod
    def of_family(cls, family: str) -> Scenario:
        """Return the scenario of a synthetic family, by name.

        Raises:
            UsageError: If there is none of that name.
        """
        if family not in FAMILIES:
            hint = did_you_mean(family, FAMILIES)
            raise UsageError(f"unknown made-up workload {family!r}; {hint}")
        return cls(name=family, build=partial(_made_up, family))

    def arrivals(
        self, job: SimulatedJob, eta_knob: float, load: float | None, recurrences: int, seed: int
    ) -> list[Arrival]:
        """Return when its recurrences begin; none where each waits for one before it.

        Args:
            job: The job of this seed.
            eta_knob: Weight of energy in the cost.
            load: Recurrences that would be under way on average if none was optimised: they
                come at random, as a Poisson process. ``None`` for no such arrivals.
            recurrences: How many.
            seed: Of the random arrivals.
        """
        run_s = _run_s(job, eta_knob)
        if self.submissions:
            kept = self.submissions[:recurrences]
            return [Arrival(each.start_s, each.duration_s / run_s) for each in kept]
        if load is None:
            return []
        rng = np.random.default_rng([seed, *self.salt, 3])
        starts = rng.exponential(run_s / load, recurrences).cumsum()
        return [Arrival(float(start_s)) for start_s in starts]


def build_scenarios(
    workloads: Sequence[str],
    trace_dir: Path | None = None,
    gpu: str | None = None,
    cluster: Path | None = None,
    longest: int = 1_000_000,
) -> list[Scenario]:
    """Build what the user asked for.

    Args:
        workloads: Of the traces, or synthetic families where there are none; empty for all.
        trace_dir: Where training and power traces are.
        gpu: Whose power trace.
        cluster: A cluster trace: one scenario a group of it.
        longest: Submissions of a group to keep.

    Raises:
        UsageError: If something asked for is not there.
    """
    if trace_dir is None:
        if gpu is not None:
            raise UsageError(f"--gpu {gpu} needs --trace-dir, the directory of its power trace")
        scenarios = [Scenario.of_family(name) for name in workloads or FAMILIES]
    else:
        wanted = [parse_workload(text) for text in workloads]
        scenarios = [Scenario.of_job(job) for job in load_jobs(trace_dir, gpu, wanted)]
    by_name = {scenario.name: scenario for scenario in scenarios}
    if cluster is None:
        return list(by_name.values())
    groups = defaultdict(list)
    for group in load_groups(cluster, by_name, longest):
        build = by_name[group.dataset].build
        groups[group.dataset].append(
            Scenario(
                name=group.dataset, build=build, submissions=group.submissions, salt=(group.salt,)
            )
        )
    return [scenario for name in by_name for scenario in groups[name]]


def _run_s(job: SimulatedJob, eta_knob: float) -> float:
    """Return the seconds of a recurrence that nobody optimises, or of one that fails."""
    time_s = never_optimising(job, eta_knob, 1).time_s
    if np.isfinite(time_s):
        return time_s
    rates = job.rates[job.default]
    return job.max_epochs * rates[max(rates)].epoch_s


def _same(job: SimulatedJob, _seed: int) -> SimulatedJob:
    return job


def _made_up(family: str, seed: int) -> SimulatedJob:
    return FAMILIES[family](np.random.default_rng([seed, _JOB_STREAM]))

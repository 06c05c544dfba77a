"""Where a simulated job comes from, and when its recurrences begin."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.errors import UsageError
from zeusrun.simulate.synthetic import FAMILIES
from zeusrun.simulate.traces import ClusterRun, did_you_mean, load_groups, load_jobs, parse_workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.simulate.job import SimulatedJob

_JOB_STREAM = 77  # with a seed: the generator that a synthetic job is made from


@dataclass(frozen=True)
class Scenario:
    """A recurring job to simulate. Scenarios of one name are reported together.

    Attributes:
        name: For tables; without a job, the synthetic family that makes another job for each seed.
        job: The job for every seed.
        runs: When a cluster trace submits its recurrences; empty: each waits for one before it.
        salt: Added to every seed, so that the groups of a cluster trace differ.
    """

    name: str
    job: SimulatedJob | None = None
    runs: tuple[ClusterRun, ...] = ()
    salt: tuple[int, ...] = ()

    def build(self, seed: int) -> SimulatedJob:
        """Return the job of a seed."""
        return self.job or FAMILIES[self.name](np.random.default_rng([seed, _JOB_STREAM]))


def build_scenarios(
    workloads: Sequence[str],
    trace_dir: Path | None = None,
    gpu: str | None = None,
    cluster: Path | None = None,
) -> list[Scenario]:
    """Build what the user asked for.

    Args:
        workloads: Of the traces, or synthetic families where there are none; empty for all.
        trace_dir: Contains the training and power traces.
        gpu: Chooses the power trace.
        cluster: A cluster trace; each of its groups is one scenario.

    Raises:
        UsageError: If something asked for does not exist.
    """
    if trace_dir is None:
        if gpu is not None:
            raise UsageError(f"--gpu {gpu} needs --trace-dir, the directory of its power trace")
        for name in workloads:
            if name not in FAMILIES:
                hint = did_you_mean(name, FAMILIES)
                raise UsageError(f"unknown synthetic workload {name!r}; {hint}")
        scenarios = [Scenario(name) for name in workloads or FAMILIES]
    else:
        wanted = [parse_workload(text) for text in workloads]
        scenarios = [Scenario(job.name, job) for job in load_jobs(trace_dir, gpu, wanted)]
    by_name = {scenario.name: scenario for scenario in scenarios}
    if cluster is None:
        return list(by_name.values())
    groups = defaultdict(list)
    for group in load_groups(cluster, by_name):
        salt = zlib.crc32(group.name.encode())
        scenario = replace(by_name[group.dataset], runs=group.runs, salt=(salt,))
        groups[group.dataset].append(scenario)
    return [scenario for name in by_name for scenario in groups[name]]

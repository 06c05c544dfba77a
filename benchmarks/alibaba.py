"""Recurring jobs of a cluster: the groups of Alibaba's trace that Zeus simulates.

    python benchmarks/alibaba.py --trace-dir DIR [--groups alibaba_groups.csv.xz] [--gpu v100]

``--groups`` is the file of the Zeus project (You et al., NSDI 2023): a row for each job of the
cluster, with ``group``, ``start_time`` and ``end_time`` in seconds, ``dataset`` (one of the six
workloads of DIR, whose jobs stand for those of the group) and ``runtime_ratio`` (its run time over
the mean of all jobs of that data set). Without it, groups are made up.

Each group is a job of its own, whose recurrences are its rows in the order of their starts. As many
of them run at the same time as in the trace, at the median start. Time, energy and cost of a
recurrence are multiplied by its ratio. Both policies have the same luck.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import zlib
from collections import defaultdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from study import Scenario, StudySettings, simulate
from timing import describe_machine
from traces import LARGEST, SMALLEST, WORKLOADS, load_jobs, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.simulate.engine import SimulatedJob

COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")
POLICIES = ("auto", "zeus")
MADE_UP = 60  # groups


class Job(NamedTuple):
    """A job of the cluster: when it ran, in seconds, and its run time over the usual one."""

    start_s: float
    end_s: float
    ratio: float


class Group(NamedTuple):
    """A recurring job: its jobs, by start."""

    name: str
    dataset: str
    jobs: tuple[Job, ...]

    @property
    def in_flight(self) -> int:
        """How many of its jobs run at the same time, at the median start."""
        ends = np.sort([job.end_s for job in self.jobs])
        starts = [job.start_s for job in self.jobs]
        running = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
        return max(1, math.floor(statistics.median(running)))


class Spent(NamedTuple):
    """What a group takes under a policy, and in two other ways; shape ``(3,)``: J, J and s."""

    dataset: str
    policy: str
    own: np.ndarray  # cost, energy, time
    default: np.ndarray  # if each run has the user's own batch size and no power limit
    best: np.ndarray
    unreached: int


def load_groups(path: Path) -> list[Group]:
    """Read the groups; raises ``UsageError``, with file and line, if a row cannot be used."""
    jobs: defaultdict[str, list[Job]] = defaultdict(list)
    datasets: dict[str, str] = {}
    for row in read_rows(path, COLUMNS):
        name, dataset = row.cells["group"], row.cells["dataset"]
        if dataset not in WORKLOADS:
            raise row.error(f"dataset is {dataset!r}; known are {', '.join(WORKLOADS)}")
        if datasets.setdefault(name, dataset) != dataset:
            raise row.error(f"group {name} had dataset {datasets[name]!r} before, now {dataset!r}")
        start_s = row.number("start_time")
        end_s = row.number("end_time", start_s)
        jobs[name].append(Job(start_s, end_s, row.positive("runtime_ratio")))
    return [Group(name, datasets[name], tuple(sorted(own))) for name, own in jobs.items()]


def make_groups(count: int, seed: int = 0) -> list[Group]:
    """Make up groups of 10 to 200 jobs, which start at random moments of two months."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(count):
        size = int(10 * 20 ** rng.random())
        starts = np.sort(rng.random(size)) * 60 * 86_400
        hours = math.exp(rng.normal(0.5, 1.0))
        ratios = np.clip(rng.lognormal(0.0, 0.4, size), SMALLEST, LARGEST)
        jobs = [
            Job(at, at + 3600 * hours * ratio, ratio)
            for at, ratio in zip(starts, ratios, strict=True)
        ]
        groups.append(
            Group(f"made-up-{number}", list(WORKLOADS)[number % len(WORKLOADS)], tuple(jobs))
        )
    return groups


@cache
def _job_of(trace_dir: Path, gpu: str, dataset: str) -> SimulatedJob:
    (job,) = load_jobs(trace_dir, gpu, [WORKLOADS[dataset]])
    return job


def replay_group(group: Group, trace_dir: Path, gpu: str) -> list[Spent]:
    """Simulate a group under each policy."""
    scenario = Scenario(group.name, _job_of(trace_dir, gpu, group.dataset))
    settings = StudySettings(recurrences=len(group.jobs), in_flight=group.in_flight)
    ratios = np.array([job.ratio for job in group.jobs])
    found = []
    for policy in POLICIES:
        episode = simulate(scenario, policy, zlib.adler32(group.name.encode()), settings)
        sums = (ratios @ amounts for amounts in (episode.spent, episode.never, episode.best))
        found.append(Spent(group.dataset, policy, *sums, int((~episode.reached).sum())))
    return found


def show(groups: Sequence[Group], spent: Iterable[Spent]) -> None:
    """Print a table in Markdown: each data set, and all."""
    rows: defaultdict[tuple[str, str], list[Spent]] = defaultdict(list)
    for each in spent:
        rows[each.dataset, each.policy].append(each)
        rows["all", each.policy].append(each)
    names = ("data set", "groups", "jobs", "policy", "cost ÷ default", "energy", "time")
    print(f"| {' | '.join([*names, 'cost ÷ best', 'no model'])} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (dataset, policy), own in sorted(
        rows.items(), key=lambda row: (row[0][0] == "all", row[0])
    ):
        chosen = [group for group in groups if dataset in {"all", group.dataset}]
        total, default, best = (
            sum(getattr(each, name) for each in own) for name in ("own", "default", "best")
        )
        shares = " | ".join(f"{share:.3f}" for share in (*total / default, (total / best)[0]))
        jobs = sum(len(group.jobs) for group in chosen)
        missed = sum(each.unreached for each in own)
        print(f"| {dataset} | {len(chosen)} | {jobs} | `{policy}` | {shares} | {missed} |")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace-dir", type=Path, required=True, help="where the traces are")
    parser.add_argument("--groups", type=Path, help="alibaba_groups.csv, or .csv.xz")
    parser.add_argument("--gpu", default="v100")
    parser.add_argument("--made-up", type=int, default=MADE_UP, help="groups without --groups")
    given = parser.parse_args()
    groups = load_groups(given.groups) if given.groups else make_groups(given.made_up)
    origin = given.groups.name if given.groups else "made-up groups"
    most = max(group.in_flight for group in groups)
    print(f"{describe_machine()}; {origin}, {given.gpu}; up to {most} jobs of a group at a time\n")
    call = partial(replay_group, trace_dir=given.trace_dir, gpu=given.gpu)
    with multiprocessing.Pool(os.cpu_count()) as pool:
        spent = [each for found in pool.imap(call, groups) for each in found]
    show(groups, spent)


if __name__ == "__main__":
    main()

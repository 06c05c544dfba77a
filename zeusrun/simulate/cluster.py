"""Reads cluster traces: when the runs of many recurring jobs were submitted, and how they overlap.

The rows of a group are one recurring job on a dataset; ``runtime_ratio`` is the run time of a
submission over the mean of its dataset. As in the public simulator of the Zeus project, it
scales what a recurrence is charged, and not what the policy learns from it. Unlike there, a trial
does not always last as long as the submission did: that is how long a run of the default batch
size lasts, and a trial that takes half the time ends in half of it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.errors import UsageError
from zeusrun.simulate.rows import read_rows
from zeusrun.simulate.workloads import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")


class Submission(NamedTuple):
    """One submission of a recurring job.

    Attributes:
        start_s: On the clock of the cluster.
        duration_s: What a run of the default batch size takes on that clock.
        ratio: What it is charged, as a multiple of the mean of its dataset.
    """

    start_s: float
    duration_s: float
    ratio: float


class Group(NamedTuple):
    """A recurring job of a cluster trace.

    Attributes:
        name: As in the trace.
        dataset: Its workload.
        submissions: By time.
    """

    name: str
    dataset: str
    submissions: tuple[Submission, ...]

    @property
    def salt(self) -> int:
        """A number of its own, so that equal seeds give each group other draws."""
        return zlib.crc32(self.name.encode())


def load_groups(path: Path, datasets: Iterable[str], longest: int) -> list[Group]:
    """Read a cluster trace.

    Args:
        path: ``.csv`` or ``.csv.xz``.
        datasets: Those wanted; groups of others are passed over.
        longest: Submissions of a group to keep, the first ones.

    Returns:
        Groups by their first submission.

    Raises:
        UsageError: If the file is missing or damaged, or has none of the datasets.
    """
    wanted = dict.fromkeys(datasets)
    rows: dict[str, tuple[str, list[Submission]]] = {}
    others: dict[str, None] = {}
    for place, (group, start, end, dataset, ratio) in read_rows(path, COLUMNS):
        if dataset not in wanted:
            others[dataset] = None
            continue
        known, submissions = rows.setdefault(group, (dataset, []))
        if known != dataset:
            raise place.error(f"group {group} is of dataset {known!r} above, here of {dataset!r}")
        start_s = place.number("start_time", start)
        duration_s = place.number("end_time", end) - start_s
        if duration_s < 0:
            raise place.error(f"end_time {end} is before start_time {start}")
        share = place.positive("runtime_ratio", ratio)
        submissions.append(Submission(start_s, duration_s, share))
    if not rows:
        hint = did_you_mean(min(others, default=""), wanted)
        found = ", ".join(others) or "no rows"
        raise UsageError(f"{path}: none of its datasets is simulated ({found}); {hint}")
    groups = [
        Group(name, dataset, tuple(sorted(submissions)[:longest]))
        for name, (dataset, submissions) in rows.items()
    ]
    return sorted(groups, key=lambda group: (group.submissions[0].start_s, group.name))

"""What was seen of a training: its metrics, their sources, the samples of a step; its ranks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from zeusrun.sidecar.events import REPORT, Ended, Regrouped, Spawned, Started
from zeusrun.target import TIMES, is_share, meets_target
from zeusrun.trial import Interruption, TrialStatus
from zeusrun.trial.values import WorldChange

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from zeusrun.sidecar.events import Observed, Reported
    from zeusrun.trial import Trial

CONTROLLING = ("transformers", "lightning", "pytorch_lightning", "ultralytics")
"""The libraries whose hook ends the training itself, on all ranks in the same step."""

_ORDER = (REPORT, *CONTROLLING, "timm", "accelerate", "tensorboard", "mlflow", "wandb")
_NAMES = 1000  # a script may report under a new name at every step
EVALUATIONS = {"eval", "evaluation", "val", "valid", "validation", "test"}


@dataclass(frozen=True)
class Ranks:
    """One generation of workers: the ranks that torchrun has started together."""

    world_size: int = 1
    generation: int = 0  # how often torchrun has restarted them
    started: frozenset[int] = frozenset()  # ranks that have ever begun to run the script
    exit_codes: Mapping[int, int] = field(default_factory=dict)  # in the order of their ends
    restarts: tuple[tuple[float, int], ...] = ()  # of rank 0: when, and epochs reported by then
    members: tuple[int, ...] = ()  # of an elastic training: the processes that train now
    changes: tuple[WorldChange, ...] = ()  # of these, with the moment for the seconds
    alone: frozenset[int] = frozenset()  # ranks that ended without ever joining a process group
    spawned: Mapping[int, Spawned] = field(default_factory=dict)  # by pid

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers of the ranks, as in events and files."""
        return iter(self.members or range(self.world_size))

    @property
    def scripts_ended(self) -> bool:
        """Whether the script of every rank has ended with exit code 0."""
        return all(self.exit_codes.get(rank) == 0 for rank in self)

    @property
    def all_alone(self) -> bool:
        """Whether every one of several ranks ended its script without a process group."""
        return self.world_size > 1 and self.scripts_ended and len(self.alone) == self.world_size

    @property
    def trained_by(self) -> int | None:
        """How many processes share a batch; ``None`` where hooks do not see all that train."""
        sizes = {each.world_size if each.followed else None for each in self.spawned.values()}
        if not sizes:
            return self.world_size
        return sizes.pop() if len(sizes) == self.world_size == 1 else None

    @property
    def is_grown(self) -> bool:
        """Whether processes that torchrun has not started train in the process group."""
        return any((each.world_size or 1) > 1 for each in self.spawned.values())

    def interruptions(
        self, training_t: float | None, time_s: float | None
    ) -> tuple[Interruption, ...]:
        """Return the restarts within the first seconds of training."""
        if training_t is None or time_s is None:
            return ()
        found = [Interruption(t - training_t, epochs) for t, epochs in self.restarts]
        return tuple(each for each in found if 0 < each.time_s < time_s)

    def world_sizes(self, training_t: float | None) -> tuple[WorldChange, ...]:
        """Return how many ranks there were, and from when on; empty if that stayed the same."""
        if training_t is None or not self.changes:
            return ()
        from zeusrun.trial.resizes import since_begin  # noqa: PLC0415 - few jobs are elastic

        return since_begin(self.changes, training_t)

    def take(self, event: Started | Spawned | Ended | Regrouped, epochs: int = 0) -> Ranks:
        """Return the ranks after one of them has started or has ended its script."""
        if isinstance(event, Regrouped):
            size = len(event.members)
            took_s = None if event.since_t is None else max(0.0, event.t - event.since_t)
            # A script can write anything into the sidecar.
            how = took_s, event.paused_s and abs(event.paused_s), event.step
            return replace(
                self,
                world_size=size,
                members=event.members,
                exit_codes={n: c for n, c in self.exit_codes.items() if n in event.members},
                changes=(*self.changes, WorldChange(event.t, epochs, size, *how)),
            )
        if isinstance(event, Ended) and self.members and event.rank not in self.members:
            return self  # it has left
        if isinstance(event, Spawned):
            return replace(self, spawned={**self.spawned, event.pid: event})
        if isinstance(event, Ended):
            codes = {**self.exit_codes, event.rank: event.code}
            alone = self.alone - {event.rank} if event.grouped else self.alone | {event.rank}
            return replace(self, exit_codes=codes, alone=alone)
        codes = {rank: code for rank, code in self.exit_codes.items() if rank != event.rank}
        again = event.rank == 0 and 0 in self.started
        return replace(
            self,
            exit_codes=codes,
            generation=max(self.generation, event.restart),
            members=() if event.restart > self.generation else self.members,
            started=self.started | {event.rank},
            restarts=(*self.restarts, (event.t, epochs)) if again else self.restarts,
        )


class Seen(NamedTuple):
    """The values of one metric that one source reported."""

    first: float
    last: float
    times: int = 1
    low: float = math.inf
    high: float = -math.inf
    parts: int = 1  # the most values that one is the mean of
    each_step: bool = False  # whether it is logged in every step of the training

    @property
    def how(self) -> str:
        """How it is logged, if that is not once for each evaluation."""
        if self.each_step:
            return "in every step: no result"
        return f"mean of {self.parts} values" if self.parts > 1 else ""


SeenMetrics: TypeAlias = "Mapping[tuple[str, str], Seen]"
"""By name and source."""


def see(seen: SeenMetrics, event: Reported, metric: str) -> SeenMetrics:
    """Return the metrics seen, those of an event included, but not more than ``_NAMES`` others."""
    now = dict(seen)
    for name, value in event.metrics.items():
        if len(now) >= _NAMES and name != metric and (name, event.source) not in now:
            continue
        before = now.get((name, event.source), Seen(value, value, 0))
        now[name, event.source] = Seen(
            before.first,
            value,
            before.times + 1,
            min(before.low, value),  # of NaN, the first argument
            max(before.high, value),
            max(before.parts, event.parts),
            event.each_step,
        )
    return now


def list_names(names: Collection[str]) -> str:
    """Return the first names for a sentence, shortened: a name may be of any length."""
    return ", ".join(" ".join(name[:50].split()) for name in sorted(names)[:10])


def precedes(source: str, other: str, preferred: str | None = None) -> bool:
    """Whether a source counts, and not another one that reports a metric of the same name.

    The order is: the source that the job file names, ``run.report``, the libraries in the order of
    ``_ORDER``, then any other source.
    """
    order = (preferred, *_ORDER)
    first, second = (order.index(each) if each in order else len(order) for each in (source, other))
    return first < second


def names_an_evaluation(metrics: Mapping[str, float]) -> bool:
    """Whether one of the names shows that the values are from an evaluation.

    Lightning logs ``val_loss_step`` at each batch of one.
    """
    names = [name.lower() for name in metrics if not name.endswith("_step")]
    return any(EVALUATIONS.intersection(re.split(r"[^a-z]+", name)) for name in names)


def names_training(name: str) -> bool:
    """Whether a name shows that the values are from the training itself."""
    return not {"train", "training"}.isdisjoint(re.split(r"[^a-z]+", name.lower()))


def find_batch_size(observed: Mapping[int, Observed], ranks: Ranks) -> int | None:
    """Return the samples per optimizer step over all ranks; ``None`` if they were not observed."""
    world_size = ranks.trained_by
    if world_size is None:
        return None
    parts = [observed.get(rank) for rank in ranks.members or range(world_size)]
    samples = [part.samples for part in parts if part is not None and part.samples is not None]
    divided = {1 if part.alone else part.replicas for part in parts if part is not None}
    if len(samples) < world_size or len(divided) > 1:
        return None
    if len(set(samples)) > 1 and len({part.step for part in parts if part is not None}) > 1:
        return None  # the batch size changes, and the newest record of a rank is still to come
    # If ranks share a model, the sampler divides the data among fewer replicas than ranks. Ranks
    # that train alone have a model and a batch size each.
    total, rest = divmod(sum(samples) * (divided.pop() or world_size), world_size)
    return None if rest else total


def describe_steps(observed: Sequence[Observed]) -> str:
    """Return what the samples of a step are made of, such as ``2 ranks x 4 batches of 8``."""
    first = observed[0]
    ranks = f"{len(observed)} ranks x " if len(observed) > 1 and not first.alone else ""
    size, rest = divmod(first.samples or 0, max(first.batches, 1))
    what = f"{first.batches} batches of {size}" if first.batches > 1 else f"{size}"
    steps = f"{ranks}{f'{first.samples} in {first.batches} batches' if rest else what}"
    return f"{steps} on each rank alone" if first.alone else steps


def describe_alone(observed: Mapping[int, Observed]) -> str | None:
    """Return a warning if the ranks do not train one model together; ``None`` if they do."""
    if not any(part.alone for part in observed.values()):
        return None
    return (
        "each rank trains a model of its own: the script uses no process group "
        "(torch.distributed). Give it the option with which its ranks train together (transformers "
        "on a CPU: --use_cpu; Lightning: as many devices as ranks), or write  launch: "
        "{nproc_per_node: 1}"
    )


def describe_spawned(spawned: Collection[Spawned], *, arrives: bool = False) -> str | None:
    """Return a warning if a script trains in processes of its own; ``None`` if all is seen.

    ``arrives``: the chosen batch size reaches them.
    """
    size = max((each.world_size or 1 for each in spawned), default=1)
    followed = all(each.followed for each in spawned) and len(spawned) >= size
    if not spawned or (followed and size == 1):
        return None
    sees = (
        "zeusrun has no hooks in some of them, so it may miss their steps and batch size, and it "
        "reads only metrics that they print or write to a file"
    )
    if followed:
        sees = (
            "zeusrun has hooks there, but it takes them for one process: GPUs and "
            "${local_batch_size} are those of one"
        )
    instead = "Let the script train in the processes that zeusrun starts: launch.nproc_per_node"
    if followed and arrives:
        instead = "Their batch size is the chosen one"
    elif size > 1:
        instead = (
            f"Remove the option that starts them, and write  launch: {{nproc_per_node: {size}}}. "
            f"Without such an option, keep nproc_per_node: 1, and pass ${{batch_size/{size}}} for "
            "the share of each process"
        )
    return (
        f"the script started training processes of its own; {sees}. {instead} "
        "(docs/training-script.md)"
    )


class Known(NamedTuple):
    """The lowest and the highest of the best values of a job's earlier runs."""

    low: float
    high: float


def find_known(trial: Trial, earlier: Sequence[Trial]) -> Known | None:
    """Return the values of earlier runs with the same objective; ``None`` if there are none.

    A lost run does not count: no launcher has checked the values that it reported.
    """
    objective = (trial.metric, trial.mode, trial.target)
    judged = (each for each in earlier if each.status is not TrialStatus.LOST)
    alike = (each for each in judged if (each.metric, each.mode, each.target) == objective)
    bests = [t.best_metric for t in alike if t.best_metric is not None and not t.forgotten]
    return Known(min(bests), max(bests)) if bests else None


def find_doubt(value: float, trial: Trial, known: Known | None, best: float | None) -> str | None:
    """Return why a value that meets the target cannot be the metric; ``None`` if it can be.

    ``best`` is the best value of this run so far. An accuracy in percent meets every target that is
    a share; a number that was cut, such as the 0 of ``0,91``, meets one of ``mode: min``.
    """
    target, bests = trial.target, () if best is None else (best,)
    if not meets_target(value, target, trial.mode):
        return None
    in_share = trial.mode == "max" and 0 < target <= 1
    why, percent = "", in_share and value >= 2
    named = in_share and is_share(trial.metric) and not meets_target(1.0, value, "max")
    if named:
        why = "its name says that it is a share, which is at most 1"
    elif known is not None and trial.mode == "max":
        most = max((known.high, *bests))
        if (percent and known.low >= 0 and most <= 1) or 0 < TIMES * max(most, target) <= value:
            why = f"earlier runs had at most {most:.4g}"
    elif known is not None:
        least = min((known.low, *bests))
        if 0 <= TIMES * value <= min(least, target) and least > 0:
            why = f"earlier runs had at least {least:.4g}"
    if not why:
        return None
    unit = f" If it is in percent, write  objective: {{target: {100 * target:g}}}."
    right = "; if they are right, change objective.target: only runs with the same one are compared"
    return (
        f"{trial.metric} {value:.4g} meets the target {target:g}, but does not count: {why}."
        f"{unit if percent else ''} Check that zeusrun reads whole numbers (docs/metrics.md)"
        f"{'' if named else right}"
    )

"""What policies see, and what they answer: the problem, past runs and what follows from several.

The spread is that of the epochs of runs of one batch size.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from zeusrun.trial import Hardware, PowerPoint, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from zeusrun.lever import Lever


@dataclass(frozen=True)
class PowerObjective:
    """What makes one power limit better than another.

    ``cost``: the least cost under ``Problem.eta_knob``; ``energy``: the fewest joules; ``time``:
    the fastest; ``max_slowdown``: the fewest joules among limits that take at most ``factor`` times
    the time of the highest one. Only ``max_slowdown`` has a factor, at least 1.
    """

    name: Literal["cost", "energy", "time", "max_slowdown"] = "cost"
    factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The question: which batch size does the next trial of a job get?

    Raises:
        ValueError: If a value is outside its range.
    """

    candidates: tuple[int, ...]  # global batch sizes, ascending
    default: int  # one of them
    ignored: bool = False  # whether the script ignores the batch size, so that no other one runs
    metric: str
    mode: Literal["max", "min"]
    target: float
    max_epochs: int
    eta_knob: float  # weight of energy in the cost, 0 to 1; see ``cost.cost_j``
    cost_factor: float | None = None  # stop a trial at this multiple of the best cost
    window: int | None = None  # how many of an arm's newest runs count; ``None``: all
    control: int | None = None  # every so many recurrences, the default runs; ``None``: never
    recurrence: int  # of the trial
    last_attempt: bool = False  # whether attempts have failed, and this one is the last allowed
    attempts_left: int | None = None  # this one included; ``None``: nobody makes another
    hardware: Hardware = field(default_factory=Hardware)
    energy_measured: bool | None = None  # ``False``: a model estimates it; ``None``: there is none
    # By batch size, from the job file. A batch size that is absent keeps its learning rate.
    learning_rates: Mapping[int, float | None] = field(default_factory=dict)
    micro_batch_sizes: Mapping[int, int] = field(default_factory=dict)  # per rank, where split
    max_power_w: float | None = None  # summed over the job's devices
    samples_per_epoch: float | None = None  # ``None`` until a trial has shown it
    startup_s: float = 0.0  # from launch to training, by the newest trials on this hardware
    # Samples that count as an epoch, if trainings report the metric within epochs: then all that
    # is said of epochs is about so many samples.
    unit: int | None = None
    levers: tuple[Lever, ...] = ()  # to choose from, ascending; empty: nothing may be set
    power_objective: PowerObjective = PowerObjective()
    learn_from_shared: bool = False  # whether disturbed trials count for speed and cost
    variant: str | None = None  # ``Trial.variant`` of the trials that count
    speed_variant: str | None = None  # ``Trial.speed_variant`` of those whose speed counts
    fingerprint: Mapping[str, str] | None = None  # ``Trial.fingerprint`` of a training today
    speed_checks: bool = True  # whether a run may be replaced once its speed is known

    def __post_init__(self) -> None:
        if list(self.candidates) != sorted({b for b in self.candidates if b > 0}):
            raise ValueError(f"candidates must be positive and ascending: {self.candidates}")
        if self.default not in self.candidates:
            raise ValueError(f"the default, {self.default}, is not among {self.candidates}")
        if not 0 <= self.eta_knob <= 1:
            raise ValueError(f"eta_knob must be from 0 to 1, not {self.eta_knob}")
        if self.cost_factor is not None and not 0 < self.cost_factor < math.inf:
            raise ValueError(f"cost_factor must be above 0, not {self.cost_factor}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, not {self.window}")
        if self.control is not None and self.control < 2:
            raise ValueError(f"control must be at least 2, not {self.control}")

    @property
    def recorded(self) -> dict[str, Any]:
        """What a trial records of the question, by the names of its fields."""
        same = ("recurrence", "metric", "mode", "target", "max_epochs", "eta_knob")
        return {"default_batch_size": self.default, **{name: getattr(self, name) for name in same}}

    @property
    def epoch_limit(self) -> float:
        """The epochs after which a training ends; infinite if they are not counted."""
        return self.max_epochs if self.unit is None else math.inf

    @property
    def energy_weight(self) -> float:
        """Weight of energy in what ``power_objective`` minimises, 0 to 1."""
        return {"cost": self.eta_knob, "time": 0.0}.get(self.power_objective.name, 1.0)


@dataclass(frozen=True, kw_only=True)
class ArmBelief:
    """What a policy expects of one batch size. ``None`` is unknown."""

    global_batch_size: int
    trials: int  # finished ones that taught something about it
    reached: int  # those among them that reached the target
    epochs: float | None = None  # expected to the target
    epoch_cost_j: float | None = None  # expected at the best power limit known
    cost_j: float | None = None  # expected to the target
    cost_range_j: tuple[float, float] | None = None  # 5th and 95th percentile of the next run
    failure_chance: float | None = None  # that the next run is stopped or misses the target
    value_j: float | None = None  # expected to be saved later by trying it, less the cost of that
    chance: float  # probability that it is chosen next
    verdict: str  # its state, in a sentence; of the next one, why it is chosen

    @property
    def is_next(self) -> bool:
        """Whether the next run uses it for certain."""
        return self.chance == 1


Pace: TypeAlias = tuple[tuple[int, float], ...]
"""``(epoch, value)`` wherever the best value of a learning curve improved."""

Runs: TypeAlias = "Sequence[Observation]"
"""Runs of a job, oldest first."""
RunsByArm: TypeAlias = "Mapping[int, Runs]"
Profile: TypeAlias = "Sequence[PowerPoint]"
"""What was measured under some power limits."""
Array: TypeAlias = "NDArray[np.float64]"

FAILED = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED})
OUTDONE = FAILED | {TrialStatus.OOM}
"""Failures of a batch size: another one may still reach the target."""

STALE = 0.05
"""A profile is stale once speed or power under one of its limits has changed by this share."""


class SpeedElsewhere(NamedTuple):
    """What an epoch of a run cost on devices that today's job does not have."""

    hardware: Hardware
    max_power_w: float | None  # summed over the devices; CPUs differ by it
    epoch_cost_j: float


class Observation(NamedTuple):
    """A trial as it reads under today's problem; see ``reinterpret.read_trial``.

    The status ``CANCELLED`` stands for every run that ended too early to be a success or a failure;
    its speed and learning curve count. ``PREEMPTED`` and ``LOST`` do not occur.
    """

    arm: int  # its global batch size, which may no longer be a candidate
    recurrence: int
    status: TrialStatus
    stage: Stage = Stage.EXPLORE
    epochs: int | None = None  # to the target if it was reached, else completed
    # Of a run that reached the target: the epochs between its last two reports, and the share of
    # these after which the metric passed the target, by linear interpolation.
    last_step: tuple[int, float] | None = None
    cost_j: float | None = None  # to the target; ``None`` unless reached on hardware like today's
    epoch_cost_j: float | None = None  # on today's hardware, at ``power_limit_w``
    power_limit_w: float | None = None  # what the objective chooses among those measured
    power_w: float | None = None  # drawn at the highest limit measured
    local: bool = True  # whether time and energy were measured as they would be today
    pace: Pace = ()
    profile: tuple[PowerPoint, ...] = ()
    disturbed: bool = False  # whether ``epoch_cost_j`` is at most this: others used the devices
    differs: str | None = None  # what of its training is not as it is today; ``None``: nothing
    weight: float = 1.0  # how likely it is that its epochs still hold, as a policy judges
    log_shift: float = 0.0  # by how much log epochs are expected to have changed since
    elsewhere: SpeedElsewhere | None = None  # instead of ``epoch_cost_j``, if the devices differ
    cause: str | None = None  # of a crash of the script; see ``Trial.cause``

    @property
    def epochs_today(self) -> float:
        """The epochs that it would take today, above 0 also for a damaged record."""
        epochs = max(1, self.epochs or 1)
        return epochs * finite_exp(self.log_shift) if self.log_shift else epochs


class Running(NamedTuple):
    """A running trial at the end of an epoch: epochs and joules spent, best metric so far."""

    epochs: int
    cost_j: float | None
    best_value: float | None
    unit: int | None = None  # samples that count as an epoch; see ``Problem.unit``


def finite_exp(log: float) -> float:
    """Return e to a power, from 1e-304 to 1e304: a damaged history may have costs of any size."""
    return math.exp(max(-700.0, min(log, 700.0)))


def better(mode: str, value: float, other: float) -> bool:
    """Whether a metric is strictly better than another one."""
    return value < other if mode == "min" else value > other


def step_cost_j(point: PowerPoint, problem: Problem, eta_knob: float | None = None) -> float | None:
    """Return the cost of a step under a power limit (see ``cost.cost_j``); ``None`` if unknown.

    ``eta_knob`` is the problem's unless another one is given.
    """
    if point.steps_per_s <= 0:
        return None
    eta_knob = problem.eta_knob if eta_knob is None else eta_knob
    watts = eta_knob * point.power_w
    if eta_knob < 1:
        if problem.max_power_w is None:
            return None
        watts += (1 - eta_knob) * problem.max_power_w
    return watts / point.steps_per_s


def is_stale(old: PowerPoint, new: PowerPoint) -> bool:
    """Whether speed or power under a limit has changed so much that older points are wrong."""
    pairs = (old.steps_per_s, new.steps_per_s), (old.power_w, new.power_w)
    return any(abs(now - then) > STALE * abs(then) for then, now in pairs)


SPEED_RUNS = 3  # newest runs that show a speed: machines change, too
NOISY_SPEED_RUNS = 9  # the same, at most, where speed scatters
_STEADY_VARIANCE = 4e-4  # of log joules per epoch, up to which a speed counts as steady
_CHANGE_SDS = 2.5  # between the speeds of older and newer runs, from which the older do not count


def newest_speeds(runs: Runs, variance: float = 0.0) -> list[float]:
    """Return the cost of an epoch of the newest runs under the newest limit.

    ``runs`` are of one arm, each with a cost per epoch, oldest first; ``variance`` is that of the
    logarithm between runs.
    """
    limit = runs[-1].power_limit_w
    costs = [run.epoch_cost_j for run in runs if run.power_limit_w == limit and run.epoch_cost_j]
    newest = costs[-SPEED_RUNS:]
    while variance > _STEADY_VARIANCE and len(newest) < min(NOISY_SPEED_RUNS, len(costs)):
        older = costs[-len(newest) - SPEED_RUNS : -len(newest)]
        apart = abs(math.log(average_speed(older) / statistics.geometric_mean(newest)))
        if apart > _CHANGE_SDS * math.sqrt(variance * (1 / len(older) + 1 / len(newest))):
            break
        newest = [*older, *newest]
    return newest


def average_speed(costs: Sequence[float]) -> float:
    """Return what an epoch usually costs, by ``newest_speeds``.

    Of a few, it is the median, which one slow night does not change.
    """
    few = len(costs) <= SPEED_RUNS
    return statistics.median(costs) if few else statistics.geometric_mean(costs)


def usual_speed(runs: Runs) -> float:
    """Return what an epoch of an arm usually costs; see ``newest_speeds``."""
    return average_speed(newest_speeds(runs))


def timed_runs(runs: Iterable[Observation]) -> dict[int, list[Observation]]:
    """Return the runs that show the speed of each arm, oldest first.

    Those of today's training count where there are any, and of these the undisturbed ones. A
    disturbed run counts as long as an arm has no other, and where it was cheaper than they usually
    are: other programs only make a run more expensive.
    """
    arms: defaultdict[int, list[Observation]] = defaultdict(list)
    for run in runs:
        if run.epoch_cost_j is not None:
            arms[run.arm].append(run)
    for arm, every in arms.items():
        if any(run.disturbed or run.differs is not None for run in every):
            alike = [run for run in every if run.differs is None] or every
            calm = [run for run in alike if not run.disturbed]
            usual_j = usual_speed(calm) if calm else math.inf
            arms[arm] = [r for r in alike if not r.disturbed or (r.epoch_cost_j or 0.0) < usual_j]
    return arms


def merged_profile(runs: Runs) -> tuple[PowerPoint, ...]:
    """Return the newest point of every limit over an arm's runs (oldest first), by limit.

    A run that contradicts an older point (``is_stale``) starts a new profile.
    """
    points: dict[Lever, PowerPoint] = {}
    for run in runs:
        measured = {p.lever: p for p in run.profile if run.local and p.lever is not None}
        if any(
            is_stale(points[limit], measured[limit]) for limit in measured.keys() & points.keys()
        ):
            points = {}
        points |= measured
    return tuple(points[limit] for limit in sorted(points))


# The standard deviation of log epochs of one arm, pooled over the public training traces of the
# Zeus project. It counts as much as three degrees of freedom of the job's own.
RUN_SD, RUN_SD_WEIGHT = 0.14, 3.0
GAUSSIAN90 = 1.645  # standard deviations around the mean that 90 % of a Gaussian lie within
# For a range of a run: both spreads, the mean and the level are estimates, and benchmarks/range.py
# finds 82 to 95 % within ``GAUSSIAN90``, and from 86 % on within these.
SDS90 = 1.78
WIDEST_SDS = 3.0  # a run that takes more than this is stopped


@dataclass(frozen=True)
class Spread:
    """The spread of log epochs between runs of one arm, pooled over arms."""

    sd: float = RUN_SD  # of one run
    freedom: float = RUN_SD_WEIGHT  # degrees of freedom of ``sd``

    def widest(self, runs: float) -> float:
        """Return the factor between the epochs expected after some runs and the most of the next.

        It is the prediction of a Gaussian with unknown variance (Student).
        """
        widest = student(WIDEST_SDS, self.freedom) * self.sd * math.sqrt(1 + 1 / runs)
        return finite_exp(widest)


def mean_log_epochs(runs: Runs) -> tuple[float, float]:
    """Return the mean log epochs of weighted runs, and how many runs they count as."""
    total = sum(run.weight for run in runs)
    return sum(run.weight * math.log(run.epochs_today) for run in runs) / total, total


def student(sds: float, freedom: float) -> float:
    """Return the quantile of Student's distribution that a Gaussian has at ``sds``.

    Wallace (Annals of Mathematical Statistics, 1959); 6 % too large at most, at 3 ``sds``.
    """
    shape = (freedom - 5 / 6) / (freedom - 2 / 3 + 0.1 / freedom) ** 2
    return math.sqrt(freedom * math.expm1(sds * sds * shape))

"""What a report says of a job, and what its policy believes, from its trials. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from zeusrun.analysis import curves
from zeusrun.analysis.amounts import Total, add_up, size_label, sum_known, time_after_target
from zeusrun.analysis.recurrences import build_recurrences, build_sizes
from zeusrun.analysis.savings import find_net_amounts, find_savings
from zeusrun.analysis.usual import has_cost
from zeusrun.bandit.problem import OUTDONE
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.choice.problem import Chooser, Machine, build_problem, next_recurrence
from zeusrun.clock import local_time
from zeusrun.errors import ZeusrunError
from zeusrun.trial import BY_RANKS, EnergySource, Stage, TrialStatus
from zeusrun.trial.values import split_variant
from zeusrun.view.belief import Belief, believe, unknown_belief
from zeusrun.view.units import plural, ranks_text, shortened, waiting_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.analysis.curves import CurveFacts, CurveUnit, NoiseFacts
    from zeusrun.analysis.estimates import NetAmounts, Savings
    from zeusrun.analysis.recurrences import RecurrenceFacts, SizeFacts
    from zeusrun.energy.power_trace import PowerTrace
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Trial
    from zeusrun.trial.values import WorldChange

_CURVES = 8  # of each batch size
_RESIZED = 4  # runs
_CRASHED = frozenset({TrialStatus.FAILED, TrialStatus.LOST})


@dataclass(frozen=True)
class PowerFacts:
    """The power of one run. ``None``: unknown."""

    trial: str
    size: str  # label of its batch size
    mean_w: float | None  # while it trained
    highest_w: float
    limit_w: float | None  # the last one, over all devices
    throttled: tuple[tuple[str, float], ...]  # why, in words, and in what share of the readings
    trace: PowerTrace


@dataclass(frozen=True)
class RanksFacts:
    """How one run changed its ranks.

    Attributes:
        trial: Its name.
        size: The label of its batch size.
        changes: Its numbers of ranks, the first one included.
        steps: Optimizer steps before each of them, and at the end of the run.
        rates: Samples a second with each, evaluations and pauses included; ``None``: unknown.
    """

    trial: str
    size: str
    changes: tuple[WorldChange, ...]
    steps: tuple[int, ...]
    rates: tuple[float | None, ...]


@dataclass(frozen=True)
class FailureFacts:
    """An attempt that did not reach the target, and was not cancelled or preempted."""

    trial: str
    started_at: str
    size: str  # label of its batch size
    status: str
    reason: str
    cost_j: float | None


@dataclass(frozen=True)
class OverheadFacts:
    """What zeusrun itself took in one way. ``None``: unknown, or not apart."""

    name: str
    count: int
    time_s: float | None = None
    energy_j: float | None = None
    cost_j: float | None = None


@dataclass(frozen=True)
class JobFacts:
    """Everything that a report says of a job, oldest first; the first seven: of its newest run."""

    job: str
    metric: str
    mode: str
    target: float
    eta_knob: float
    default: int | None
    hardware: str
    first_at: str
    last_at: str
    reached: int  # runs
    taught: bool  # whether a run trained with the batch size that it was to have
    total: Total  # of all runs that have ended
    sources: tuple[str, ...]  # of their energy
    unit: CurveUnit  # what runs are compared by, and curves drawn against
    by_energy: bool  # whether curves are also drawn against energy
    savings: Savings
    net: NetAmounts
    recurrences: tuple[RecurrenceFacts, ...]
    sizes: tuple[SizeFacts, ...]
    left_out: tuple[tuple[str, int], ...]  # why costs are no dots, and of how many runs
    curves: tuple[CurveFacts, ...]
    curves_left_out: str  # a sentence without its point, or ""
    noise: tuple[NoiseFacts, ...]
    ranks: tuple[RanksFacts, ...]  # of the newest runs that changed them
    failures: tuple[FailureFacts, ...]
    overhead: tuple[OverheadFacts, ...]
    waiting: str | None  # of a step of the newest run, for data
    remarks: tuple[str, ...]  # on what has changed

    @property
    def against(self) -> str:
        """The batch size that it is compared with."""
        default = self.savings.default or self.default
        return "the default batch size" if default is None else f"batch size {default}"


@dataclass(frozen=True)
class JobReport:
    """All that a page shows of one job."""

    facts: JobFacts
    belief: Belief = field(default_factory=Belief)
    power: tuple[PowerFacts, ...] = ()
    days: int | None = None  # so many, up to the newest one, are ``recent``

    @property
    def recent(self) -> list[RecurrenceFacts]:
        """The recurrences that their figure and their table show."""
        found = list(self.facts.recurrences)
        end = local_time(found[-1].started_at) if found else None
        if self.days is None or end is None:
            return found
        since = end - timedelta(days=self.days)
        times = [(each, local_time(each.started_at)) for each in found]
        return [each for each, at in times if at is None or at >= since]


def build_facts(job: str, trials: Sequence[Trial], unit: CurveUnit | None = None) -> JobFacts:
    """Return the facts of a job from its trials, oldest first; at least one has finished.

    ``unit``: of the curves; ``None``: that of these trials.
    """
    savings = find_savings(trials)
    net, recurrences = find_net_amounts(trials, savings), build_recurrences(trials, savings)
    trials = [trial for trial in trials if trial.status.finished]
    newest = trials[-1]
    sizes, left_out = build_sizes(trials)
    drawn, unit = curves.newest_curves(trials, _CURVES), unit or curves.curve_unit(trials)
    by_energy = any(point.energy_j is not None for trial in trials for point in trial.curve)
    return JobFacts(
        job=job,
        metric=newest.metric,
        mode=newest.mode,
        target=newest.target,
        eta_knob=newest.eta_knob,
        default=newest.default_batch_size,
        hardware=hardware_text(newest),
        first_at=trials[0].started_at,
        last_at=newest.started_at,
        taught=any(trial.teaches for trial in trials),
        reached=sum(trial.status is TrialStatus.REACHED for trial in trials),
        total=add_up(job, trials),
        sources=tuple(s.value for s in EnergySource if s in {t.energy_source for t in trials}),
        unit=unit,
        by_energy=by_energy,
        savings=savings,
        net=net,
        recurrences=tuple(recurrences),
        sizes=tuple(sizes),
        left_out=tuple(left_out.most_common()),
        curves=tuple(curves.build_curves(drawn, unit, by_energy=by_energy)),
        curves_left_out=curves.left_out_text(drawn, unit),
        noise=tuple(curves.build_noise(trials, unit)),
        ranks=tuple(_build_ranks(each) for each in trials if each.world_sizes)[-_RESIZED:],
        failures=tuple(_failure(t) for t in trials if t.status in OUTDONE | _CRASHED),
        overhead=tuple(row for row in _overhead(trials) if row.count),
        waiting=waiting_text(newest),
        remarks=tuple(_describe_other_sizes(trials)),
    )


def _describe_other_sizes(trials: Sequence[Trial]) -> Iterator[str]:
    others = [trial for trial in trials if not trial.teaches and not trial.forgotten]
    if others:
        sizes = dict.fromkeys(str(trial.observed_batch_size or "its own") for trial in others)
        yield (
            f"{len(others)} of {plural(len(trials), 'run')} trained with another batch size than "
            f"the chosen one ({', '.join(sizes)}), and count for nothing but the bill: the script "
            "does not take the batch size as it gets it"
        )


def hardware_text(trial: Trial) -> str:
    """Return what a run trained on: ``8 x NVIDIA H100``, ``CPU, 2 ranks``, ``CPU, 2→4 ranks``."""
    ranks = ranks_text(trial)
    if trial.gpu_model is not None and trial.gpu_count:
        model = f"{trial.gpu_count} x {shortened(trial.gpu_model, 80)}"
        return f"{model}, {ranks}" if trial.world_sizes else model
    return f"CPU, {ranks}"


def _build_ranks(trial: Trial) -> RanksFacts:
    changes, scaled = trial.world_sizes, split_variant(trial.variant)[0] == BY_RANKS
    points = [(each.step or 0, each.time_s) for each in changes]
    points.append((trial.whole_steps or 0, trial.whole_time_s or 0.0))
    rates: list[float | None] = []
    for change, (begin, since_s), (end, until_s) in zip(changes, points, points[1:], strict=False):
        size = trial.global_batch_size * (change.world_size / trial.world_size if scaled else 1)
        known = end > begin and until_s > since_s  # not if all ranks have started again
        rates.append(size * (end - begin) / (until_s - since_s) if known else None)
    steps = tuple(step for step, _ in points)
    return RanksFacts(trial.trial, size_label(trial), changes, steps, tuple(rates))


def _failure(trial: Trial) -> FailureFacts:
    return FailureFacts(
        trial.trial,
        trial.started_at,
        size_label(trial),
        trial.status.value,
        trial.reason or "",
        trial.cost_j,
    )


def _overhead(trials: Sequence[Trial]) -> list[OverheadFacts]:
    """Return what zeusrun itself took, by the way in which it did."""
    started = [trial.startup_s for trial in trials if trial.startup_s is not None]
    probed = [t.profiling_cost_j for t in trials if t.profiling_cost_j is not None]
    checks = [
        trial
        for trial in trials
        if trial.stage is Stage.SPEED_CHECK and trial.status is TrialStatus.CANCELLED
    ]
    short = [trial for trial in trials if trial.status in OUTDONE]
    crashed = [trial for trial in trials if trial.status in _CRASHED]
    startup = "start-up of the runs (imports, rendezvous, first batch)"
    return [
        OverheadFacts(startup, len(started), time_s=sum_known(started)),
        _taken("speed checks after which another batch size ran", checks),
        OverheadFacts("probes of power limits", len(probed), cost_j=sum_known(probed)),
        _taken("attempts that ended without the target", short),
        _taken("attempts that crashed or were lost", crashed),
        _after_target(trials),
    ]


def _after_target(trials: Sequence[Trial]) -> OverheadFacts:
    """Return what runs took after they had reached the target."""
    later = [(trial, more_s) for trial in trials if (more_s := time_after_target(trial))]
    energies = [
        trial.whole_energy_j - trial.energy_j
        for trial, _ in later
        if trial.whole_energy_j is not None and trial.energy_j is not None
    ]
    return OverheadFacts(
        "training after the target",
        len(later),
        time_s=sum_known(more_s for _, more_s in later),
        energy_j=sum_known(energies),
    )


def _taken(name: str, trials: Sequence[Trial]) -> OverheadFacts:
    total = add_up(name, trials)
    return OverheadFacts(name, total.runs, total.time_s, total.energy_j, total.cost_j)


def build_power(trial: Trial, trace: PowerTrace) -> PowerFacts:
    """Return the facts of a run with a trace."""
    known = trial.energy_j is not None and trial.time_s
    return PowerFacts(
        trial=trial.trial,
        size=size_label(trial),
        mean_w=(trial.energy_j or 0.0) / (trial.time_s or 1.0) if known else None,
        highest_w=max(span.high_w for span in trace.spans),
        limit_w=trace.spans[-1].limit_w,
        throttled=tuple((name.replace("_", " "), n) for name, n in sorted(trace.throttled.items())),
        trace=trace,
    )


def build_belief(spec: JobSpec, trials: Sequence[Trial]) -> Belief:
    """Return what the policy believes after the newest trials, oldest first; at least one."""
    usual = next((trial for trial in reversed(trials) if has_cost(trial)), trials[-1])
    machine = Machine(hardware=usual.hardware, max_power_w=usual.max_power_w)
    try:
        policy = create_policy(spec.policy.name)
        problem = build_problem(spec, machine, trials, next_recurrence(trials))
        problem, runs = read_history(problem, trials)
        return believe(Chooser(spec, policy), problem, runs)
    except ZeusrunError as error:
        return unknown_belief(error)

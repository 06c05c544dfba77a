"""What a report says of each batch size. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.analysis.cost_baseline import has_cost
from zeusrun.trial import TrialStatus
from zeusrun.view.report.amounts import median_known

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from zeusrun.trial import Trial

ENDED_SHORT = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.OOM})


class Size(NamedTuple):
    """A batch size as runs are grouped: adaptive runs are apart from those that keep it."""

    batch_size: int
    variant: str | None = None

    @property
    def label(self) -> str:
        """How people read it."""
        return str(self.batch_size) if self.variant is None else f"{self.batch_size} {self.variant}"


@dataclass(frozen=True)
class SizeFacts:
    """All runs with a batch size; costs of runs that can be compared with the newest one."""

    label: str
    batch_size: int
    variant: str | None
    default: bool
    runs: int
    share: float  # of all runs
    reached: int
    costs_j: tuple[float, ...]  # of the runs that reached the target
    failed_j: tuple[float, ...]  # of the others: lower bounds
    cost_j: float | None  # medians, of the runs that reached the target
    energy_j: float | None
    time_s: float | None
    epochs: float | None
    noise_scale: float | None  # median of all runs
    power_limit_w: float | None  # median


def size_of(trial: Trial) -> Size:
    """Return the batch size of a run, as runs are grouped."""
    return Size(trial.global_batch_size, trial.variant)


def build_size(
    size: Size, own: Sequence[Trial], runs: int, comparable: Container[str]
) -> SizeFacts:
    """Return the facts of a batch size from its runs.

    Args:
        size: The batch size.
        own: Its runs.
        runs: The number of runs of the job.
        comparable: The runs whose costs can be compared with that of the newest one.
    """
    costly = [trial for trial in own if trial.trial in comparable and not trial.forgotten]
    done = [trial for trial in costly if _counts(trial)]
    failed = [trial for trial in costly if trial.status in ENDED_SHORT and trial.cost_j]
    return SizeFacts(
        label=size.label,
        batch_size=size.batch_size,
        variant=size.variant,
        default=size.batch_size == own[-1].default_batch_size and size.variant is None,
        runs=len(own),
        share=len(own) / runs,
        reached=sum(trial.status is TrialStatus.REACHED for trial in own),
        costs_j=tuple(trial.cost_j or 0.0 for trial in done if has_cost(trial)),
        failed_j=tuple(trial.cost_j for trial in failed if trial.cost_j is not None),
        cost_j=median_known(trial.cost_j for trial in done if has_cost(trial)),
        energy_j=median_known(trial.energy_j for trial in done),
        time_s=median_known(trial.time_s for trial in done),
        epochs=median_known(trial.epochs for trial in done),
        noise_scale=median_known(trial.critical_batch_size for trial in own),
        power_limit_w=median_known(trial.power_limit_w for trial in done),
    )


def _counts(trial: Trial) -> bool:
    """Whether a run reached the target on GPUs of its own; its cost may be unknown."""
    return trial.status is TrialStatus.REACHED and trial.teaches and trial.shared is not True

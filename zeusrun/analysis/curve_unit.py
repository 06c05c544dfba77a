"""Whether the curves of a job are drawn against epochs or samples. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from zeusrun.bandit.samples import by_epochs_done, find_unit, samples_per_epoch, spread_samples
from zeusrun.target import meets_target
from zeusrun.trial import TrialStatus, epochs_of, is_baseline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.trial import CurvePoint, Trial

CurveUnit: TypeAlias = Literal["epochs", "samples"]


def curve_unit(trials: Sequence[Trial]) -> CurveUnit:
    """Return what the curves of a job are drawn against: what its runs are compared by.

    If no run may be compared, it is samples if all runs have a curve by samples.
    """
    own = [trial for trial in trials if trial.curve and trial.metric == trials[-1].metric]
    if not own:
        return "epochs"
    compared = find_unit(own[-1].metric, own[-1].mode, own) is not None
    return "samples" if compared or all(trial.by_samples for trial in own) else "epochs"


def curve_in(trial: Trial, unit: CurveUnit) -> Sequence[CurvePoint]:
    """Return the curve of a run by epochs done, or by samples; empty if these are unknown."""
    if unit == "samples":
        return trial.by_samples or spread_samples(trial.curve, _samples(trial))
    return by_epochs_done(trial.curve)


def amount_in(trial: Trial, unit: CurveUnit) -> int | None:
    """Return the epochs or samples of a run up to its target, else to its end."""
    if unit == "epochs":
        return trial.epochs
    if not trial.by_samples:
        samples, whole = _samples(trial), epochs_of(trial.curve)
        return round(samples * (trial.epochs or whole) / whole) if samples and whole else None
    done = [point for point in trial.by_samples if not is_baseline(point)]
    if trial.status is TrialStatus.REACHED:
        met = (
            point
            for point in done
            if point.value is not None and meets_target(point.value, trial.target, trial.mode)
        )
        done = [*met][:1] or done
    return done[-1].epoch if done else None


def _samples(trial: Trial) -> int:
    """Return the samples of a run that reports once an epoch; 0 if unknown."""
    whole = samples_per_epoch(trial) or 0.0  # of an old record
    return trial.samples or round(whole * epochs_of(trial.curve))


def epochs_by_samples(trial: Trial) -> float | None:
    """Return ``amount_in`` samples as epochs, with a fraction; ``None`` if unknown."""
    samples = amount_in(trial, "samples")
    if not samples or not trial.samples or trial.progress is None:
        return None
    return trial.progress * samples / trial.samples


def counts_reports(trial: Trial) -> bool:
    """Whether only the number of its reports says how far a run went."""
    return trial.by_reports and not trial.by_samples


def left_out_text(trials: Iterable[Trial], unit: CurveUnit) -> str:
    """Return which of some runs with a curve cannot be drawn against a unit; "" if all can."""
    count = sum(bool(trial.curve) and not curve_in(trial, unit) for trial in trials)
    if not count:
        return ""
    runs, their = ("1 run", "its") if count == 1 else (f"{count} runs", "their")
    return f"{runs} left out: {their} number of samples is unknown"

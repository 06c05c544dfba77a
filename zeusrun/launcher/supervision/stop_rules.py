"""Decides whether a running trial goes on, or how it is stopped. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.clock import MTIME_S
from zeusrun.cost import energy_text
from zeusrun.launcher.processes.signals import PREEMPTING, how_at_once
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.metrics.seen import list_names
from zeusrun.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.progress import Progress


_TARGET_REACHED = {
    StopLevel.NONE: "target reached",
    StopLevel.ASK: "target reached",
    StopLevel.TERMINATE: "the target is reached; a signal ends the script, so that code after its "
    "training loop does not run (objective.on_target: continue lets it finish)",
}
_ASKED_TO_STOP = "another zeusrun process has asked for it"
_SAVING_S = 600.0  # for a checkpoint after the epoch; a signal would leave half of it
EPOCHS_WITHOUT_METRIC = 3  # a script may skip the evaluation in one or two


@dataclass(frozen=True)
class StopOrder:
    """Why to stop, and how firmly. The policy orders ``HOPELESS`` and ``SPEED_CHECKED``."""

    cause: ReasonCode
    reason: str
    level: StopLevel = StopLevel.TERMINATE

    @property
    def ends_ranks(self) -> bool:
        """Whether zeusrun ends the ranks; at the target, most scripts are only asked to stop."""
        return self.cause is not ReasonCode.TARGET_REACHED or self.level >= StopLevel.TERMINATE


_CANCELLED: dict[ReasonCode | None, str] = {
    ReasonCode.CANCELLED: "cancelled by 'zeusrun cancel'",
    ReasonCode.REPLACED: "a newer run of the job took its place",
}
BY_SIGNAL = {
    *(ReasonCode.SIGNAL, ReasonCode.PREEMPTED, ReasonCode.CANCELLED, ReasonCode.REPLACED),
}


def is_cause(order: StopOrder, earlier: StopOrder | None) -> bool:
    """Whether an order is why the run ends: the first one, or a signal after a speed check."""
    if earlier is None or earlier.cause is ReasonCode.TARGET_REACHED:
        return True
    return earlier.cause is ReasonCode.SPEED_CHECKED and order.cause in BY_SIGNAL


def describe_signal(order: StopOrder, number: int, grace_s: float, *, cancelled: str | None) -> str:
    """Return what happens after a signal; ``cancelled``: the trial, if another zeusrun sent it."""
    preempted = order.cause is ReasonCode.PREEMPTED
    then = ", and the next submit continues it" if preempted else ""
    again = f"within {grace_s:g} s{then}; {how_at_once(number, cancelled=cancelled)}"
    how = "at once" if order.level is StopLevel.KILL else again
    # The last line of the run names the request; do not say it twice.
    why = order.reason if cancelled is None else _ASKED_TO_STOP
    return f"{why}: the training ends {how}"


@dataclass(frozen=True)
class StopRules:
    """The limits of a trial that do not depend on its policy's review; ``None`` for no limit."""

    cost_bound_j: float | None  # past it, the run is hopeless
    timeout_s: float | None  # since launch
    stop_at_target: bool  # whether to ask the script to stop
    needs_metric: str | None = None  # the first ``EPOCHS_WITHOUT_METRIC`` epochs must report it


def supervise(
    progress: Progress,
    rules: StopRules,
    signals: Sequence[int],
    verdict: StopOrder | None = None,
    cancelled: ReasonCode | None = None,
) -> StopOrder | None:
    """Decide whether the run goes on (``None``) or how to stop it.

    ``verdict`` is the policy's; ``cancelled``: why another zeusrun has sent the signals.
    """
    if signals:
        level = StopLevel.TERMINATE if len(signals) == 1 else StopLevel.KILL
        cause = ReasonCode.PREEMPTED if signals[0] in PREEMPTING else ReasonCode.SIGNAL
        text = f"{signal.Signals(signals[0]).name} to zeusrun"
        if cause is ReasonCode.SIGNAL and cancelled is not None:
            cause, text = cancelled, _CANCELLED.get(cancelled, text)
        return StopOrder(cause, text, level)
    if rules.timeout_s is not None and progress.now_t - progress.launched_t > rules.timeout_s:
        reason = f"timed out after {rules.timeout_s:g} s"
        return StopOrder(ReasonCode.TIMEOUT, reason)
    if progress.reached is not None:
        if rules.stop_at_target:
            saving = _may_be_saving(progress)
            level = StopLevel.ASK if progress.listens or saving else StopLevel.TERMINATE
            if progress.guesses and saving:
                level = StopLevel.NONE  # a report with another value may follow
            return StopOrder(ReasonCode.TARGET_REACHED, _TARGET_REACHED[level], level)
        return None
    if progress.may_have_reached:
        return None
    return verdict or _without_metric(progress, rules) or _past_bound(progress, rules)


def _may_be_saving(progress: Progress) -> bool:
    """Whether a script that reached the target may still save: it has made no step since."""
    if progress.reached is None or progress.training_t is None or progress.stepping_s is None:
        return False
    reached_t = progress.training_t + progress.reached.time_s
    stepped = progress.stepping_s[1] > reached_t + MTIME_S
    return not stepped and progress.now_t - reached_t < _SAVING_S


def _without_metric(progress: Progress, rules: StopRules) -> StopOrder | None:
    metric, seen = rules.needs_metric, progress.seen_metrics
    if metric is None or metric in seen or len(progress.other_epochs) < EPOCHS_WITHOUT_METRIC:
        return None
    names = list_names(seen) or "nothing"
    return StopOrder(
        ReasonCode.NO_METRIC,
        f"the first {EPOCHS_WITHOUT_METRIC} epochs reported no {metric!r}, but {names}; correct "
        "objective.metric in the job file, or write objective.missing_metric: continue",
    )


def _past_bound(progress: Progress, rules: StopRules) -> StopOrder | None:
    cost_j, bound_j = progress.cost_j, rules.cost_bound_j
    if cost_j is None or bound_j is None or cost_j <= bound_j:
        return None
    return StopOrder(ReasonCode.HOPELESS, f"its cost passed the bound of {energy_text(bound_j)}")

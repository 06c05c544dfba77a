"""Decides whether a running trial goes on, or how it is stopped, and carries it out.

The rules are a pure function, ``find_stop``; ``Stopping`` gives it the signals and requests.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.clock import MTIME_S
from zeusrun.cost import energy_text
from zeusrun.launcher.events import Warned
from zeusrun.launcher.processes.signals import PREEMPTING
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.layout import read_cancel
from zeusrun.metrics.seen import list_names
from zeusrun.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.metrics.progress import Progress
    from zeusrun.run_on.registry import Allocation
    from zeusrun.trial import Trial


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


BY_SIGNAL = {ReasonCode.SIGNAL, ReasonCode.PREEMPTED, ReasonCode.REPLACED}
BY_SIGNAL |= {ReasonCode.CANCELLED, ReasonCode.REQUESTED}


def is_cause(order: StopOrder, earlier: StopOrder | None) -> bool:
    """Whether an order is why the run ends: the first one, or a signal after a speed check."""
    if earlier is None or earlier.cause is ReasonCode.TARGET_REACHED:
        return True
    return earlier.cause is ReasonCode.SPEED_CHECKED and order.cause in BY_SIGNAL


def describe_signal(
    order: StopOrder,
    number: int,
    grace_s: float,
    cancelled: str | None,
    allocated: str | None,
    *,
    kept: bool | None = None,
) -> str:
    """Return what happens after a signal.

    ``cancelled`` is the name of the trial if another zeusrun process sent the signal; ``allocated``
    is the name if a scheduler sent it. ``kept``: whether a scheduler keeps the files of the run;
    ``None`` without a scheduler.
    """
    preempted = order.cause is ReasonCode.PREEMPTED
    who = "next submit" if allocated is None else "next start, if it has a checkpoint,"
    then = f", and the {who} continues it" if preempted and kept is not False else ""
    if kept is None:  # nobody can send Ctrl-C to a job of a scheduler
        then += f"; {how_at_once(number, cancelled=cancelled or allocated)}"
    how = "at once" if order.level is StopLevel.KILL else f"within {grace_s:g} s{then}"
    # The last line of the run names the request; do not say it twice.
    why = order.reason if cancelled is None else _ASKED_TO_STOP
    return f"{why}: the training ends {how}"


def how_at_once(number: int, *, cancelled: str | None) -> str:
    """Say how to end a training at once that a signal is ending, or ``cancel`` of a trial."""
    if cancelled is not None:
        return f"`zeusrun cancel --now {cancelled}` ends it at once"
    if number == signal.SIGINT:
        return "press Ctrl-C again to end it at once"
    return f"send {signal.Signals(number).name} again to end it at once"


@dataclass(frozen=True)
class StopRules:
    """The limits of a trial that do not depend on its policy's review; ``None`` for no limit."""

    cost_bound_j: float | None  # past it, the run is hopeless
    timeout_s: float | None  # since launch
    stop_at_target: bool  # whether to ask the script to stop
    needs_metric: str | None = None  # the first ``EPOCHS_WITHOUT_METRIC`` epochs must report it


def find_stop(
    progress: Progress,
    rules: StopRules,
    signals: Sequence[int],
    policy_order: StopOrder | None = None,
    cancelled: tuple[ReasonCode, str] | None = None,
) -> StopOrder | None:
    """Decide whether the run goes on (``None``) or how to stop it.

    ``policy_order`` is the policy's; ``cancelled``: why another zeusrun has sent the signals.
    """
    if signals:
        level = StopLevel.TERMINATE if len(signals) == 1 else StopLevel.KILL
        cause = ReasonCode.PREEMPTED if signals[0] in PREEMPTING else ReasonCode.SIGNAL
        text = f"{signal.Signals(signals[0]).name} to zeusrun"
        if cause is ReasonCode.SIGNAL and cancelled is not None:
            cause, text = cancelled
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
    return policy_order or _without_metric(progress, rules) or _past_bound(progress, rules)


def _may_be_saving(progress: Progress) -> bool:
    """Whether a script that reached the target may still save: it has made no step since."""
    if progress.reached is None or progress.training_t is None or progress.stepping_s is None:
        return False
    reached_t = progress.training_t + progress.reached.time_s
    stepped = progress.stepping_s[1] > reached_t + MTIME_S
    return not stepped and progress.now_t - reached_t < _SAVING_S


def _without_metric(progress: Progress, rules: StopRules) -> StopOrder | None:
    metric, seen = rules.needs_metric, progress.seen_metrics
    if metric is None or len(progress.other_epochs) < EPOCHS_WITHOUT_METRIC:
        return None
    if progress.doubt is not None and progress.last_value is None:
        return StopOrder(ReasonCode.NO_METRIC, progress.doubt)
    if metric in seen:
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


class Stopping:
    """Whether, why and how firmly one trial is stopped."""

    def __init__(
        self,
        spec: JobSpec,
        trial: Trial,
        paths: RunPaths,
        signals: CaughtSignals,
        messages: Messages,
        *,
        cost_bound_j: float | None,
        allocation: Allocation | None = None,
    ) -> None:
        """Prepare; the ``allocation`` is asked why its scheduler has sent a signal."""
        self._trial, self._paths, self._messages = trial, paths, messages
        self._signals, self._spec, self._taken = signals, spec, 0
        self.received: list[int] = []  # the signals that end the run, requests among them
        self._cancelled: tuple[ReasonCode, str] | None = None  # by another zeusrun
        self._allocation = allocation
        self._of_node: str | None = None  # a signal that the launcher of another host received
        self.order: StopOrder | None = None  # the one that counts
        self.policy_order: StopOrder | None = None
        self.rules = StopRules(
            cost_bound_j,
            None if spec.timeout_s is None else spec.timeout_s - (trial.time_s or 0.0),
            stop_at_target=spec.objective.on_target == "stop",
            needs_metric=trial.metric if spec.objective.missing_metric == "stop" else None,
        )

    @property
    def may_ask_policy(self) -> bool:
        """Whether the policy is still asked; not if the run will be stopped anyway."""
        ordered = self.order is not None and self.order.cause is not ReasonCode.TARGET_REACHED
        ending = self._signals.received or self._of_node or self.received
        return not (ordered or self.policy_order is not None or ending)

    @property
    def _counted(self) -> Sequence[int]:
        return self.received or [signal.SIGTERM] * (self._of_node is not None)

    @property
    def preempted(self) -> bool:
        """Whether a scheduler is ending the run."""
        return self.order is not None and self.order.cause is ReasonCode.PREEMPTED

    def take_signal(self, text: str) -> None:
        """Take a signal of another host's launcher: the run is preempted. More change nothing."""
        self._of_node = self._of_node or text

    def bound(self, cost_bound_j: float | None) -> None:
        """Take another cost bound, in joules; ``None`` for none."""
        self.rules = replace(self.rules, cost_bound_j=cost_bound_j)

    def decide(self, progress: Progress, pause: str | None) -> StopLevel:
        """Return how firmly the run is to be ended now; ``pause``: how long there was no step."""
        order = self._find_order(progress, pause)
        if order is None and self.order is not None and not self.order.level:
            self.order = None  # a report says that the target is not reached
        if order is not None and is_cause(order, self.order) and order != self.order:
            self.order = order
            self._announce(order)
        return StopLevel.NONE if order is None else order.level

    def conclude(self, progress: Progress, pause: str | None, *, succeeded: bool) -> None:
        """Take a signal that arrived while the ranks ended, perhaps because of the same signal."""
        checked = self.order is not None and self.order.cause is ReasonCode.SPEED_CHECKED
        self._read_signals()
        if self._counted and not succeeded and (self.order is None or checked):
            self.order = self._find_order(progress, pause)

    def _find_order(self, progress: Progress, pause: str | None) -> StopOrder | None:
        self._read_signals()
        signals, cancelled = self._counted, self._cancelled
        order = find_stop(progress, self.rules, signals, self.policy_order, cancelled)
        if order is None:
            return None
        if order.cause is ReasonCode.PREEMPTED:
            sender = None if self._allocation is None else self._allocation.find_cause()
            reason = order.reason if self.received else self._of_node or order.reason
            cause, reason = sender or (order.cause, reason)
            return replace(order, cause=cause, reason=reason)
        if (
            order.cause is ReasonCode.TARGET_REACHED
            and order.ends_ranks
            and self._may_only_save(progress)
        ):
            return replace(order, reason="target reached", level=StopLevel.ASK)
        if order.cause is ReasonCode.TIMEOUT and pause:
            return replace(order, reason=f"{order.reason}; {pause}")
        return order

    def _may_only_save(self, progress: Progress) -> bool:
        """Whether all epochs are done and no step has followed: then there is nothing to stop."""
        signalled = self.order is not None and self.order.ends_ranks
        last_t = progress.stepping_s[1] if progress.stepping_s else 0.0
        stepped = last_t > (progress.last_report_t or 0.0) + MTIME_S
        return progress.epochs == self._trial.max_epochs and not stepped and not signalled

    def _announce(self, order: StopOrder) -> None:
        if order.cause in BY_SIGNAL:
            cancelled = None if self._cancelled is None else self._trial.trial
            number = self._counted[0]
            allocated = None if self._trial.allocation is None else self._trial.trial
            grace_s, allocation = self._spec.launch.grace_period_s, self._allocation
            kept = None if allocation is None else allocation.keeps_files
            text = describe_signal(order, number, grace_s, cancelled, allocated, kept=kept)
            self._messages.emit(Warned(text))
        elif order.level >= StopLevel.TERMINATE:
            self._messages.note(f"stopping: {order.reason}")

    def _read_signals(self) -> None:
        """Take the signals that have come; the request of another zeusrun counts as Ctrl-C."""
        received = self.received
        new = self._signals.received[self._taken :]
        self._taken += len(new)  # one that comes now is taken the next time
        received += new
        if (request := read_cancel(self._paths)) is None:
            return
        interrupts, code, why = request
        # With a scheduler, a signal comes with each request, before or after it is read here.
        while self._trial.allocation is not None and received.count(signal.SIGINT) > 1:
            received.remove(signal.SIGINT)
        if not received or (received == [signal.SIGINT] and self.order is None):
            self._cancelled = code, why
        received += [signal.SIGINT] * (interrupts - len(received))

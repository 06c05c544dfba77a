"""Carries out the decision whether a running trial goes on: its rules, signals and requests."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.clock import MTIME_S
from zeusrun.launcher.events import Warned
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.layout import read_cancel
from zeusrun.launcher.supervision.stop_rules import (
    BY_SIGNAL,
    StopCause,
    StopOrder,
    StopRules,
    describe_signal,
    is_cause,
    supervise,
)

if TYPE_CHECKING:
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.supervision.messages import Messages
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Trial


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
    ) -> None:
        self._trial, self._paths, self._messages = trial, paths, messages
        self._signals, self._grace_s = signals, spec.launch.grace_period_s
        self._why_cancelled: str | None = None  # by another zeusrun
        self.order: StopOrder | None = None  # the one that counts
        self.verdict: StopOrder | None = None  # the policy's
        self.rules = StopRules(
            cost_bound_j,
            None if spec.timeout_s is None else spec.timeout_s - (trial.time_s or 0.0),
            stop_at_target=spec.objective.on_target == "stop",
            needs_metric=trial.metric if spec.objective.missing_metric == "stop" else None,
        )

    @property
    def may_ask_policy(self) -> bool:
        """Whether the policy is still asked; not if the run will be stopped anyway."""
        ordered = self.order is not None and self.order.cause is not StopCause.TARGET
        return not (ordered or self.verdict is not None or self._signals.received)

    @property
    def preempted(self) -> bool:
        """Whether a scheduler is ending the run."""
        return self.order is not None and self.order.cause is StopCause.PREEMPTED

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
        checked = self.order is not None and self.order.cause is StopCause.SPEED_CHECKED
        self._read_cancel()
        if self._signals.received and not succeeded and (self.order is None or checked):
            self.order = self._find_order(progress, pause)

    def _find_order(self, progress: Progress, pause: str | None) -> StopOrder | None:
        self._read_cancel()
        order = supervise(progress, self.rules, self._signals.received, self.verdict)
        if order is None:
            return None
        if order.cause is StopCause.TARGET and order.ends_ranks and self._may_only_save(progress):
            return replace(order, reason="target reached", level=StopLevel.ASK)
        if order.cause is StopCause.SIGNAL and self._why_cancelled is not None:
            return replace(order, reason=self._why_cancelled)
        if order.cause is StopCause.TIMEOUT and pause:
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
            cancelled = None if self._why_cancelled is None else self._trial.trial
            number = self._signals.received[0]
            text = describe_signal(order, number, self._grace_s, cancelled=cancelled)
            self._messages.emit(Warned(text))
        elif order.level >= StopLevel.TERMINATE:
            self._messages.note(f"stopping: {order.reason}")

    def _read_cancel(self) -> None:
        """Treat the request of another zeusrun as Ctrl-C."""
        received, request = self._signals.received, read_cancel(self._paths)
        if request is None:
            return
        interrupts, reason = request
        if not received:
            self._why_cancelled = reason
        received.extend([signal.SIGINT] * (interrupts - len(received)))

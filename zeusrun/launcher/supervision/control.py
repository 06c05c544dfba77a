"""Controls a running trial: stops, the policy, power limits, and stalls."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.launcher.events import BoundChanged
from zeusrun.launcher.power.limits import NoLimits
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.failure import signal_name
from zeusrun.launcher.supervision.agent import Agent
from zeusrun.launcher.supervision.speed_check import PolicyControl
from zeusrun.launcher.supervision.stalls import StallControl
from zeusrun.launcher.supervision.stopping import StopOrder, Stopping
from zeusrun.lever import limit_of, power_lever
from zeusrun.reasons import ReasonCode

if TYPE_CHECKING:
    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.power.limits import Limits
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.supervision.ranks import RunningRanks
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event


class RunControl(Agent):
    """Controls one running trial.

    At each tick, the supervisor calls ``mark``, then ``ask_policy``, then the other agents, and
    then ``step``.
    """

    def __init__(
        self,
        submission: Submission,
        begun: Begun,
        messages: Messages,
        meter: Meter,
        ranks: RunningRanks,
        *,
        signals: CaughtSignals,
    ) -> None:
        spec, choice = submission.spec, begun.choice
        self._submission, self._meter, self._ranks = submission, meter, ranks
        self._messages, self._max_epochs = messages, begun.trial.max_epochs
        self.stopping = Stopping(
            spec,
            begun.trial,
            begun.paths,
            signals,
            messages,
            cost_bound_j=choice.decision.cost_bound_j,
            allocation=submission.allocation,
        )
        self.policy = PolicyControl(submission, choice, meter)
        self.limits = self._open_limits(begun)
        self.stalls = StallControl(spec, begun.paths, messages, ranks)

    def take(self, event: Event) -> None:
        """See ``Agent.take``."""
        self.stalls.take(event)

    def hear_nodes(self) -> None:
        """Show messages of the launchers on other hosts; stop the run if one received a signal."""
        allocation = self._submission.allocation
        if allocation is not None and (text := allocation.check_sentinel()) is not None:
            self.stopping.take_signal(text)
        for node in self._submission.nodes:
            while node.notices:
                text = node.notices.popleft()
                self._messages.warn_once(text, text)  # a full disk causes the same error many times
            while node.signals:
                name = signal_name(node.signals.popleft())
                self.stopping.take_signal(f"{name} to the launcher of host {node.name}")

    def mark(self, before: Progress, progress: Progress) -> Progress:
        """Return the progress with the state of the stop order and the held power limit."""
        order, reached = self.stopping.order, progress.reached
        if order is not None and order.ends_ranks:
            reached = reached or before.reached
        return replace(
            progress,
            reached=reached,
            ending=order is not None or progress.has_done(self._max_epochs),
            power_limit_w=limit_of(self.limits.held),
            probing=self.limits.probing,
        )

    def ask_policy(self, progress: Progress, *, epoch: bool) -> None:
        """Ask the policy about a measured speed, and after an ``epoch`` whether to continue."""
        if not self.stopping.may_ask_policy:
            return
        answer = self.policy.check_speed(progress, self.limits.stepped_under)
        if isinstance(answer, StopOrder):
            self.stopping.policy_order = answer
            return
        if answer is not None:
            self.stopping.bound(answer.cost_bound_j)
            self._messages.emit(BoundChanged(answer.cost_bound_j))
            self._messages.note(f"the speed is now known, and the run continues: {answer.why}")
        if epoch:
            self.stopping.policy_order = self.policy.review(progress)

    def stop(self, reason: str) -> None:
        """Stop the run, because an agent finds it hopeless; not if it is stopped already."""
        if self.stopping.may_ask_policy:
            self.stopping.policy_order = StopOrder(ReasonCode.HOPELESS, reason)

    def take_end(self, reason: str) -> None:
        """Record that a part of the job has ended the training, as the job file says."""
        self.stopping.order = self.stopping.order or StopOrder(ReasonCode.PLANNED, reason)

    def step(self, progress: Progress) -> bool:
        """Decide, and act on the decision; return whether the ranks are still running."""
        level = self.stopping.decide(progress, self.stalls.describe_pause())
        stopping = self.stopping.order is not None
        self.stalls.advance(replace(progress, ending=progress.ending or stopping))
        if level is StopLevel.NONE:
            energy_between = self._meter.energy_between
            self.limits.advance(time.monotonic(), energy_between, wait=self.policy.checking)
        else:
            self.limits.wind_down(at_once=level >= StopLevel.TERMINATE)
        return self._ranks.step(level)

    def end(self, progress: Progress) -> StopOrder | None:
        """Return why the run was stopped, once its ranks have ended; ``None`` if it was not."""
        pause = self.stalls.describe_pause()
        self.stopping.conclude(progress, pause, succeeded=self._ranks.exit.code == 0)
        return self.stopping.order

    def _open_limits(self, begun: Begun) -> Limits:
        submission = self._submission
        if not submission.gpus and submission.limits is None:
            return NoLimits()
        from zeusrun.launcher.power.control import LimitControl  # noqa: PLC0415 - for GPUs alone

        spec = submission.spec
        return LimitControl(
            submission.limits,
            submission.gpus,
            self._ranks.slowest if spec.instrument else None,
            self._messages.warn,
            choice=begun.choice,
            fixed=power_lever(spec.power_limit.watts),
            next_lever=self.policy.next_lever,
        )

"""One running trial: its progress, and all that looks after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.launcher.events import Messages
from zeusrun.launcher.power.limits import NoLimits
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.supervision.neighbours import CpuSharing, Neighbours
from zeusrun.launcher.supervision.observer import RunObserver, first_progress
from zeusrun.launcher.supervision.output import Output
from zeusrun.launcher.supervision.ranks import RunningRanks
from zeusrun.launcher.supervision.remarks import Remarks
from zeusrun.launcher.supervision.speed_check import PolicyControl
from zeusrun.launcher.supervision.stalls import StallControl
from zeusrun.launcher.supervision.stopping import Stopping
from zeusrun.lever import power_lever
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.rows import SourceContext
from zeusrun.plain_text import storable_text

if TYPE_CHECKING:
    from zeusrun.choice.choose import Choice
    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.power.limits import Limits
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.supervision.agent import Agent
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.reasons import Stall


class LastLive(NamedTuple):
    """When ``live.json`` is due again, and the order it shows."""

    due_at_t: float = 0.0
    order: StopOrder | None = None


class Supervised:
    """One running trial: its progress, and the objects that supervise it.

    Attributes:
        agents: In the order in which they are called.
        live: The last ``live.json``.
    """

    def __init__(self, submission: Submission, begun: Begun, signals: CaughtSignals) -> None:
        """Open the sources of a trial that is about to start, and all that looks after it."""
        spec, choice, paths, trial = submission.spec, begun.choice, begun.paths, begun.trial
        self.submission, self.begun = submission, begun
        self.messages = messages = Messages(begun.emit)
        self.meter = EnergyMonitor(submission.devices, paths.power, foreign=ForeignProcesses())
        self.ranks = ranks = RunningRanks(paths, range(submission.own_ranks), submission.nodes)
        values = placeholder_values(spec, trial, paths)
        folder, of_trial = spec.workdir_path(values), (trial.world_size, trial.target, trial.mode)
        context = SourceContext(
            paths.run_dir, folder, spec.metrics, trial.metric, values, *of_trial
        )
        self.observer = RunObserver(trial, open_sources(context), ranks, messages)
        bound_j, allocation = choice.decision.cost_bound_j, submission.allocation
        self.stopping = Stopping(
            spec, trial, paths, signals, messages, cost_bound_j=bound_j, allocation=allocation
        )
        self.policy = PolicyControl(submission, choice, self.meter)
        self.limits = _open_limits(submission, choice, ranks, messages, self.policy)
        self.stalls = StallControl(spec, paths, messages, ranks)
        self.neighbours = Neighbours(submission.home, on_cpu=not submission.gpus)
        self.agents: list[Agent] = [
            Output(paths, ranks.world, messages),
            CpuSharing(self.neighbours, messages.warn),
            Remarks(spec, trial, choice.earlier, messages),
        ]
        self.progress = first_progress(spec, trial, choice.earlier)
        self.live = LastLive()

    @property
    def shared(self) -> bool | None:
        """Whether others used the devices at the same time; ``None`` if unknown."""
        on_cpu = self.neighbours.shared
        own = self.meter.shared if on_cpu is None else on_cpu
        found = {own, *(node.shared for node in self.submission.nodes)}
        return True if True in found else None if None in found else False

    @property
    def found_stalls(self) -> tuple[Stall, ...]:
        """The stalls so far, without secrets."""
        mask = self.begun.mask
        found = ((each, mask.text(storable_text(each.places))) for each in self.stalls.found)
        return tuple(each._replace(places=places) for each, places in found)


def _open_limits(
    submission: Submission,
    choice: Choice,
    ranks: RunningRanks,
    messages: Messages,
    policy: PolicyControl,
) -> Limits:
    if not submission.gpus and submission.limits is None:
        return NoLimits()
    from zeusrun.launcher.power.control import LimitControl  # noqa: PLC0415 - for GPUs alone

    spec = submission.spec
    return LimitControl(
        submission.limits,
        submission.gpus,
        ranks.slowest if spec.instrument else None,
        messages.warn,
        choice=choice,
        fixed=power_lever(spec.power_limit.watts),
        next_lever=policy.next_lever,
    )

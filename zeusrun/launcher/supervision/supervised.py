"""One running trial: its progress, and the objects that supervise it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.launcher.events import Messages
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.supervision.control import RunControl
from zeusrun.launcher.supervision.neighbours import CpuSharing, Neighbours
from zeusrun.launcher.supervision.observer import RunObserver, first_progress
from zeusrun.launcher.supervision.output import Output
from zeusrun.launcher.supervision.ranks import RunningRanks
from zeusrun.launcher.supervision.remarks import Remarks
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.rows import SourceContext
from zeusrun.parts import PARTS, load_part
from zeusrun.plain_text import storable_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.supervision.agent import Agent
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.reasons import Stall


class LastLive(NamedTuple):
    """When ``live.json`` is due again (monotonic seconds), and the stop order in the file."""

    due_at_t: float = 0.0
    order: StopOrder | None = None


class Supervised:
    """One running trial: its progress, and the objects that supervise it.

    Attributes:
        observer: Reads the files of the ranks; ``observer.ranks`` are their processes.
        control: Decides whether the run continues.
        agents: The agents in the order of their calls; ``control`` is the first.
        live: Facts about the last ``live.json``.
    """

    def __init__(self, submission: Submission, begun: Begun, signals: CaughtSignals) -> None:
        """Open the metric sources and the supervision of a trial that is about to start."""
        spec, choice, paths, trial = submission.spec, begun.choice, begun.paths, begun.trial
        self.submission, self.begun = submission, begun
        self.messages = messages = Messages(begun.emit)
        neighbours = Neighbours(submission.home, on_cpu=not submission.gpus)
        self.meter = EnergyMonitor(
            submission.devices, paths.power, foreign=ForeignProcesses(), others=neighbours
        )
        ranks = RunningRanks(paths, range(submission.own_ranks), submission.nodes)
        values = placeholder_values(spec, trial, paths)
        folder, of_trial = spec.workdir_path(values), (trial.world_size, trial.target, trial.mode)
        context = SourceContext(
            paths.run_dir, folder, spec.metrics, trial.metric, values, *of_trial
        )
        self.observer = RunObserver(trial, open_sources(context), ranks, messages)
        self.control = RunControl(submission, begun, messages, self.meter, ranks, signals=signals)
        self.agents: list[Agent] = [
            self.control,
            Output(paths, ranks.world, messages),
            CpuSharing(neighbours, messages.warn),
            Remarks(spec, trial, choice.earlier, messages),
        ]
        self.progress = first_progress(spec, trial, choice.earlier)
        self.live = LastLive()

    @contextlib.contextmanager
    def open_parts(self) -> Iterator[None]:
        """Open the agents of the parts of the job that act beside the supervisor."""
        with contextlib.ExitStack() as stack:
            for name, section in self.submission.spec.parts.items():
                if PARTS[name].acts:
                    agent = load_part(name, "control").open_agent(section, self)
                    self.agents.append(stack.enter_context(agent))
            yield

    @property
    def ranks(self) -> RunningRanks:
        """The processes of the ranks."""
        return self.observer.ranks

    @property
    def shared(self) -> bool | None:
        """Whether other programs used the devices at the same time; ``None`` if unknown."""
        found = {self.meter.shared, *(node.shared for node in self.submission.nodes)}
        return True if True in found else None if None in found else False

    @property
    def found_stalls(self) -> tuple[Stall, ...]:
        """The stalls so far; secrets are masked."""
        mask, stalls = self.begun.mask, self.control.stalls.found
        found = ((each, mask.text(storable_text(each.places))) for each in stalls)
        return tuple(each._replace(places=places) for each, places in found)

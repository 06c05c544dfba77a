"""One running trial: its progress, and the objects that supervise it."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.supervision.control import RunControl
from zeusrun.launcher.supervision.neighbours import CpuSharing, Neighbours
from zeusrun.launcher.supervision.output import Output
from zeusrun.launcher.supervision.ranks import RunningRanks
from zeusrun.launcher.supervision.remarks import Remarks
from zeusrun.metrics.advance import advance
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.progress import Progress, settle, take_step_clock
from zeusrun.metrics.rows import SourceContext
from zeusrun.metrics.seen import Ranks, Seen, find_known
from zeusrun.metrics.spans import find_first_epoch
from zeusrun.parts import PARTS, load_part
from zeusrun.plain_text import storable_text
from zeusrun.sidecar.events import Regrouped
from zeusrun.trial import is_baseline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.supervision.agent import Agent
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.metrics.base import MetricSource
    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.reasons import Stall
    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import Trial

_OTHER_CLOCK = "'t' in the sidecar is not CLOCK_MONOTONIC; the time of arrival is used instead"


class PollResult(NamedTuple):
    """What one poll of a run has read."""

    progress: Progress
    events: list[Event]  # in order of arrival
    reported: bool  # whether an epoch, or a report within one, was among them


@dataclass(frozen=True)
class RunObserver:
    """Reads what the ranks of one trial write; ``sources`` are open."""

    trial: Trial
    sources: Mapping[str, MetricSource]
    ranks: RunningRanks
    messages: Messages

    def observe(
        self, before: Progress, energy_between: EnergyBetween, *, final: bool = False
    ) -> PollResult:
        """Read what is new; return the progress with it, and the events."""
        events = self._read(before, final=final)
        # After the events, so that no report comes before the steps that led to it.
        progress = take_step_clock(before, self._count())
        reported = False
        for event in events:
            self.ranks.take(event)
            timely = self._correct_time(event, before.launched_t)
            last = progress
            progress = settle(advance(last, timely, self.trial, energy_between))
            reported |= progress.is_beyond(last)
        return PollResult(progress, events, reported)

    def _count(self) -> StepCount | None:
        """Return the step clock of the first rank, with the waits of the one that waits longest.

        The others wait for that one in their collectives.
        """
        count, ranks = self.ranks.count(), self.ranks
        if count is None or len(ranks.world) == 1:
            return count
        waits_s = [each.waits_s for each in ranks.counts().values()]
        longest = max(waits_s, default=count.waits_s, key=lambda each: each[0] or 0.0)
        return replace(count, waits_s=longest)

    def _read(self, progress: Progress, *, final: bool) -> list[Event]:
        events: list[Event] = []
        if not (final or progress.ranks.spawned) and progress.steps is None:
            events += self.ranks.find_others(progress.now_t, progress.launched_t)
        for name, source in self.sources.items():
            with self.messages.reading(name):
                # Output has no times. What comes with a change of the ranks was printed before it.
                changed = (n for n, event in enumerate(events) if isinstance(event, Regrouped))
                at = next(changed, len(events))
                events[at:at] = source.read(final=final)
            for warning in source.warnings:
                self.messages.warn_once(warning, warning)
        return events

    def _correct_time(self, event: Event, launched_t: float) -> Event:
        """Replace the time of an event from another clock by now: a wrong time is a wrong cost."""
        now_t = time.monotonic()
        if launched_t <= event.t <= now_t:
            return event
        self.messages.warn_once("clock", _OTHER_CLOCK)
        return replace(event, t=now_t)


def first_progress(spec: JobSpec, trial: Trial, earlier: Sequence[Trial]) -> Progress:
    """Return the progress of a trial that is about to start; ``earlier`` are of its job."""
    now_t = time.monotonic()
    return Progress(
        launched_t=now_t,
        now_t=now_t,
        seen={(trial.metric, "earlier part"): Seen(0.0, 0.0, 0)} if trial.curve else {},
        preferred=spec.metrics.source,
        replaced=spec.batch_size.default if spec.batch_size.apply == "dataloader" else None,
        best_value=trial.best_metric,
        known=find_known(trial, earlier),
        begins_at=find_first_epoch(trial, earlier),
        earlier=tuple(point.epoch for point in trial.curve if not is_baseline(point)),
        ranks=Ranks(trial.world_size),
    )


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
        messages = begun.messages
        neighbours = Neighbours(submission.home, on_cpu=not submission.gpus)
        self.meter = EnergyMonitor(
            submission.devices,
            paths.power,
            foreign=ForeignProcesses(),
            others=lambda: neighbours.shared,
        )
        flexible = spec.most_ranks is not None
        own = range(submission.own_ranks)
        ranks = RunningRanks(paths, own, submission.nodes, flexible=flexible)
        values = placeholder_values(spec, trial, paths)
        context = SourceContext(
            run_dir=paths.run_dir,
            workdir=spec.workdir_path(values),
            section=spec.metrics,
            metric=trial.metric,
            values=values,
            target=trial.target,
            mode=trial.mode,
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
    def messages(self) -> Messages:
        """What is said of the run."""
        return self.begun.messages

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

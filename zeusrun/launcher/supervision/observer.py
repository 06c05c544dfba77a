"""What was seen of a running trial: sources, step clocks and ranks become its progress."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.advance import advance
from zeusrun.metrics.doubt import find_known
from zeusrun.metrics.progress import Progress, settle, take_step_clock
from zeusrun.metrics.seen import Ranks, Seen
from zeusrun.metrics.spans import find_first_epoch
from zeusrun.sidecar.events import Regrouped
from zeusrun.trial import is_baseline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.supervision.ranks import RunningRanks
    from zeusrun.metrics.base import MetricSource
    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.sidecar.events import Event
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
        progress = take_step_clock(before, self.ranks.count())
        reported = False
        for event in events:
            self.ranks.take(event)
            timely = self._correct_time(event, before.launched_t)
            last = progress
            progress = settle(advance(last, timely, self.trial, energy_between))
            reported |= progress.is_beyond(last)
        return PollResult(progress, events, reported)

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

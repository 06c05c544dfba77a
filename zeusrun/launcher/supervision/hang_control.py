"""Finds a stalled training, asks every rank for its stack, reports and restarts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.launcher.rundir.failure import STALLED, Failure
from zeusrun.launcher.supervision.hang import (
    NO_PAUSES,
    STANDS_STILL,
    begin_again,
    describe_stall,
    find_stall,
    find_unusual_pause,
    seconds_text,
    watch_pauses,
)
from zeusrun.launcher.supervision.stacks import (
    describe_place,
    keep_stacks,
    read_frames,
    read_stack,
    size_of_stack,
)
from zeusrun.sidecar.events import Started
from zeusrun.sidecar.step_clock import read_step_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.supervision.hang import Stall
    from zeusrun.launcher.supervision.ranks import RankProcesses
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event
    from zeusrun.trial import Trial

_ANSWER_S = 3.0  # a rank that runs answers in milliseconds


@dataclass
class _Asked:
    """Ranks that were asked for their stacks.

    Attributes:
        at_t: Monotonic second.
        offsets: Size of each rank's stack file before; only of ranks that can answer.
        sizes: Size at the last poll.
    """

    at_t: float
    offsets: Mapping[int, int]
    sizes: Mapping[int, int]


class StallControl:
    """Handles the stalls of one trial. It is polled and never waits."""

    def __init__(
        self,
        spec: JobSpec,
        trial: Trial,
        paths: RunPaths,
        warn: Callable[[str], None],
        note: Callable[[str], None],
        *,
        ranks: RankProcesses,
    ) -> None:
        """Prepare; ``warn`` and ``note`` take sentences for the user."""
        self._after_s, self._restarts = spec.stall.after_s, spec.stall.action == "restart"
        self._active = spec.instrument and spec.stall.action != "off"
        self._max_restarts, self._max_epochs = spec.launch.max_restarts, trial.max_epochs
        self._paths, self._warn, self._note = paths, warn, note
        self._world = range(trial.world_size)
        self._processes = ranks
        self._pauses = NO_PAUSES
        self._stall: Stall | None = None
        self._asked: _Asked | None = None
        self._killed: Failure | None = None

    def take(self, event: Event) -> None:
        """Process an event of a rank."""
        if isinstance(event, Started):
            self._killed = None  # torchrun has started it again
            if event.restart:
                self._pauses = begin_again(self._pauses)

    def advance(self, progress: Progress, *, stopping: bool) -> None:
        """Read the step clocks; called about ten times a second.

        Args:
            progress: The trial now.
            stopping: Whether it is being stopped.
        """
        if not self._active:
            return
        counts = {rank: read_step_clock(self._paths.rank_clock(rank)) for rank in self._world}
        steps = {rank: count.steps for rank, count in counts.items() if count is not None}
        self._pauses = watch_pauses(self._pauses, progress.now_t, steps, progress.epochs)
        ending = stopping or progress.epochs >= self._max_epochs or bool(progress.ranks.exit_codes)
        found = None if ending else find_stall(self._pauses, self._after_s)
        if self._asked is not None:
            self._stall = found or self._stall
            self._collect(self._asked, progress, goes_on=found is None)
        elif self._stall is None and found is not None and self._processes.all_live():
            self._stall = found
            self._ask(progress.now_t)
        elif self._stall is not None and found is None:
            if not ending:
                self._note(
                    f"the training goes on by itself after {seconds_text(self._stall.standing_s)}"
                )
            self._stall = None
        elif self._stall is not None:
            self._stall = found

    def describe_pause(self) -> str | None:
        """Return how long there was no step; ``None`` if not longer than usual."""
        standing_s = find_unusual_pause(self._pauses)
        return None if standing_s is None else f"no optimizer step for {seconds_text(standing_s)}"

    def failure(self) -> Failure | None:
        """Return the stall for which the ranks were killed; ``None`` if they were not."""
        return self._killed

    def _ask(self, now_t: float) -> None:
        sizes = self._sizes(self._world)
        asked = [
            rank
            for rank in self._world
            if self._processes.ask_for_stack(rank, self._paths.rank_stack(rank))
        ]
        offsets = {rank: sizes[rank] for rank in asked}
        self._asked = _Asked(now_t, offsets, offsets)

    def _collect(self, asked: _Asked, progress: Progress, *, goes_on: bool) -> None:
        """Report the stacks once all are complete, or the time to answer is over."""
        sizes = self._sizes(asked.offsets)
        complete = sizes == asked.sizes and all(
            sizes[rank] > before for rank, before in asked.offsets.items()
        )
        if not complete and progress.now_t - asked.at_t < _ANSWER_S:
            asked.sizes = sizes
            return
        self._asked = None
        texts = {
            rank: read_stack(self._paths.rank_stack(rank), before)
            for rank, before in asked.offsets.items()
        }
        self._report(texts, progress, goes_on=goes_on)

    def _report(self, texts: Mapping[int, str], progress: Progress, *, goes_on: bool) -> None:
        if self._stall is None:
            return
        places = {rank: self._place(rank, texts.get(rank, "")) for rank in self._world}
        sentence = describe_stall(self._stall, places)
        try:
            stacks = {rank: texts.get(rank, "") for rank in self._world}
            keep_stacks(self._paths.stacks, sentence, stacks)
            kept = f"The stacks are in {self._paths.stacks}"
        except OSError as error:
            kept = f"The stacks could not be written: {error.strerror}"
        if goes_on or not self._restarts or not self._processes.all_live():
            self._warn(f"{sentence}. {kept}")
        else:
            self._warn(f"{sentence}. {kept}. {self._restart(sentence, progress)}")

    def _restart(self, sentence: str, progress: Progress) -> str:
        """Kill the ranks, so that torchrun restarts them; return a sentence on the result."""
        if not self._processes.kill():
            return "The ranks could not be killed: their processes are unknown"
        used_up = progress.ranks.generation >= self._max_restarts
        where = sentence.removeprefix(STANDS_STILL)
        reason = f"{STALLED}: {where}" + ("; no restart was left" if used_up else "")
        self._killed = Failure(None, out_of_memory=False, reason=reason)
        self._stall = None
        self._pauses = begin_again(self._pauses)
        left = "no restart is left (launch.max_restarts)" if used_up else "torchrun restarts them"
        return f"The ranks were killed; {left}"

    def _place(self, rank: int, text: str) -> str:
        place = describe_place(read_frames(text))
        if place is not None:
            return place
        state = self._processes.state(rank)
        return "at an unknown place" + ("" if state is None else f" ({state})")

    def _sizes(self, ranks: Iterable[int]) -> dict[int, int]:
        return {rank: size_of_stack(self._paths.rank_stack(rank)) for rank in ranks}

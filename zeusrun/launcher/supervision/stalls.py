"""Finds a stalled training, asks every rank for its stack, reports and restarts it.

A training has stalled if its optimizer steps pause for much longer than ever before. Only watched
time counts: while the machine is suspended, nobody watches.
"""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zeusrun
from zeusrun.files.private import open_for_writing
from zeusrun.launcher.rundir.failure import Failure
from zeusrun.reasons import ReasonCode, Stall, seconds_text
from zeusrun.sidecar.events import Started

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Messages
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.supervision.ranks import RunningRanks
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event

USUAL_PAUSES = 10.0  # a stall is longer than this many times the longest pause so far
FIRST_PATIENCE = 10.0  # times after_s, until the first end of an epoch was seen
MAX_SAMPLE_GAP_S = 1.0  # that counts between two samples, usually a tenth of a second apart
TOGETHER = 0.9  # ranks that wait for each other pause for almost as long

_ANSWER_S = 3.0  # a rank that runs answers in milliseconds

_THREAD = re.compile(r"^(Current thread|Thread) .*:$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_OWN = str(Path(zeusrun.__file__).parent)
_WORKER = str(Path(_OWN, "worker", "process", "__main__.py"))
# The ranks run under this interpreter, too (torchrun.py).
_LIBRARIES = (
    *{
        f"{path}/"
        for name, path in sysconfig.get_paths().items()
        if name.endswith(("lib", "lib64"))
    },
    f"{_OWN}/",
    "<",  # <frozen runpy>
)


@dataclass(frozen=True)
class RankPauses:
    """The pauses between the optimizer steps of a rank, in watched seconds."""

    steps: int
    # Since the last step; ``None`` before the first one since the rank started, because loading
    # data and compiling may take any time.
    standing_s: float | None = 0.0
    longest_s: float = 0.0
    knows_epochs: bool = False  # whether ``longest_s`` includes the end of an epoch

    def patience_s(self, after_s: float) -> float:
        """Return the seconds without a step after which the rank has stalled."""
        least_s = after_s if self.knows_epochs else FIRST_PATIENCE * after_s
        return max(least_s, USUAL_PAUSES * self.longest_s)


@dataclass(frozen=True)
class Pauses:
    """The pauses of the ranks that have counted a step, at the last sample."""

    ranks: Mapping[int, RankPauses]
    seen_t: float | None = None  # monotonic second; ``None`` before the first sample
    epochs: int = 0


@dataclass(frozen=True)
class Standstill:
    """A training without progress."""

    ranks: tuple[int, ...]  # those that take no step
    standing_s: float  # since the last step of the first of them
    longest_s: float  # its longest pause before


NO_PAUSES = Pauses({})


def watch_pauses(before: Pauses, now_t: float, steps: Mapping[int, int], epochs: int) -> Pauses:
    """Return the pauses after a sample of the step clocks at monotonic second ``now_t``."""
    if before.seen_t is None:  # these steps are from an earlier launch
        return Pauses({rank: RankPauses(count, None) for rank, count in steps.items()}, now_t)
    gap_s = min(max(0.0, now_t - before.seen_t), MAX_SAMPLE_GAP_S)
    ranks = {
        rank: _advance(before.ranks.get(rank), count, gap_s, knows_epochs=before.epochs > 0)
        for rank, count in steps.items()
    }
    return Pauses(ranks, now_t, epochs)


def _advance(
    before: RankPauses | None, steps: int, gap_s: float, *, knows_epochs: bool
) -> RankPauses:
    if before is None:
        return RankPauses(steps)
    if steps == before.steps:
        standing_s = None if before.standing_s is None else before.standing_s + gap_s
        return replace(before, standing_s=standing_s)
    if before.standing_s is None:  # the first one since a restart
        return replace(before, steps=steps, standing_s=0.0)
    longest_s = max(before.longest_s, before.standing_s + gap_s)
    return RankPauses(steps, 0.0, longest_s, knows_epochs or before.knows_epochs)


def begin_again(before: Pauses) -> Pauses:
    """Return the pauses after a restart: a rank is watched again from its next step."""
    ranks = {rank: replace(known, standing_s=None) for rank, known in before.ranks.items()}
    return replace(before, ranks=ranks)


def find_stall(pauses: Pauses, after_s: float) -> Standstill | None:
    """Return the stall of a training; ``None`` if all go on. Each may pause ``after_s``."""
    patience_s = {rank: of.patience_s(after_s) for rank, of in pauses.ranks.items()}
    stood_s = {rank: of.standing_s or 0.0 for rank, of in pauses.ranks.items()}
    stalled = [rank for rank in stood_s if stood_s[rank] > patience_s[rank]]
    if not stalled:
        return None
    first = max(stalled, key=lambda rank: stood_s[rank])
    ranks = [rank for rank in sorted(stood_s) if stood_s[rank] > TOGETHER * patience_s[rank]]
    return Standstill(tuple(ranks), stood_s[first], pauses.ranks[first].longest_s)


def find_unusual_pause(pauses: Pauses) -> float | None:
    """Return the longest pause now, in seconds; ``None`` if no rank pauses longer than usual."""
    longest_s = max((rank.standing_s or 0.0 for rank in pauses.ranks.values()), default=0.0)
    usual_s = max((rank.longest_s for rank in pauses.ranks.values()), default=0.0)
    return longest_s if longest_s > max(MAX_SAMPLE_GAP_S, USUAL_PAUSES * usual_s) else None


def build_stall(found: Standstill, places: Mapping[int, str]) -> Stall:
    """Return a stall, with where each rank is."""
    whose = "" if len(found.ranks) == len(places) else ranks_text(found.ranks)
    by_place: dict[str, list[int]] = {}
    for rank in sorted(places):
        by_place.setdefault(places[rank], []).append(rank)
    parts = [
        f"{ranks_text(ranks)} {'is' if len(ranks) == 1 else 'are'} {place}"
        for place, ranks in by_place.items()
    ]
    return Stall(found.standing_s, found.longest_s, whose, "; ".join(parts))


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    texts = [str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)


class StallControl:
    """Handles the stalls of one trial. No method blocks."""

    def __init__(
        self, spec: JobSpec, paths: RunPaths, messages: Messages, ranks: RunningRanks
    ) -> None:
        self._after_s, self._restarts = spec.stall.after_s, spec.stall.action == "restart"
        self._active = spec.instrument and spec.stall.action != "off"
        self._max_restarts = spec.launch.max_restarts
        self._paths, self._messages, self._ranks = paths, messages, ranks
        self._pauses = NO_PAUSES
        self.found: list[Stall] = []  # those that were reported
        self._stall: Standstill | None = None
        self._asked_t: float | None = None  # when the ranks were asked for their stacks
        self.failure: Failure | None = None  # the stall for which the ranks were killed

    def take(self, event: Event) -> None:
        """Process an event of a rank."""
        if isinstance(event, Started):
            self.failure = None  # torchrun has started it again
            if event.restart:
                self._pauses = begin_again(self._pauses)

    def advance(self, progress: Progress) -> None:
        """Read the step clocks and handle a stall. Called at each tick after the stop decision."""
        if not self._active:
            return
        steps = {rank: count.steps for rank, count in self._ranks.counts().items()}
        self._pauses = watch_pauses(self._pauses, progress.now_t, steps, progress.epochs)
        ending = progress.ending or bool(progress.ranks.exit_codes)
        found = None if ending else find_stall(self._pauses, self._after_s)
        if self._asked_t is not None:
            self._stall = found or self._stall
            self._collect(progress, progress.now_t - self._asked_t, goes_on=found is None)
        elif self._stall is None:
            if found is not None and self._ranks.all_live():
                self._stall, self._asked_t = found, progress.now_t
                self._ranks.ask_for_stacks()
        else:
            if found is None and not ending:
                self._messages.note(
                    f"the training goes on by itself after {seconds_text(self._stall.standing_s)}"
                )
            self._stall = found

    def describe_pause(self) -> str | None:
        """Return how long there was no step; ``None`` if not longer than usual."""
        standing_s = find_unusual_pause(self._pauses)
        return None if standing_s is None else f"no optimizer step for {seconds_text(standing_s)}"

    def _collect(self, progress: Progress, waited_s: float, *, goes_on: bool) -> None:
        """Report the stacks once all are complete, or the time to answer is over."""
        if not self._ranks.have_answered() and waited_s < _ANSWER_S:
            return
        self._asked_t = None
        if self._stall is None:
            return
        stacks, places = self._ranks.stacks(), {}
        for rank, text in stacks.items():
            state = self._ranks.state(rank)
            unknown = "at an unknown place" + ("" if state is None else f" ({state})")
            places[rank] = describe_place(read_frames(text)) or unknown
        stall = build_stall(self._stall, places)
        self.found.append(stall)
        sentence = f"the training has stalled: {stall.describe()}"
        try:
            keep_stacks(self._paths.stacks, sentence, stacks)
            where = f"The stacks are in {self._paths.stacks}"
        except OSError as error:
            where = f"The stacks could not be written: {error.strerror}"
        if goes_on or not self._restarts or not self._ranks.all_live():
            self._messages.warn(f"{sentence}. {where}")
        else:
            self._messages.warn(f"{sentence}. {where}. {self._restart(stall, progress)}")

    def _restart(self, stall: Stall, progress: Progress) -> str:
        """Kill the ranks, so that torchrun restarts them; return a sentence on the result."""
        if not self._ranks.kill():
            return "The ranks could not be killed: their processes are unknown"
        used_up = progress.ranks.generation >= self._max_restarts
        text = f"stalled: {stall.describe()}" + ("; no restart was left" if used_up else "")
        self.failure = Failure(None, text, ReasonCode.STALLED, cause="stalled")
        self._stall = None
        self._pauses = begin_again(self._pauses)
        left = "no restart is left (launch.max_restarts)" if used_up else "torchrun restarts them"
        return f"The ranks were killed; {left}"


class StackFrame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether the file is the user's: not of Python, of an installed package, or ours."""
        return not self.file.startswith(_LIBRARIES) and "/site-packages/" not in self.file


def read_frames(text: str) -> tuple[StackFrame, ...]:
    """Return the frames of the main thread, innermost first; empty if there are none.

    It runs our worker. In a child of the script it may be missing; then the signal's thread counts.
    """
    _, *parts = _THREAD.split(text)
    threads = list(zip(parts[::2], parts[1::2], strict=True))
    mains = [frames for _, frames in threads if f'"{_WORKER}"' in frames]
    current = [frames for name, frames in threads if name == "Current thread"]
    main = next(iter([*mains, *current]), "")
    return tuple(
        StackFrame(file, int(line), function) for file, line, function in _FRAME.findall(main)
    )


def describe_place(frames: tuple[StackFrame, ...]) -> str | None:
    """Return ``in all_reduce, train.py:33``: the innermost call, and the user's line before it."""
    if not frames:
        return None
    top = frames[0]
    users = next((frame for frame in frames if frame.is_users), top)
    line = f"{Path(users.file).name}:{users.line}"
    return f"at {line}" if top.function == "<module>" else f"in {top.function}, {line}"


def keep_stacks(path: Path, heading: str, texts: Mapping[int, str]) -> None:
    """Append the stacks of all ranks to one file; raises ``OSError``."""
    parts = [f"rank {rank}:\n{text or 'no answer'}\n" for rank, text in texts.items()]
    content = "\n".join([heading, "", *parts, ""]).encode()
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with os.fdopen(descriptor, "ab") as file:
        file.write(content)

"""What the launcher prints of the ranks of an elastic training, and how it chooses their number.

It shows each change of the ranks, and says who ended the training. Provisioning adds ranks one by
one as long as they pay. By throughput, the rule is that of KungFu (Mai et al., OSDI 2020): rank n
stays if the throughput T(n) is at least (1 + 1/(3n)) T(n - 1). By joules, it stays if a sample
takes fewer joules.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from zeusrun.elastic.rank.board import FOLDER
from zeusrun.elastic.section import read_steps
from zeusrun.files.private import replace_file
from zeusrun.launcher.supervision.agent import Agent
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.events import Regrouped
from zeusrun.trial.resizes import describe_resize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.elastic.rank.board import Board
    from zeusrun.elastic.section import Elastic, Provision
    from zeusrun.launcher.supervision.supervised import Supervised
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial.values import WorldChange

_KEYS = {"the schedule": "elastic.steps", "a policy": "elastic.policy"}
_ANNOUNCED = 2  # steps before a change
_SKIPPED = 2  # steps after each change
_HEAD = "step,seconds,ranks,samples_per_second,joules_per_sample,decision"
_LEAST, _SHARE = 30, 20  # steps of a measurement; at most this part of the training
_LEAST_S = {"joules": 1.0}  # of a measurement: energy is read ten times a second


class Changes(Agent):
    """Shows each change of the ranks, and records that a schedule or policy ended the training.

    Args:
        elastic: The section of the job file.
        run: The run.
    """

    def __init__(self, elastic: Elastic, run: Supervised) -> None:
        self._schedule = read_steps(elastic.steps) if elastic.steps else {}
        self._run, self._ended_by = run, ""

    def take(self, event: Event) -> None:
        """Show a change."""
        if isinstance(event, Regrouped) and event.number > 1:
            (change,) = Ranks().take(event).changes
            self._run.messages.note(f"{describe_resize(event.before, change)}: {event.why}")

    def end(self, board: Board) -> None:
        """Read who ended the training, once its ranks have ended and before the board is closed."""
        orders, wanted, by = board.wanted
        with contextlib.suppress(OSError):  # the script has deleted it
            if orders and not (wanted or self._run.ranks.exit.code or board.members):
                self._ended_by = _KEYS.get(by, by)

    def conclude(self, progress: Progress) -> None:
        """Say who ended the training, and which entries of the schedule had no effect."""
        run, steps = self._run, progress.steps or 0
        if self._ended_by:
            ended = f"{self._ended_by} ended the training, after {steps} steps"
            run.control.take_end(ended)
            run.messages.note(ended)  # the reason of a run that reached its target does not say it
        late = find_late(self._schedule, progress.ranks.changes, steps)
        if late and not run.ranks.exit.code:
            run.messages.warn(f"elastic.steps: {'; '.join(late)}")


def find_late(schedule: Mapping[int, int], changes: Sequence[WorldChange], steps: int) -> list[str]:
    """Return the entries of a schedule that had no effect in time, as sentences.

    Args:
        schedule: The number of ranks by the step after which it is due; 0 ends the training.
        changes: The numbers of ranks of the run, the first one included.
        steps: Of the whole training.
    """
    found, begins = [], [each.step or 0 for each in changes]
    spans = list(zip(changes, begins, [*begins[1:], math.inf], strict=False))
    for (due, size), until in zip(schedule.items(), [*schedule, math.inf][1:], strict=True):
        had = any(
            each.world_size == size and due < end and begin <= until + _ANNOUNCED
            for each, begin, end in spans
        )
        if size and changes and not had:
            before = f"step {until}" if until < steps else f"the end, after {steps} steps"
            what = f"{size} rank{'s' * (size > 1)} after step {due}"
            found.append(f"{what} did not take effect before {before}")
    return found


class Provisioning(Changes):
    """Orders one rank more or one rank less, by what a rank adds."""

    def __init__(self, elastic: Elastic, section: Provision, run: Supervised, board: Board) -> None:
        super().__init__(elastic, run)
        trial = run.begun.trial
        is_scaled = elastic.batch_size == "scaled"

        def samples(ranks: int) -> float:
            return trial.global_batch_size * (ranks / trial.world_size if is_scaled else 1.0)

        note = _open_table(run.begun.paths.run_dir / FOLDER / "provision.csv")
        self._board, self._epochs = board, trial.max_epochs
        energy_between = run.meter.energy_between
        self._provisioner = Provisioner(section, elastic.max, energy_between, samples, note)

    def advance(self, progress: Progress) -> None:
        """Order another number of ranks, if a change is due."""
        ranks, count = progress.ranks, self._run.ranks.count()
        if count is None:
            return
        lengths = [each.steps_per_epoch for each in progress.observed.values()]
        planned = self._epochs * max((each or 0 for each in lengths), default=0) or None
        size = self._provisioner.advance(len(ranks.changes), ranks.world_size, count, planned)
        if size is not None:
            self._board.order(size, "provisioning")


def _open_table(path: Path) -> Callable[[Sequence[object]], None]:
    """Return a function that adds a row to a new table of what was measured."""
    lines = [_HEAD]

    def note(row: Sequence[object]) -> None:
        shown = (f"{each:.6g}" if isinstance(each, float) else f"{each or ''}" for each in row)
        lines.append(",".join(shown))
        with contextlib.suppress(OSError):  # a full disk
            replace_file(path, "\n".join([*lines, ""]).encode(), durable=False)

    return note


class Provisioner:
    """Measures each number of ranks for some steps, and decides on the next.

    Args:
        section: By what it decides, and how long it measures.
        most: How many ranks there may be.
        energy_between: Returns joules between two monotonic seconds; ``None``: unknown.
        samples: Returns those of a step over so many ranks.
        note: Called with a row after each measurement: steps, seconds since the first step, ranks,
            samples a second, joules a sample or ``None``, and the decision.
    """

    def __init__(
        self,
        section: Provision,
        most: int,
        energy_between: Callable[[float, float], float | None],
        samples: Callable[[int], float],
        note: Callable[[Sequence[object]], None],
    ) -> None:
        self._samples, self._note = samples, note
        self._by, self._every, self._most = section.by, section.every, most
        self._energy_between = energy_between
        self._generation: int | None = None  # the one that is measured
        self._begin = 0  # the step after which its measurement begins
        self._since: StepCount | None = None  # the clock at that step
        self._has_asked = False
        self._known: dict[int, float] = {}  # samples a second, or a joule, by ranks
        self.has_ended = False

    def advance(
        self, generation: int, size: int, count: StepCount, planned: int | None = None
    ) -> int | None:
        """Take in the step clock of rank 0; return another number of ranks, if that is due.

        Args:
            generation: The number of the present one; another one is measured from its start.
            size: Its ranks.
            count: The clock.
            planned: Steps of the whole training; ``None``: unknown.
        """
        if self._generation != generation:
            self._generation, self._begin = generation, count.steps + _SKIPPED
            self._since, self._has_asked = None, False
        elif self._since is None and count.steps >= self._begin:
            self._since = count
        if self.has_ended or self._has_asked or self._since is None:
            return None  # a newcomer that starts slows these ranks down
        steps, since_t = count.steps - self._since.steps, self._since.last_step_t
        if steps < min(self._every, max(_LEAST, (planned or math.inf) / _SHARE)):
            return None
        seconds, samples = count.last_step_t - since_t, steps * self._samples(size)
        if seconds < _LEAST_S.get(self._by, 0.0):
            return None
        joules = self._energy_between(since_t, count.last_step_t) if seconds > 0 else None
        spent = joules if self._by == "joules" else seconds
        if not spent or spent < 0:
            return None
        self._known[size], self._has_asked = samples / spent, True
        wanted = self._choose(size)
        decision = "stay" if wanted is None else "add a rank" if wanted > size else "remove a rank"
        rates = samples / seconds, None if joules is None else joules / samples
        self._note((count.steps, count.last_step_t - count.first_step_t, size, *rates, decision))
        return wanted

    def _choose(self, size: int) -> int | None:
        before, gain = self._known.get(size - 1), 1.0
        if self._by == "throughput":
            gain += 1 / (3 * size)
        if before is not None and self._known[size] < gain * before:
            self.has_ended = True
            return size - 1
        self.has_ended = size >= self._most
        return None if self.has_ended else size + 1

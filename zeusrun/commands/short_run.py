"""Runs a drafted job once, for an epoch or a few steps, in a home of its own."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.choice.problem import Forced
from zeusrun.commands.compose import compose
from zeusrun.commands.options import open_home
from zeusrun.errors import ExitCode
from zeusrun.files.tail import LineTail
from zeusrun.history.registry import open_history
from zeusrun.launcher.attempts.recurrence import submit
from zeusrun.launcher.events import Advanced, Noted, Printed, TrialStarts
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import admitted, check_not_ended
from zeusrun.launcher.redact import mask_job
from zeusrun.metrics.printed import shows_evaluation
from zeusrun.metrics.progress import Progress
from zeusrun.metrics.propose import propose
from zeusrun.metrics.propose_pattern import propose_pattern
from zeusrun.metrics.rows import HANDFUL, SourceContext
from zeusrun.metrics.seen import CONTROLLING, names_an_evaluation
from zeusrun.metrics.stdout import split_states
from zeusrun.plain_text import plain_text
from zeusrun.sidecar.events import REPORT
from zeusrun.trial import TrialStatus
from zeusrun.view.console import lasting_console
from zeusrun.view.live import SubmitView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TextIO

    from zeusrun.jobfile.guess.guess import Guess
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.metrics.propose import Proposal
    from zeusrun.metrics.propose_pattern import Shape
    from zeusrun.trial import Trial

TRY_S = 120
"""Seconds that a run may train whose number of epochs cannot be set."""

START_S = 900
"""Seconds until its first step or result; a script may need minutes to import and to read data."""

ALONE = (
    "objective.on_target=continue",
    "objective.missing_metric=continue",
    "policy.name=fixed",
    "attempts=1",
    "launch.max_restarts=0",
    "early_stop.cost_factor=null",
    "power_limit.mode=observe",
    "stall.action=off",
)
"""Overrides with which a job runs once, until it ends or is stopped."""

_MAX_PRINTED_BYTES = 256 << 10
_FEW = 4  # lines, which show no rule


class Tried(NamedTuple):
    """What a run has shown."""

    trial: Trial
    code: int
    progress: Progress
    printed: list[str]  # by rank 0 at the end, in training where its steps are seen; no colours
    ended: bool  # by the user, or by another zeusrun
    finished: bool  # whether it came to its own end, and not because of a crash
    is_part: bool = False  # whether its number of epochs was set

    @property
    def failed(self) -> bool:
        """Whether it crashed; a run that only lacks the metric has failed, too, but by no cause."""
        crashed = self.trial.status is TrialStatus.FAILED and self.trial.cause is not None
        return crashed or self.trial.status is TrialStatus.OOM

    @property
    def reason(self) -> str:
        """Why it ended, for people."""
        return plain_text(self.trial.reason or "it was stopped")

    @property
    def idle(self) -> str | None:
        """Why there is nothing to see of it; ``None`` if it has trained."""
        if self.progress.steps or self.progress.ranks.spawned:
            return None
        if self.code == ExitCode.TIMED_OUT:
            return f"It was stopped after {START_S + TRY_S:g} s, before its first optimizer step."
        return "The run made no optimizer step: see its output above."

    @property
    def is_whole(self) -> bool:
        """Whether that was all of the training, and not what was left of it by ``max_epochs``.

        A script may ask zeusrun when to end, and some hooks end the training.
        """
        hooks = self.progress.hooks
        controlled = any(hook.library in CONTROLLING and hook.problem is None for hook in hooks)
        return self.finished and not (self.is_part or controlled or "stop" in self.progress.asked)

    @property
    def all_epochs(self) -> int | None:
        """How many passes over its data a whole training has made; ``None`` if that is unknown."""
        return (self.progress.passes or None) if self.is_whole else None

    @property
    def _each_step(self) -> float:
        """How many lines there are at least if they are printed in each step, or each handful."""
        progress = self.progress
        if not progress.passes:
            return math.inf
        least = max(progress.passes, progress.others)  # those of epochs and evaluations
        return max(_FEW, 2 * least + 1, (progress.steps or 0) / HANDFUL)

    def propose(self, guess: Guess) -> tuple[Proposal | None, Shape | None]:
        """Return a proposal, and the pattern that it needs, if any."""
        seen, likely, monitor = self.progress.seen, guess.metric, guess.monitor
        proposal = propose(seen, likely, monitor)
        if proposal is not None:
            return proposal, None
        read_by = likely, self._each_step, monitor, self.progress.others
        shape = propose_pattern(self.printed, *read_by)
        return (shape.proposal if shape else None), shape


def overrides(guess: Guess) -> list[str]:
    """Return what makes one short run of the job, whatever its metrics are."""
    size = guess.ranks if guess.batch is None else guess.batch.default
    return [
        *ALONE,
        f"objective.metric={guess.metric}",
        "objective.target=0",
        "objective.max_epochs=1",
        f"batch_size.default={size}",
        f"batch_size.candidates=[{size}]",
        *([] if guess.max_epochs else [f"timeout_s={START_S + TRY_S}"]),
    ]


class _Watch:
    """Follows a run: where in its log training begins, and when an epoch has been evaluated."""

    def __init__(self) -> None:
        self.log: Path | None = None
        self._untrained = self._bytes = 0  # of the log, printed before the first step
        self._looks = self._before = 0
        self._heading = ""  # the last line, if it ends in a colon
        self._at_step: int | None = None  # when the first evaluation after training was seen
        self._trained = False
        self._begun_t: float | None = None  # when there was something to see
        self.trained_s = 0.0  # since then

    def take_lines(self, lines: Iterable[str]) -> None:
        """Take in what rank 0 printed; the words of a result may stand on a line before it."""
        for line in lines:
            self._looks += shows_evaluation(f"{self._heading} {line}")
            self._heading = line if line.rstrip().endswith(":") else ""

    def read_printed(self) -> list[str]:
        """Return what rank 0 printed in training, at the end; all of it where no step was seen."""
        if self.log is None:
            return []
        tail, printed = LineTail(self.log), list[str]()
        since = self._untrained - 1 if self._trained and self._untrained else 0
        tail.skip_backlog(min(_MAX_PRINTED_BYTES, _size(self.log) - since))
        with contextlib.suppress(OSError):
            while lines := tail.read_lines(final=True):
                printed += (state for line in lines for state in split_states(line))
        return [line for line, _ in itertools.groupby(printed)]  # twice in a row is one look

    def take(self, progress: Progress) -> bool:
        """Take in how far the run is; return whether it trains on after an evaluation."""
        looks = self._looks + sum(
            seen.times
            for (name, source), seen in progress.seen.items()
            if source == REPORT or names_an_evaluation({name: 0.0})
        )
        if progress.steps is None and self.log is not None:
            # The step clock is read before the log, so the look before this one is certain.
            self._untrained, self._bytes = self._bytes, _size(self.log)
        if self._begun_t is None and (progress.steps is not None or looks):
            self._begun_t = progress.now_t
        self.trained_s = 0.0 if self._begun_t is None else progress.now_t - self._begun_t
        if not self._trained:
            self._trained, self._before = progress.steps is not None, looks
        elif self._at_step is None and looks > self._before:
            self._at_step = progress.steps
        return self._at_step is not None and (progress.steps or 0) > self._at_step


def run_shortly(
    spec: JobSpec,
    *,
    whole: bool = False,
    size: int | None = None,
    is_enough: Callable[[Progress], bool] | None = None,
    stream: TextIO | None = None,
) -> Tried:
    """Run the job once; the user's home lends the GPUs and records nothing.

    Unless it is to run as a ``whole``, it is stopped when it trains on after an evaluation, or when
    ``is_enough`` returns true; after ``TRY_S`` of training at the latest. ``size`` is that of its
    batches, if not the default. ``stream`` gets what the ranks print; ``None``: standard output.
    """
    home, history = open_home()
    progress, watch, stopped = Progress(0.0, 0.0), _Watch(), False
    with (
        CaughtSignals() as signals,
        SubmitView(lasting_console(stream or sys.stdout), quiet=False) as view,
        tempfile.TemporaryDirectory(prefix="zeusrun-try-", ignore_cleanup_errors=True) as folder,
    ):

        def consume(event: SubmitEvent) -> None:
            nonlocal progress, stopped
            if isinstance(event, TrialStarts):
                watch.log = SourceContext(Path(event.trial.run_dir), scratch).log
            elif isinstance(event, Advanced):
                progress = event.progress
                enough, what = watch.take(progress), "it has evaluated an epoch"
                if is_enough is not None:
                    enough, what = is_enough(progress), "enough steps are made"
                if not enough and watch.trained_s > TRY_S:
                    enough, what = True, f"it has trained for {TRY_S} s"
                if enough and not (whole or stopped or signals.received):
                    stopped = True
                    view.show(Noted(f"stopping: {what}"))
                    signals.received.append(signal.SIGINT)  # as if the user pressed Ctrl-C
            elif isinstance(event, Printed):  # warnings would be about the overrides
                view.show(event)
                if event.rank == 0:
                    watch.take_lines(event.lines)

        waiting = admitted(spec, home, history, signals=signals.received, show=lambda _: None)
        with waiting as gpus:
            scratch = Path(folder)
            forced = None if size is None else Forced(size, "chosen by --try")
            place = scratch, open_history(scratch, {})
            submission = compose(spec, forced, gpus, place=place, signals=signals.received)
            environment = {**submission.environment, "ZEUSRUN_HOME": folder}
            submission = replace(submission, environment=environment)
            with contextlib.closing(submission):
                check_not_ended(spec.name, signals.received)
                result = submit(submission, consume)
            mask = mask_job(spec, {})
            printed = [line for line in watch.read_printed() if mask.text(line) == line]
    code = result.exit_code
    ended = not stopped and (code == ExitCode.BUSY or code >= ExitCode.SIGNAL_BASE)
    crashed = result.trials[-1].cause is not None
    finished = not (stopped or ended or crashed or code == ExitCode.TIMED_OUT)
    return Tried(result.trials[-1], code, progress, printed, ended, finished)


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0

"""Runs one recurrence of a job on this machine, shows it, and sends its notices."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.analysis.savings import find_savings
from zeusrun.clock import read_clock
from zeusrun.commands import options
from zeusrun.commands.compose import compose
from zeusrun.errors import BusyError, ExitCode, HistoryError, ZeusrunError
from zeusrun.history.base import NEWEST, UnavailableError
from zeusrun.jobfile.secrets import find_exposed
from zeusrun.launcher.attempts.recurrence import submit as run_submit
from zeusrun.launcher.context import holding_limits
from zeusrun.launcher.events import FoundLost, Noted, Warned
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import admitted, check_not_ended
from zeusrun.launcher.redact import restore_secrets
from zeusrun.launcher.script_warnings import find_script_warnings
from zeusrun.maintenance.recover import clean_up
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json, result_json
from zeusrun.view.live import SubmitView

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import ModuleType

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit, SubmitEvent
    from zeusrun.launcher.queue.admission import Request
    from zeusrun.launcher.queue.tickets import HeldTicket
    from zeusrun.notify.notices import Notice
    from zeusrun.run_on.registry import Allocation
    from zeusrun.trial import Trial

_POLL_S = 0.2  # a wait for the history ends so soon after a signal


def run_recurrence(
    spec: JobSpec,
    request: Request,
    *,
    begun: Callable[[], None] = lambda: None,
    as_json: bool = False,
    allocation: Allocation | None = None,
    ticket: HeldTicket | None = None,
) -> dict[str, Any]:
    """Wait until the job may start, then run one recurrence and show it.

    ``begun`` is called after the wait. ``allocation`` and ``ticket`` are those of a scheduler's job
    of which this is the batch step.

    Returns:
        What ``submit --json`` prints as its last line.
    """
    shown = lasting_console(sys.stderr if as_json else sys.stdout)
    trials: list[Trial] = []
    began = False
    # Signals are caught until everything is recorded, notified and cleaned up.
    kept = allocation is None or allocation.keeps_files is not False
    view = SubmitView(shown, quiet=request.quiet, kept=kept)
    with CaughtSignals() as signals, view:
        messages = _HistoryMessages(spec.name, view, signals)
        home, history = options.open_own(spec, show=messages.append, pause=messages.pause)
        notify = functools.partial(send_notices, spec, home, lambda text: view.show(Warned(text)))

        def consume(event: SubmitEvent) -> None:
            messages.show()
            view.show(event)
            if isinstance(event, FoundLost):
                notify(lambda notices: notices.lost_notices(event.trials))

        try:
            with admitted(
                spec,
                home,
                history,
                request=request,
                signals=signals.received,
                show=lambda text: view.show(Noted(text)),
                ticket=ticket,
            ) as gpus:
                begun()
                submission = compose(
                    spec,
                    request.forced,
                    gpus,
                    place=(home, history),
                    signals=signals.received,
                    emit=view.show,
                    allocation=allocation,
                )
                with contextlib.closing(submission):
                    check_not_ended(spec.name, signals.received)
                    submission = prepare(submission, consume)
                    check_not_ended(spec.name, signals.received)
                    began = True
                    with holding_limits(submission, consume) as submission:
                        result = run_submit(submission, consume)
                if result.attempts > 1 and result.exit_code == ExitCode.TARGET_MISSED:
                    view.show(Warned(f"the target was missed in {result.attempts} attempts"))
                with contextlib.suppress(HistoryError):  # the recurrence is recorded
                    trials = history.trials(spec.name, NEWEST)
                notify(lambda notices: notices.build_notices(trials, result))
        except ZeusrunError as error:
            if began or not isinstance(error, BusyError):  # a skipped run is not a failure
                failure = error  # Python deletes ``error`` at the end of the except clause
                notify(lambda notices: [notices.failure_notice(spec.name, failure)])
            raise
        finally:
            messages.show()
        _remove_old_runs(spec, history, home, view, signals.received)
    savings = find_savings(trials)
    if savings.explored and not request.quiet:
        from zeusrun.view.tables import savings_block  # noqa: PLC0415 - nothing is saved before

        for block in savings_block(savings):
            shown.print(block, soft_wrap=not shown.is_terminal)  # as SubmitView prints
    record = result_json(spec.name, result, savings)
    if as_json:
        print_json(record)
    return record


def prepare(submission: Submission, emit: Emit) -> Submission:
    """Clean up after dead launchers, and warn of the job and its script; restore its secrets."""
    spec = restore_secrets(submission.spec, submission.environment)
    inside = None if submission.allocation is None else submission.allocation.name
    clean_up(submission.history, submission.home, spec.name, inside, emit)
    remarks = [] if submission.cluster is None else submission.cluster.remarks
    exposed = find_exposed(spec.secrets, spec.source)
    for text in [*exposed, *find_script_warnings(spec), *remarks]:
        emit(Warned(text))
    return replace(submission, spec=spec)


class _HistoryMessages:
    """The messages of a shared history, from any thread; the main thread shows them."""

    def __init__(self, job: str, view: SubmitView, signals: CaughtSignals) -> None:
        self._job, self._view, self._signals = job, view, signals
        self._texts: deque[str] = deque()
        self.append = self._texts.append

    def show(self) -> None:
        """Show the messages that have come."""
        while self._texts:
            self._view.show(Warned(self._texts.popleft()))

    def pause(self, seconds: float) -> None:
        """Wait for the history; raises ``BusyError`` if a signal comes."""
        self.show()
        until_t = time.monotonic() + seconds
        while (left_s := until_t - time.monotonic()) > 0:
            check_not_ended(self._job, self._signals.received)
            time.sleep(min(_POLL_S, left_s))


def send_notices(
    spec: JobSpec,
    home: Path,
    warn: Callable[[str], None],
    build: Callable[[ModuleType], Sequence[Notice]],
) -> None:
    """Send notices of a job, if it wants any; ``warn`` is told why that fails.

    ``build`` gets the module of notices, which few jobs need.
    """
    if spec.notify.url is None and not spec.notify.command:
        return
    from zeusrun.notify import notices  # noqa: PLC0415 - see above

    try:
        if found := build(notices):
            notices.send(home, spec, found, os.environ)
    except (OSError, HistoryError) as error:  # the recurrence is recorded
        warn(f"no notice could be sent: {error}")


def _remove_old_runs(
    spec: JobSpec, history: History, home: Path, view: SubmitView, signals: Sequence[int]
) -> None:
    """Remove run directories beyond the job's ``keep``. After a signal the next run continues."""
    if spec.keep.last is None:
        return
    from zeusrun.maintenance import retention  # noqa: PLC0415 - few jobs have it

    try:
        old = retention.collect(history, home, spec.name, spec.keep.last, read_clock())
    except UnavailableError:
        return  # the next submit removes them
    except HistoryError as error:  # the recurrence is recorded
        view.show(Warned(f"old runs are not removed: {error}"))
        return
    for run in old:
        if not signals:
            retention.remove(run)

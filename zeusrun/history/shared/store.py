"""A shared history as a machine uses it: it survives a server that does not respond."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError
from zeusrun.history import base, rules
from zeusrun.history.shared.copy import CopyError, LocalCopy
from zeusrun.history.shared.spool import PATIENCE_S, Patience, Spool, add_lost, deliver, newer
from zeusrun.history.turns import Turn
from zeusrun.job_name import check_job_name
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zeusrun.history.http.client import HttpHistory
    from zeusrun.trial import Outcome, Trial

_Result = TypeVar("_Result")
Offline = Literal["fail", "cheapest"]
"""What a submit does if the history does not respond for too long."""

_NOT_BEGUN = "it could not be begun: the shared history did not respond"


class SharedHistory(base.History):
    """The client of a server's history, with a local copy and a spool for offline writes.

    Reads ask the remote history only for what has changed. If it does not respond, they return the
    local copy. A request that fails for that reason is made again, after pauses that grow
    (exponential backoff with full jitter). Results that cannot be delivered wait in the spool.
    """

    def __init__(
        self,
        remote: HttpHistory,
        folder: Path,
        name: str,
        *,
        wait_s: float = PATIENCE_S,
        offline: Offline = "fail",
        show: Callable[[str], None] = lambda _text: None,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            remote: The history on the server.
            folder: The directory of the copy and the spool.
            name: The address of the server.
            wait_s: How many seconds ``snapshot`` and ``begin`` try to reach the server.
            offline: What ``snapshot`` does after that: raise, or return the local copy.
            show: Shows a sentence to the user.
            pause: Waits between two tries of ``snapshot`` and ``begin``; it may raise to give up.
                ``None``: the caller only reads, and is informed if it reads the local copy.
        """
        self.remote, self.name, self.spool = remote, name, Spool(folder / "spool")
        self._copy = LocalCopy(folder / "copy.db")
        self._wait_s, self._mode, self._show = wait_s, offline, show
        self._pause, self._only_reads = pause or time.sleep, pause is None
        self._own: dict[str, Trial] = {}  # what this process began, by id and uuid
        self._shown: set[str] = set()
        self._patience = Patience(self.tell)
        self._unwritable: base.OfflineError | None = None  # since the last trial could not begin

    # What every history can do.

    def jobs(self) -> list[str]:
        """See ``History.jobs``."""
        begun = {each.job for each in self.spool.trials().values()}
        try:
            names = self._patience.read(self.remote.jobs)
        except base.UnavailableError as error:
            begun.update(self._copy.jobs())
            if not begun:
                raise
            self._tell_offline(error, *begun)
            names = []
        return sorted({*names, *begun})

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``."""
        check_job_name(job)
        try:
            found = self._patience.read(lambda: self._copied(job, last))
        except base.UnavailableError as error:
            found = self._offline(job, last, error)
        return self.spool.merge(job, found.trials, last)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        check_job_name(job)
        waiting = self.spool.entries()
        new = sum(each.kind == "begin" and each.trial.job == job for each in waiting)
        try:
            total = self._patience.read(lambda: self.remote.count(job))
        except base.UnavailableError as error:
            self._offline(job, 0, error)
            total = state.total if (state := self._copy.state(job)) is not None else 0
        return total + new

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``; not by the copy, which is wrong after a restored backup."""
        check_job_name(job)
        try:
            known: Sequence[Trial] = self._patience.read(lambda: self.remote.unfinished(job))
        except base.UnavailableError as error:
            known = self._offline(job, None, error).trials
        trials = self.spool.merge(job, known)
        return [trial for trial in trials if not trial.status.finished]

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``; the id that a trial had offline is found, too."""
        waiting = self._waiting_trial(trial)
        job = rules.offline_job(trial)
        try:
            if job is not None and self._key(trial) == trial:  # delivered since it was copied
                self._patience.read(lambda: self._copied(job, 0))
            found = self._patience.read(lambda: self.remote.find(self._key(trial)))
        except base.UnavailableError as error:
            found = self._copy.find(trial)
            either = found or waiting
            if either is None:
                raise
            self._tell_offline(error, either.job)
        return newer(found, waiting)

    def snapshot(self, job: str, last: int | None = None) -> base.Snapshot:
        """See ``History.snapshot``. Waiting results are delivered first.

        If ``offline`` is ``cheapest`` and the history does not respond for ``wait_s``, or no trial
        could begin since the last success of ``begin`` or ``renew``, this is the local copy.
        """
        check_job_name(job)

        def read() -> base.Snapshot:
            self.deliver()
            return self._copied(job, last)

        try:
            if self._unwritable is not None:  # although it can perhaps be read
                raise self._unwritable
            return self._call_long(read)
        except base.OfflineError as error:
            self.tell(f"{error}; zeusrun chooses by its local copy")
            trials: Sequence[Trial] = ()
            with contextlib.suppress(base.UnavailableError):
                trials = self._offline(job, last, error).trials
            return base.Snapshot(tuple(self.spool.merge(job, trials, last)), "", offline=True)

    def ask_turn(self, job: str, number: int = 0) -> Turn:
        """See ``History.ask_turn``; one that renews is tried once. Offline there is no queue."""
        if number:
            return self.remote.ask_turn(job, number)
        if self._unwritable is None:
            try:
                return self._call_long(lambda: self.remote.ask_turn(job))
            except base.OfflineError as error:
                self._unwritable = error
        return Turn(0)

    def leave_turn(self, job: str, number: int) -> None:
        """See ``History.leave_turn``; tried once, and not soon after a failure."""
        self._patience.check()
        self.remote.leave_turn(job, number)

    def _call_long(self, call: Callable[[], _Result]) -> _Result:
        """Call until the history is there, for ``wait_s``; raises as ``begin`` does."""
        try:
            return self._patience.keep_calling(call, self._wait_s, self._pause)
        except base.UnavailableError as error:
            if self._mode != "cheapest":
                raise self._given_up(error) from None
            raise base.OfflineError(str(error)) from error

    def begin(self, trial: Trial, *, after: str, turn: int = 0) -> Trial:
        """See ``History.begin``. A trial with the id of an offline one is only stored here.

        Raises:
            UnavailableError: If the history does not respond for ``wait_s``.
            OfflineError: The same if ``offline`` is ``cheapest``: choose again, offline.
        """
        if rules.is_offline(trial):
            self.spool.put("begin", trial)
            return self._remember(trial)
        sent: list[str] = []

        def send() -> Trial:
            sent.append(after)
            return self.remote.begin(trial, after=after, turn=turn)

        try:
            begun = self._call_long(send)
        except (base.Conflict, ValueError):
            raise
        except BaseException as error:
            # A first request may have been stored, and its answer lost.
            if len(sent) > 1 or not isinstance(error, base.RefusedError):
                self._withdraw(trial)
            self._unwritable = error if isinstance(error, base.OfflineError) else None
            raise
        self._unwritable = None
        return self._remember(begun)

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``. If that fails for now, the outcome waits in the spool."""
        waiting = self._waiting_trial(trial)
        if waiting is not None:  # the trial began offline, or has an outcome that waits
            return self._finish_later(waiting.finish(outcome))
        patience_s = 0.0 if self._patience.is_over else PATIENCE_S
        try:
            return self._patience.keep_calling(
                lambda: self.remote.finish(self._key(trial), outcome), patience_s
            )
        except HistoryError as error:
            known = self._own.get(trial)
            if known is None and not isinstance(error, base.UnknownTrialError):
                known = self._copy.find(trial)
            if known is None:
                raise
            return self._finish_later(known.finish(outcome))

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._patience.read(
            lambda: self.remote.forget(self._key(trial), forgotten=forgotten)
        )

    def renew(self, trial: str, live: dict[str, Any] | None = None) -> bool:
        """See ``History.renew``. It is tried once; if that succeeds, what waits is delivered."""
        try:
            is_cancelled = self.remote.renew(self._key(trial), live)
        except base.UnknownTrialError:  # it began offline
            self.deliver()
            is_cancelled = self.remote.renew(self._key(trial), live)
        self._patience.renew()
        self._unwritable = None
        self.deliver()
        return is_cancelled

    def ask_to_cancel(self, trial: str) -> bool:
        """See ``History.ask_to_cancel``."""
        return self._patience.read(lambda: self.remote.ask_to_cancel(self._key(trial)))

    def live(self, trial: str) -> dict[str, Any] | None:
        """See ``History.live``."""
        return self._patience.read(lambda: self.remote.live(self._key(trial)))

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``."""
        return self._patience.read(lambda: self.remote.add(trials))

    def report_host(self, host: str, facts: dict[str, Any]) -> None:
        """See ``History.report_host``; tried once, unless the history did not respond just now."""
        self._patience.check()
        self.remote.report_host(host, facts)

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """See ``History.keep_trace``; one try, and none soon after a failed request."""
        self._patience.check()
        self.remote.keep_trace(self._key(trial), trace)

    def keep_settings(self, job: str, settings: str) -> None:
        """See ``History.keep_settings``; tried once, and not soon after a failure."""
        self._patience.check()
        self.remote.keep_settings(job, settings)

    def address(self, job: str) -> str:
        """See ``History.address``."""
        del job
        return self.name

    def deliver(self) -> None:
        """See ``History.deliver``."""
        deliver(self.spool, self.remote, self.tell)

    def restore(self, job: str, found: Sequence[Trial]) -> base.Restoration:
        """See ``History.restore``.

        Trials of an earlier history of this machine stay away: their numbers may be others' by now.
        """
        self.deliver()
        known = {each.uuid for each in self.remote.trials(job)}
        lost = [each for each in found if each.status.finished and each.uuid not in known]
        try:
            for trial in sorted(lost, key=rules.place_of):
                add_lost(trial, self.remote, self.tell)
        except ValueError as error:
            raise HistoryError(f"{self.name} refuses a run of {job}: {error}") from error
        names = tuple(trial.trial for trial in lost)
        return base.Restoration(None, None, self.remote.count(job), names, (), None, (), ())

    def tell(self, text: str) -> None:
        """See ``History.tell``."""
        if text not in self._shown:
            self._shown.add(text)
            self._show(text)

    def _finish_later(self, finished: Trial) -> Trial:
        """Store an outcome in the spool, and deliver it at once if the history is there.

        One that has lost the trial then gets the whole of it.
        """
        path = self.spool.put("finish", finished)
        try:
            self._patience.check()
            self.deliver()
            found = self.remote.find(finished.uuid)
        except HistoryError as error:
            self._show(
                f"{error}; the result of {finished.trial} waits in {path}, and is delivered later"
            )
            return finished
        return finished if found is None or not found.status.finished else found

    def _withdraw(self, trial: Trial) -> None:
        """End a trial that was perhaps begun, although no answer came."""
        status = TrialStatus.PREEMPTED if trial.preemptions else TrialStatus.CANCELLED
        ended = trial.finish(trial.ended_as(status, ReasonCode.NOT_BEGUN, _NOT_BEGUN, timestamp()))
        with contextlib.suppress(HistoryError):  # else its lease expires
            self.spool.put("withdraw", ended)

    def _remember(self, trial: Trial) -> Trial:
        self._own |= {trial.trial: trial, trial.uuid: trial}
        return trial

    def _key(self, trial: str) -> str:
        """Return the uuid of a trial that began here or offline; any other name as it is.

        After a backup was restored, the id of an own trial may be that of another one.
        """
        known = self._own.get(trial)
        if known is None and rules.offline_job(trial) is not None:
            known = self._copy.find(trial)
        return trial if known is None else known.uuid

    def _copied(self, job: str, last: int | None) -> base.Snapshot:
        """Return the newest trials, by the copy if that can be used."""
        try:
            return self._copy.update(
                job, last, lambda after, count: self.remote.changes(job, after, count)
            )
        except CopyError as error:
            self.tell(f"{error}; the history is read without its local copy")
            return self.remote.snapshot(job, last)

    def _offline(self, job: str, last: int | None, error: base.UnavailableError) -> base.Snapshot:
        """Return what is known here; raises the error if that is nothing."""
        known = self._copy.snapshot(job, last)
        if known is None and not self.spool.merge(job, ()):
            raise error
        self._tell_offline(error, job)
        return known or base.Snapshot((), "", offline=True)

    def _waiting_trial(self, name: str) -> Trial | None:
        found, key = self.spool.trials(), self._key(name)
        return next((each for each in found.values() if key in {each.trial, each.uuid}), None)

    def _given_up(self, error: base.UnavailableError) -> base.UnavailableError:
        return base.UnavailableError(
            f"{error}; zeusrun has tried for {self._wait_s:g} s (history.wait_s). Submit again "
            "later, or set history.offline to cheapest, which runs the cheapest known batch size"
        )

    def _tell_offline(self, error: base.UnavailableError, *jobs: str) -> None:
        """Tell a user who only reads how old the oldest copy of these jobs is: once."""
        if self._only_reads:
            self._only_reads = False
            known = [state.read_at for job in jobs if (state := self._copy.state(job)) is not None]
            then = datetime.fromtimestamp(min(known, default=0.0), timezone.utc).astimezone()
            of = f" of {jobs[0]}" if len(jobs) == 1 else ""
            as_of = f"{of} as it was at {then:%Y-%m-%d %H:%M}" if known else ""
            self._show(f"{error}; zeusrun reads its local copy{as_of}")

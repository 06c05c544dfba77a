"""A history in memory: fast, and the simplest that passes the contract."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from zeusrun.clock import read_clock
from zeusrun.history import rules
from zeusrun.history.base import History, Snapshot
from zeusrun.history.turns import Turns
from zeusrun.job_name import check_job_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.history.turns import Turn
    from zeusrun.trial import Outcome, Trial


class MemoryHistory(History):
    """A ``History`` that ends with the process; safe for the threads of one process."""

    def __init__(self) -> None:
        self._trials: dict[str, dict[str, Trial]] = {}
        self._changes: Counter[str] = Counter()
        self._stale: Counter[str] = Counter()  # choices of versions below this are stale
        self._turns: dict[str, str] = {}
        self._lock = threading.Lock()

    def jobs(self) -> list[str]:
        """See ``History.jobs``."""
        return sorted(self._trials)

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        return self._trials.get(rules.job_of(trial) or "", {}).get(trial)

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        check_job_name(job)
        with self._lock:
            trials = tuple(self._trials.get(job, {}).values())
            newest = trials[0 if last is None else max(0, len(trials) - last) :]
            return Snapshot(newest, str(self._changes[job]))

    def ask_turn(self, job: str, number: int = 0) -> Turn:
        """See ``History.ask_turn``."""
        check_job_name(job)
        with self._lock:
            turns = self._read_turns(job)
            turn = turns.ask(number)
            self._turns[job] = turns.text
            return turn

    def leave_turn(self, job: str, number: int) -> None:
        """See ``History.leave_turn``."""
        with self._lock:
            turns = self._read_turns(job)
            turns.use(number)
            self._turns[job] = turns.text

    def begin(self, trial: Trial, *, after: str, turn: int = 0) -> Trial:
        """See ``History.begin``."""
        rules.check_new(trial)
        with self._lock:
            turns = self._read_turns(trial.job)
            if turn and not turns.use(turn):
                raise rules.not_its_turn(trial.job, turn)
            if not self._stale[trial.job] <= int(after) <= self._changes[trial.job]:
                raise rules.changed(trial.job)
            rules.check_id(trial, self.find(trial.trial))
            self._turns[trial.job] = turns.text
            return self._store(trial)

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._change(trial, lambda known: known.finish(outcome))

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._change(trial, lambda known: known.forget(forgotten=forgotten))

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``."""
        with self._lock:
            for trial in trials:
                rules.check_numbers(trial, trial.job)
                rules.encode_trial(trial)
            return [self._add(trial) for trial in trials]

    def _add(self, trial: Trial) -> Trial:
        known = self.find(trial.trial)
        return self._store(trial) if rules.is_superseded(known, trial) else known

    def _change(self, trial: str, change: Callable[[Trial], Trial]) -> Trial:
        with self._lock:
            known = self.find(trial)
            if known is None:
                raise rules.unknown_trial(trial)
            return self._store(change(known))

    def _read_turns(self, job: str) -> Turns:
        return Turns(self._turns.get(job), read_clock())

    def _store(self, trial: Trial) -> Trial:
        rules.encode_trial(trial)  # raises if a history on disk could not store it
        trials = self._trials.setdefault(trial.job, {})
        self._changes[trial.job] += 1
        if rules.makes_stale(trial, trials.get(trial.trial)):
            self._stale[trial.job] = self._changes[trial.job]
        trials[trial.trial] = trial
        return trial

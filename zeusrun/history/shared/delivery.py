"""Delivers what waits in the spool to the remote history."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.history import rules
from zeusrun.history.base import UnavailableError, UnknownTrialError
from zeusrun.history.shared.patience import PATIENCE_S
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.history.base import Shared
    from zeusrun.history.shared.spool import Entry, Spool
    from zeusrun.trial import Trial


def deliver(spool: Spool, remote: Shared, tell: Callable[[str], None]) -> None:
    """Deliver what waits, in order, each once.

    What is refused for good is set aside.

    ``tell`` shows a sentence to the user.

    Raises:
        UnavailableError: If the history is away.
    """
    if not spool:
        return
    with spool.delivering(PATIENCE_S) as alone:
        held: set[str] = set()  # trials of which an earlier write still waits
        for entry in spool.entries() if alone else ():
            if entry.key in held:
                continue
            try:
                _send(entry, remote, tell)
            except UnavailableError:
                raise
            except ValueError as error:
                path = spool.set_aside(entry.path, str(error))
                tell(f"the result of {entry.trial.trial} is refused, and kept in {path}: {error}")
            except HistoryError as error:
                held.add(entry.key)
                tell(f"the result of {entry.trial.trial} still waits: {error}")
            else:
                spool.remove(entry)


def _send(entry: Entry, remote: Shared, tell: Callable[[str], None]) -> None:
    """Deliver one write. Again, it changes nothing: an earlier answer may have been lost."""
    trial, kind = entry.trial, entry.kind
    if kind == "begin":
        remote.add([trial])
        return
    if kind == "trace":
        with contextlib.suppress(UnknownTrialError):
            remote.keep_trace(entry.key, entry.trace or {})
        return
    known = remote.find(entry.key)
    if known is None:
        if kind == "finish":
            add_lost(trial, remote, tell)
        return
    if known.preemptions != trial.preemptions:
        return  # it has gone on since
    if kind == "withdraw" and known.status not in rules.OPEN:
        return
    try:
        remote.finish(entry.key, trial.outcome)
    except ValueError:
        if trial.status is not TrialStatus.LOST:  # else a better outcome is known
            raise


def add_lost(trial: Trial, remote: Shared, tell: Callable[[str], None]) -> None:
    """Store a trial that the history has lost; if another one has its number now, under the next.

    The uuid finds it, so that it is stored once.
    """
    try:
        remote.add([trial])
    except ValueError:
        other = remote.find(trial.trial)
        if other is None or other.uuid == trial.uuid:
            raise
        name = rules.offline_name(trial.job, trial.uuid)
        (stored,) = remote.add([replace(trial, trial=name)])
        tell(
            f"{trial.trial} is now {stored.trial}: the history was restored from a backup, and "
            "another run has the number"
        )

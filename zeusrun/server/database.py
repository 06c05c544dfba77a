"""Opens the database of a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from zeusrun.history.base import UnavailableError
from zeusrun.history.sql.migrate import is_new, upgrade
from zeusrun.history.sql.store import SqlHistory
from zeusrun.server.refusals import LOG

if TYPE_CHECKING:
    from zeusrun.server.settings import Settings

_PAUSE_S = 1.0


def open_database(settings: Settings, *, wait_s: float = 0.0) -> SqlHistory:
    """Open the database; create a SQLite file, and with ``migrate`` bring any up to date.

    Args:
        settings: Which one.
        wait_s: For how long to try again if it does not respond, as after a power failure.

    Raises:
        UnavailableError: If it does not respond.
        HistoryError: If it cannot be used; the message says what to do.
        UsageError: If its URL or its driver is not usable.
    """
    history = SqlHistory(settings.database_url)
    until_t = time.monotonic() + wait_s
    while True:
        try:
            if settings.migrate or is_new(history.engine):
                upgrade(history.engine)
            history.identify()
        except UnavailableError as error:
            if time.monotonic() >= until_t:
                history.close()
                raise
            LOG.warning("waiting for the database: %s", error)
            time.sleep(_PAUSE_S)
        except BaseException:
            history.close()
            raise
        else:
            return history

"""Tells browsers when a page has changed, by server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from zeusrun.history.sql.survey import Versions

POLL_S = 2.0
_SILENT_S = 15.0  # then a comment is sent, so that proxies keep the connection
_LASTS_S = 300.0  # then the browser connects again, and its right to read is checked anew
_RETRY_MS = 2000
MOST = 256
"""Open connections of one process; each costs a file descriptor."""


class Changes:
    """Polls the database while somebody listens: one query for all listeners of the process."""

    def __init__(self, read: Callable[[], Versions]) -> None:
        self._read = read
        self._versions: Versions | None = None
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.listeners = 0

    async def close(self) -> None:
        """End all streams and the polling."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        async with self._changed:
            self._changed.notify_all()

    async def stream(self, job: str | None, seen: str) -> AsyncIterator[str]:
        """Yield an event whenever the version of a job, or of everything, is no longer ``seen``."""
        self.listeners += 1
        try:
            if self._task is None or self._task.done():
                self._versions = None
                self._task = asyncio.create_task(self._poll())
            yield f"retry: {_RETRY_MS}\n\n"
            loop = asyncio.get_running_loop()
            end_t = loop.time() + _LASTS_S
            while not self._closing and loop.time() < end_t:
                version = await self._next(job, seen)
                if version is None:
                    yield ": still here\n\n"
                else:
                    seen = version
                    yield f"event: changed\nid: {version}\ndata: {version}\n\n"
        finally:
            self.listeners -= 1

    async def _next(self, job: str | None, seen: str) -> str | None:
        """Return the next version; ``None`` if there is none for a while."""

        def current() -> str | None:
            version = None if self._versions is None else self._versions.of(job)
            return None if version == seen else version

        def is_due() -> bool:
            return self._closing or current() is not None

        async with self._changed:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(is_due), _SILENT_S)
            return current()

    async def _poll(self) -> None:
        while self.listeners and not self._closing:
            with contextlib.suppress(HistoryError):  # the database may come back
                versions = await run_in_threadpool(self._read)
                if versions != self._versions:
                    async with self._changed:
                        self._versions = versions
                        self._changed.notify_all()
            await asyncio.sleep(POLL_S)

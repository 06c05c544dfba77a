"""The ASGI application of ``zeusrun serve``: the API, Zeus's routes and the page, in one place."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import anyio.to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from zeusrun import __version__
from zeusrun.errors import HistoryError
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.store import SqlHistory, new_incarnation
from zeusrun.server import api
from zeusrun.server.refusals import LOG, Refusal, answer_error, answer_invalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from zeusrun.server.settings import Settings

THREADS = 16  # as many as the pool of an engine has connections
EXPIRE_EVERY_S = 10.0


def build_app(settings: Settings) -> FastAPI:
    """Return the application; it opens the database with the first request."""
    history = SqlHistory(settings.database_url)
    if settings.migrate:
        history.create()
        with writing(history.engine) as connection:
            new_incarnation(connection)
    app = FastAPI(
        title="zeusrun",
        version=__version__,
        description="The shared history of recurring training jobs.",
        root_path=settings.path_prefix,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages load scripts from the network
        redoc_url=None,
        lifespan=_live,
    )
    app.state.history, app.state.settings = history, settings
    for kind in (Refusal, HistoryError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.include_router(api.router)
    with contextlib.suppress(ModuleNotFoundError):
        from zeusrun.server.zeus.routes import build_zeus_router  # noqa: PLC0415 - TODO: at the top

        app.include_router(build_zeus_router(history))
    with contextlib.suppress(ModuleNotFoundError):
        from zeusrun.server.pages.routes import build_pages_router  # noqa: PLC0415

        app.include_router(build_pages_router(history))
    return app


@contextlib.asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    """Hold what the application needs while it runs."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    expiring = asyncio.create_task(_expire(app.state.history))
    try:
        yield
    finally:
        expiring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await expiring
        app.state.history.close()


async def _expire(history: SqlHistory) -> None:
    """Record trials as LOST whose launchers died, every few seconds."""
    well = True
    while True:
        await asyncio.sleep(EXPIRE_EVERY_S)
        try:
            lost = await anyio.to_thread.run_sync(history.expire)
        except HistoryError as error:
            if well:
                LOG.warning("leases cannot be checked: %s", error)
            well = False
        else:
            well = True
            for trial in lost:
                LOG.info("%s is LOST: %s", trial.trial, trial.reason)

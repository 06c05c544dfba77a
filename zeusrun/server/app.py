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
from zeusrun.bandit.auto.policy import Auto
from zeusrun.errors import HistoryError
from zeusrun.history.sql.store import SqlHistory
from zeusrun.server import api
from zeusrun.server.auth import Authentication, KnownTokens
from zeusrun.server.health import build_health_router
from zeusrun.server.limits import BoundedBodies, Guesses
from zeusrun.server.login import build_login_router
from zeusrun.server.pages.router import build_router as build_pages_router
from zeusrun.server.refusals import LOG, Refusal, answer_error, answer_invalid
from zeusrun.server.zeus.routes import build_router as build_zeus_router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import ASGIApp

    from zeusrun.server.settings import Settings

THREADS = 8  # with those of pages and figures, no more than an engine has connections
_EXPIRE_S = 10.0


def build_app(settings: Settings) -> ASGIApp:
    """Return the application; it connects to the database with the first request."""
    history = SqlHistory(settings.database_url)
    tokens = KnownTokens(history)

    @contextlib.asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        duties = (lambda: _expire(history), tokens.write_uses)
        tasks = [asyncio.create_task(_repeat(duty, _EXPIRE_S)) for duty in duties]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            history.close()

    app = FastAPI(
        title="zeusrun",
        version=__version__,
        description="The shared history of recurring training jobs.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages load scripts from the network
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.history = history
    for kind in (Refusal, HistoryError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_error)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    authentication = Authentication(BoundedBodies(app), tokens, Guesses(), settings)
    app.include_router(api.router)
    app.include_router(build_health_router(history))
    app.include_router(build_login_router(authentication, settings))
    app.include_router(build_zeus_router(history, Auto()))
    app.include_router(build_pages_router(history))
    return authentication


async def _repeat(duty: Callable[[], object], pause_s: float) -> None:
    """Do something for ever in a thread; it goes on if the database does not respond."""
    well = True
    while True:
        await asyncio.sleep(pause_s)
        try:
            await anyio.to_thread.run_sync(duty)
        except HistoryError as error:
            if well:
                LOG.warning("the server goes on without its database: %s", error)
            well = False
        else:
            well = True


def _expire(history: SqlHistory) -> None:
    """Record trials as LOST whose launchers have died."""
    for trial in history.expire():
        LOG.info("%s is LOST: %s", trial.trial, trial.reason)

"""The ASGI application of ``zeusrun serve``: the API, Zeus's routes and the page, in one place."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import anyio.to_thread
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from zeusrun import __version__
from zeusrun.bandit.auto.policy import Auto
from zeusrun.errors import HistoryError
from zeusrun.export import prometheus
from zeusrun.history.sql import survey
from zeusrun.history.sql.store import SqlHistory
from zeusrun.server import api
from zeusrun.server.auth import Authentication, BoundedBodies, KnownTokens, access_of
from zeusrun.server.pages.reports import build_total, read_live
from zeusrun.server.pages.router import build_login_router
from zeusrun.server.pages.router import build_router as build_pages_router
from zeusrun.server.refusals import LOG, Refusal, answer_error, answer_invalid
from zeusrun.server.zeus.routes import build_router as build_zeus_router
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.types import ASGIApp

    from zeusrun.history.sql.survey import Part
    from zeusrun.server.auth import Access
    from zeusrun.server.settings import ServerSettings
    from zeusrun.trial import Trial

THREADS = 8  # with those of pages and figures, no more than an engine has connections
_EXPIRE_S = 10.0


def build_app(settings: ServerSettings) -> ASGIApp:
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
    authentication = Authentication(BoundedBodies(app), tokens, settings)
    app.include_router(api.router)
    app.include_router(build_health_router(history))
    app.include_router(build_login_router(authentication, settings))
    app.include_router(build_zeus_router(history, Auto()))
    app.include_router(build_pages_router(history, demo=settings.demo))
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


_MAX_RUNNING = 1000


def build_health_router(history: SqlHistory) -> APIRouter:
    """Return the routes; the first two need no token."""
    engine = history.engine
    totals: dict[str, tuple[int, list[Part], Trial | None]] = {}

    def read_totals(job: str, changes: int) -> tuple[list[Part], Trial | None]:
        if job not in totals or totals[job][0] != changes:
            totals[job] = changes, survey.add_up(engine, job), survey.read_last_ended(engine, job)
        return totals[job][1:]

    async def check_process() -> Response:
        return JSONResponse({"status": "ok"})

    def check_database() -> Response:
        history.identify()
        return JSONResponse({"status": "ok"})

    def show_metrics(request: Request) -> Response:
        access = access_of(request)
        families = prometheus.Families()
        for head in survey.list_heads(engine):
            if access.covers(head.job):
                _add_job(families, head.job, *read_totals(head.job, head.changes))
        _add_running(families, history, access)
        families.add("server_info", "The server; always 1.", 1, version=__version__)
        return PlainTextResponse(families.text(), media_type=prometheus.CONTENT_TYPE)

    router = APIRouter(include_in_schema=False)
    for path, endpoint in (
        ("/healthz", check_process),
        ("/readyz", check_database),
        ("/metrics", show_metrics),
    ):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
    return router


def _add_job(
    families: prometheus.Families, job: str, ended: list[Part], last: Trial | None
) -> None:
    """Add what the runs of a job have taken, under the names of ``zeusrun export``."""
    parts = [part for part in ended if part.status != TrialStatus.PREEMPTED.value]
    runs: Counter[str] = Counter()
    for part in parts:
        runs[part.status] += part.runs
    by_source = {
        source: build_total(job, [each for each in parts if each.energy_source == source])
        for source in EnergySource
    }
    prometheus.add_totals(families, runs, build_total(job, parts), by_source)
    if last is not None:
        prometheus.add_last_run(families, last)


def _add_running(families: prometheus.Families, history: SqlHistory, access: Access) -> None:
    """Add the runs that have not ended, with what their launchers sent last."""
    covered = [each for each in survey.list_running(history.engine) if access.covers(each[1])]
    for job, count in Counter(job for _, job in covered).items():
        prometheus.add_running(families, job, count)
    newest = [number for number, _ in covered[-_MAX_RUNNING:]]
    for running in survey.read_running(history.engine, newest):
        job, trial, left_s = running.trial.job, running.trial.trial, running.lease_left_s
        prometheus.add_live(families, read_live(running))
        families.add("run_lease_seconds", "Until it counts as LOST.", left_s, job=job, trial=trial)

"""The routes of the pages: what a request may see, which page shows it, and how it is sent."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import HTMLResponse, RedirectResponse, Response

from zeusrun.history.base import UnavailableError
from zeusrun.history.rules import job_of
from zeusrun.history.sql import survey
from zeusrun.job_name import is_job_name
from zeusrun.server import api
from zeusrun.server.auth import access_of
from zeusrun.server.login import account
from zeusrun.server.pages.document import (
    HEADERS,
    STATIC,
    NotFoundError,
    Page,
    build_document,
    links_of,
    message_page,
    static_text,
)
from zeusrun.server.pages.jobs import job_page, overview_page
from zeusrun.server.pages.machines import HostFacts, machines_page, read_host
from zeusrun.server.pages.reports import UNREADABLE, Reports
from zeusrun.server.pages.runs import read_live, run_page, runs_page
from zeusrun.server.refusals import LOG
from zeusrun.view.report.markup import tag

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.requests import Request

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.history.sql.survey import JobHead
    from zeusrun.launcher.rundir.record import Live

_CARDS = 24  # runs that are shown as cards on a page
_FOREVER = "private, max-age=31536000, immutable"
_DEMO = tag("strong", "Demo: nothing here was measured", class_="demo")
_THREADS = 4


class Visit:
    """A request for a page, and what it may see of the history; all of it waits for a database."""

    def __init__(self, request: Request, store: SqlHistory, reports: Reports) -> None:
        self.request, self.store, self.reports = request, store, reports
        self.engine, self.access, self.links = store.engine, access_of(request), links_of(request)

    def check_job(self, job: str) -> None:
        """Raise ``NotFoundError`` unless the request may see a job, whether there is one or not."""
        if not (is_job_name(job) and self.access.covers(job)):
            raise NotFoundError("There is no such job, or you may not see it.")

    def version(self, job: str | None) -> str:
        """Return the version of a job; ``None``: of all that the request may see."""
        versions = survey.read_versions(self.engine)
        return versions.of_jobs(self.access.jobs) if job is None else versions.of(job)

    def heads(self) -> list[JobHead]:
        """Return the jobs."""
        return [head for head in survey.list_heads(self.engine) if self.access.covers(head.job)]

    def running(
        self, jobs: Collection[str] | None = None, limit: int | None = _CARDS
    ) -> tuple[list[Live], Counter[str]]:
        """Return the newest runs of some or all jobs that go on, and how many each job has."""
        found = [
            (number, own)
            for number, own in survey.list_running(self.engine)
            if (jobs is None or own in jobs) and self.access.covers(own)
        ]
        chosen = [number for number, _ in found[::-1][:limit]]
        running = survey.read_running(self.engine, chosen)
        return [read_live(each) for each in running[::-1]], Counter(own for _, own in found)

    def hosts(self) -> list[HostFacts]:
        """Return the machines, with those schedules that the request may see."""
        hosts = [read_host(*each) for each in self.store.hosts()]
        for host in hosts:
            host.schedules = [each for each in host.schedules if self.access.covers(each.job)]
        return hosts


def build_router(store: SqlHistory, *, demo: bool = False) -> APIRouter:
    """Return the routes of the pages. None is in the description of the API.

    ``demo``: each page says that its history is made up.
    """
    reports = Reports(store)
    router = APIRouter()
    threads = CapacityLimiter(_THREADS)  # so that launchers do not wait for pages

    def add(path: str, answer: Callable[[Visit], Response], *methods: str) -> None:
        async def call(request: Request) -> Response:
            return await run_sync(answer, Visit(request, store, reports), limiter=threads)

        router.add_route(path, call, methods, include_in_schema=False)

    for path, build in (
        ("/", overview_page),
        ("/runs", runs_page),
        ("/machines", machines_page),
        ("/job/{job}", job_page),
        ("/run/{trial}", run_page),
    ):
        add(path, _as_document(build, demo=demo), "GET", "HEAD")
    add("/version", _send_version, "GET", "HEAD")
    add("/run/{trial}/cancel", _cancel, "POST")
    router.add_route("/static/{name}", _send_static, ["GET", "HEAD"], include_in_schema=False)
    return router


def _as_document(build: Callable[..., Page], *, demo: bool) -> Callable[[Visit], Response]:
    """Return what sends a page, or a page that says why there is none."""

    def answer(visit: Visit) -> Response:
        request, asked = visit.request, visit.request.path_params
        job, status, version = asked.get("job") or job_of(asked.get("trial", "")), 200, None
        try:
            version = visit.version(job)  # first, so that the page is not older
            page = build(visit, **asked)
        except NotFoundError as error:
            status, version = 404, None
            page = message_page(visit.links, "Not found", str(error))
        except UNREADABLE as error:
            LOG.warning("a page cannot be shown: %s", error)
            text = "The history cannot be read now; the server's log says why."
            if isinstance(error, UnavailableError):
                text = "The database does not respond."
            status, version, text = 503, None, f"{text} This page comes back by itself."
            page = message_page(visit.links, "Not available", text)
        owner = _DEMO if demo else account(request)
        document = build_document(page, visit.links, owner, job=job, version=version)
        headers = {**HEADERS, "ETag": f'"{hashlib.sha256(document.encode()).hexdigest()[:24]}"'}
        if status == 503:
            headers |= {"Retry-After": "5", "Refresh": "5"}
        if status == 200 and request.headers.get("If-None-Match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(document, status, headers)

    return answer


def _send_version(visit: Visit) -> Response:
    """Send the version of a job, or of all: a page asks for itself if that differs."""
    job = visit.request.query_params.get("job")
    if job is not None:
        try:
            visit.check_job(job)
        except NotFoundError as error:
            return _send_text(str(error), 404)
    return _send_text(visit.version(job))


def _cancel(visit: Visit) -> Response:
    """Cancel a run by the button of its page; raises ``Refusal`` if that is not allowed."""
    trial = visit.request.path_params["trial"]
    api.cancel(trial, visit.store, visit.access)
    return RedirectResponse(f"../{quote(trial)}#now", 303)


async def _send_static(request: Request) -> Response:
    """Send the style sheet or the script."""
    name = request.path_params["name"]
    if name not in STATIC:
        return _send_text("There is no such file.", 404)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": _FOREVER}
    return Response(static_text(name), media_type=STATIC[name], headers=headers)


def _send_text(text: str, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(text, status, headers, media_type="text/plain")

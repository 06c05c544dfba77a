"""The routes of the pages: what is read for each, and how it is sent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Annotated

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, Response

from zeusrun.history.base import UnavailableError
from zeusrun.history.rules import job_of
from zeusrun.history.sql import survey
from zeusrun.job_name import is_job_name
from zeusrun.server.auth import access_of
from zeusrun.server.login import account
from zeusrun.server.pages import jobs
from zeusrun.server.pages.document import (
    HEADERS,
    STATIC,
    THEMES,
    Links,
    Page,
    Pictures,
    build_document,
    static_text,
)
from zeusrun.server.pages.machines import HostFacts, machines_page, read_host
from zeusrun.server.pages.reports import UNREADABLE, Reports, read_trace
from zeusrun.server.pages.runs import RunContent, read_live, run_page, run_report, run_version
from zeusrun.view.report.figures import FIGURES
from zeusrun.view.report.markup import join, tag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.launcher.rundir.record import Live
    from zeusrun.view.report.facts import JobReport

_LOG = logging.getLogger("zeusrun.server")
_CARDS = 24  # runs that are shown as cards on a page
_WAIT_S = 0.15  # for what is being computed; the rest of a page does not wait longer
_FOREVER = "private, max-age=31536000, immutable"
_IMAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LONGEST = 200  # characters of a search
_DEMO = tag("strong", "Demo: nothing here was measured", class_="demo")
_THREADS, _DRAWING_THREADS = 4, 2  # matplotlib draws one figure at a time


def build_router(store: SqlHistory, *, demo: bool = False) -> APIRouter:
    """Return the routes of the pages. None is in the description of the API.

    ``demo``: each page says that its history is made up.
    """
    pages = _Pages(store)

    @contextlib.asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        try:
            yield
        finally:
            pages.reports.close()

    router = APIRouter(include_in_schema=False, lifespan=lifespan)
    # What runs in threads gets threads of its own: launchers do not wait for pages and figures.
    threads, drawing = CapacityLimiter(_THREADS), CapacityLimiter(_DRAWING_THREADS)
    as_document = functools.partial(_as_document, demo=demo)
    for path, endpoint in (
        ("/", _in_thread(as_document(pages.overview, Links()), threads)),
        ("/machines", _in_thread(as_document(pages.machines, Links()), threads)),
        ("/version", _in_thread(pages.version, threads)),
        ("/static/{name}", _send_static),
        ("/job/{job}", _in_thread(as_document(pages.job, Links(1)), threads)),
        ("/job/{name}/{figure}.svg", _in_thread(pages.figures_of(pages.read_job), drawing)),
        ("/run/{trial}", _in_thread(as_document(pages.run, Links(1)), threads)),
        ("/run/{name}/{figure}.svg", _in_thread(pages.figures_of(pages.read_run), drawing)),
    ):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
    return router


def _in_thread(
    endpoint: Callable[..., Response], limiter: CapacityLimiter
) -> Callable[..., Awaitable[Response]]:
    @functools.wraps(endpoint)
    async def call(**values: object) -> Response:
        return await run_sync(functools.partial(endpoint, **values), limiter=limiter)

    return call


def _as_document(
    build: Callable[..., Page], links: Links, *, demo: bool
) -> Callable[..., Response]:
    """Return an endpoint that sends a page, or a page that says why there is none."""

    @functools.wraps(build)
    def call(request: Request, **values: object) -> Response:
        status = 200
        try:
            page = build(request, **values)
        except _NotFoundError as error:
            status, page = 404, _message(links, "Not found", str(error))
        except UNREADABLE as error:
            _LOG.warning("a page cannot be shown: %s", error)
            text = "The history cannot be read now; the server's log says why."
            if isinstance(error, UnavailableError):
                text = "The database does not respond."
            text += " This page comes back by itself."
            status, page = 503, _message(links, "Not available", text)
        document = build_document(page, links, _DEMO if demo else account(request))
        headers = {**HEADERS, "ETag": f'"{hashlib.sha256(document.encode()).hexdigest()[:24]}"'}
        if status == 503:
            headers |= {"Retry-After": "5", "Refresh": "5"}
        if status == 200 and request.headers.get("If-None-Match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(document, status, headers)

    return call


async def _send_static(name: str) -> Response:
    """Send the style sheet or the script."""
    if name not in STATIC:
        return _refuse("There is no such file.")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": _FOREVER}
    return Response(static_text(name), media_type=STATIC[name], headers=headers)


def _refuse(text: str, status: int = 404) -> Response:
    return Response(text, status, media_type="text/plain")


class _NotFoundError(Exception):
    """There is no such page; the message is for people."""


class _Pages:
    """Reads what each page shows; all of it waits for a database."""

    def __init__(self, store: SqlHistory) -> None:
        self._store = store
        self._engine = store.engine
        self.reports = Reports(store)
        self._pictures = Pictures()

    def overview(
        self,
        request: Request,
        q: Annotated[str, Query(max_length=_LONGEST)] = "",
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> Page:
        """Return the page of all jobs."""
        version = self._version(request)
        seen = [h for h in survey.list_heads(self._engine) if access_of(request).covers(h.job)]
        heads = [head for head in seen if q.casefold() in head.job.casefold()]
        last = max(1, -(-len(heads) // jobs.JOBS_SHOWN))
        number = min(page, last)
        shown = heads[(number - 1) * jobs.JOBS_SHOWN : number * jobs.JOBS_SHOWN]
        running, counts = self._running(request)
        view = jobs.Overview(
            heads=heads,
            shown=shown,
            newest=survey.read_numbers(self._engine, [head.newest for head in shown]),
            digests=self.reports.digests(heads, _WAIT_S),
            running=running,
            running_jobs=counts,
            hosts=survey.count_hosts(self._engine),
            jobs=len(seen),
            search=q,
            number=number,
        )
        return jobs.overview_page(view, version)

    def job(
        self,
        request: Request,
        job: str,
        before: Annotated[str | None, Query(max_length=_LONGEST)] = None,
    ) -> Page:
        """Return the page of a job."""
        _check_job(request, job)
        version = self._version(request, job)
        view = self.reports.view(job)
        if view is None:
            raise _NotFoundError(f"There is no job called {job}.")
        running, counts = self._running(request, job)
        schedules = [
            each for host in self._hosts(request) for each in host.schedules if each.job == job
        ]
        runs = survey.list_runs(self._engine, job, jobs.RUNS_SHOWN, before)
        first = survey.read_first(self._engine, job) or view.newest
        content = jobs.JobContent(view, running, counts[job], runs, first, schedules, before)
        return jobs.job_page(content, version)

    def run(self, request: Request, trial: str) -> Page:
        """Return the page of a run."""
        content = self._run(request, trial)
        return run_page(content, self._version(request, content.trial.job))

    def machines(self, request: Request) -> Page:
        """Return the page of the machines."""
        version = self._version(request)
        by_host: defaultdict[str, list[Live]] = defaultdict(list)
        for run in self._running(request, limit=None)[0]:
            by_host[run.host or "an unknown machine"].append(run)

        def may_name(trial: str) -> bool:
            job = job_of(trial)
            return job is not None and access_of(request).covers(job)

        return machines_page(self._hosts(request), by_host, may_name, version)

    def version(self, request: Request, job: str | None = None) -> Response:
        """Send the version of a job, or of all: a page asks for itself if that differs."""
        if job is not None and not _may_see(request, job):
            return _refuse("There is no such job.")
        text = self._version(request, job)
        return Response(text, media_type="text/plain", headers={"Cache-Control": "no-store"})

    def read_job(self, request: Request, job: str) -> tuple[JobReport | None, str]:
        """Return what the figures of a job show, and what differs if they do."""
        _check_job(request, job)
        view = self.reports.view(job)
        if view is None or view.report is None:
            return None, ""
        return view.report, jobs.job_version(view)

    def read_run(self, request: Request, trial: str) -> tuple[JobReport | None, str]:
        """Return what the figures of a run show, and what differs if they do."""
        content = self._run(request, trial)
        return run_report(content), run_version(content)

    def figures_of(
        self, read: Callable[[Request, str], tuple[JobReport | None, str]]
    ) -> Callable[..., Response]:
        """Return the endpoint that draws the figures of a job, or of a run."""

        def draw(
            request: Request, name: str, figure: str, theme: str = "light", v: str = ""
        ) -> Response:
            """Draw a figure."""
            try:
                report, version = read(request, name)
            except _NotFoundError as error:
                return _refuse(str(error))
            except UNREADABLE:
                return _refuse("The history cannot be read now.", 503)
            if report is None or figure not in FIGURES or theme not in THEMES:
                return _refuse("There is no such figure.")
            headers = {
                "ETag": f'"{version}"',
                "Cache-Control": _FOREVER if v == version else "private, no-cache",
                "Vary": HEADERS["Vary"],
                "Content-Security-Policy": _IMAGE_POLICY,
                "X-Content-Type-Options": "nosniff",
            }
            if request.headers.get("If-None-Match") == headers["ETag"]:
                return Response(status_code=304, headers=headers)
            try:
                drawn = self._pictures.read(figure, report, version, theme)
            except (ImportError, ValueError, ArithmeticError) as error:
                _LOG.warning("a figure cannot be drawn: %s", error)
                drawn = None
            if drawn is None:
                return _refuse("There is nothing to draw.")
            return Response(drawn, media_type="image/svg+xml", headers=headers)

        return draw

    def _version(self, request: Request, job: str | None = None) -> str:
        """Return the version of a job, or that of all which the request may read about."""
        versions = survey.read_versions(self._engine)
        return versions.of_jobs(access_of(request).jobs) if job is None else versions.of(job)

    def _running(
        self, request: Request, job: str | None = None, limit: int | None = _CARDS
    ) -> tuple[list[Live], Counter[str]]:
        """Return the newest runs that have not ended, and how many there are of each job."""
        found = [
            (number, own)
            for number, own in survey.list_running(self._engine)
            if job in {None, own} and access_of(request).covers(own)
        ]
        chosen = [number for number, _ in found[::-1][:limit]]
        running = survey.read_running(self._engine, chosen)
        return [read_live(each) for each in running[::-1]], Counter(own for _, own in found)

    def _hosts(self, request: Request) -> list[HostFacts]:
        hosts = [read_host(*each) for each in self._store.hosts()]
        for host in hosts:
            host.schedules = [
                each for each in host.schedules if access_of(request).covers(each.job)
            ]
        return hosts

    def _run(self, request: Request, trial: str) -> RunContent:
        stored = self._store.find(trial)
        if stored is None or not access_of(request).covers(stored.job):
            raise _NotFoundError("There is no such run, or you may not see it.")
        live = None
        if not stored.status.finished:
            running = survey.read_running(self._engine, stored.trial)
            live = read_live(running[0]) if running else None
        trace = read_trace(self._store.trace(stored.trial))
        return RunContent(stored, live, trace, self.reports.unit(stored.job))


def _may_see(request: Request, job: str) -> bool:
    return is_job_name(job) and access_of(request).covers(job)


def _check_job(request: Request, job: str) -> None:
    if not _may_see(request, job):
        raise _NotFoundError("There is no such job, or you may not see it.")


def _message(links: Links, title: str, text: str) -> Page:
    back = tag("p", tag("a", "All jobs", href=links.to("")))
    return Page(title, join((tag("h1", title), tag("p", text, class_="lead"), back)))

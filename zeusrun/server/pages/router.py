"""The routes of the pages: what is read for each, and how it is sent."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import Counter, defaultdict
from typing import TYPE_CHECKING
from urllib.parse import quote

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from zeusrun.history.base import UnavailableError
from zeusrun.history.rules import job_of
from zeusrun.history.sql import survey
from zeusrun.job_name import is_job_name
from zeusrun.server import api
from zeusrun.server.auth import access_of
from zeusrun.server.login import account
from zeusrun.server.pages import jobs
from zeusrun.server.pages.document import (
    HEADERS,
    STATIC,
    Links,
    Page,
    build_document,
    links_of,
    message_page,
    static_text,
)
from zeusrun.server.pages.listing import read_listing
from zeusrun.server.pages.machines import HostFacts, machines_page, read_host
from zeusrun.server.pages.reports import UNREADABLE, Reports, read_trace
from zeusrun.server.pages.runs import (
    RUNS_SHOWN,
    RunContent,
    read_live,
    run_page,
    runs_page,
)
from zeusrun.view.report.markup import tag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.history.sql.survey import JobHead
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.server.pages.reports import JobView

_LOG = logging.getLogger("zeusrun.server")
_CARDS = 24  # runs that are shown as cards on a page
_WAIT_S = 0.15  # how long a page waits for the savings of jobs; it asks again for the rest
_FOREVER = "private, max-age=31536000, immutable"
_DEMO = tag("strong", "Demo: nothing here was measured", class_="demo")
_THREADS = 4


def build_router(store: SqlHistory, *, demo: bool = False) -> APIRouter:
    """Return the routes of the pages. None is in the description of the API.

    ``demo``: each page says that its history is made up.
    """
    pages = _Pages(store)
    router = APIRouter(include_in_schema=False)
    threads = CapacityLimiter(_THREADS)  # so that launchers do not wait for pages
    as_document = functools.partial(_as_document, demo=demo)
    for path, endpoint in (
        ("/", _in_thread(as_document(pages.overview), threads)),
        ("/runs", _in_thread(as_document(pages.runs), threads)),
        ("/machines", _in_thread(as_document(pages.machines), threads)),
        ("/version", _in_thread(pages.version, threads)),
        ("/static/{name}", _send_static),
        ("/job/{job}", _in_thread(as_document(pages.job), threads)),
        ("/run/{trial}", _in_thread(as_document(pages.run), threads)),
    ):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
    cancel = _in_thread(pages.cancel, threads)
    router.add_api_route("/run/{trial}/cancel", cancel, methods=["POST"], response_model=None)
    return router


def _in_thread(
    endpoint: Callable[..., Response], limiter: CapacityLimiter
) -> Callable[..., Awaitable[Response]]:
    @functools.wraps(endpoint)
    async def call(**values: object) -> Response:
        return await run_sync(functools.partial(endpoint, **values), limiter=limiter)

    return call


def _as_document(build: Callable[..., Page], *, demo: bool) -> Callable[..., Response]:
    """Return an endpoint that sends a page, or a page that says why there is none."""

    @functools.wraps(build)
    def call(request: Request, **values: object) -> Response:
        status, links = 200, links_of(request)
        try:
            page = build(request, **values)
        except NotFoundError as error:
            status, page = 404, message_page(links, "Not found", str(error))
        except UNREADABLE as error:
            _LOG.warning("a page cannot be shown: %s", error)
            text = "The history cannot be read now; the server's log says why."
            if isinstance(error, UnavailableError):
                text = "The database does not respond."
            text += " This page comes back by itself."
            status, page = 503, message_page(links, "Not available", text)
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


class NotFoundError(Exception):
    """There is no such page; the message is for people."""


class _Pages:
    """Reads what each page shows; all of it waits for a database."""

    def __init__(self, store: SqlHistory) -> None:
        self._store = store
        self._engine = store.engine
        self.reports = Reports(store)

    def overview(self, request: Request) -> Page:
        """Return the page of all jobs."""
        version = self._version(request)
        seen = self._heads(request)
        listing = read_listing(request.query_params, "./", "jobs", jobs.JOB_SORTS)
        search = listing.search.casefold()
        heads = [head for head in seen if search in head.job.casefold()]
        digests = self.reports.digests(heads, _WAIT_S)
        heads = jobs.sort_heads(heads, digests, listing)
        number = min(listing.page, max(1, -(-len(heads) // jobs.JOBS_SHOWN)))
        shown = heads[(number - 1) * jobs.JOBS_SHOWN : number * jobs.JOBS_SHOWN]
        running, counts = self._running(request, [head.job for head in heads] if search else None)
        view = jobs.Overview(
            heads=heads,
            shown=shown,
            newest=survey.read_numbers(self._engine, [head.newest for head in shown]),
            digests=digests,
            running=running,
            running_jobs=counts,
            hosts=survey.count_hosts(self._engine),
            jobs=len(seen),
            listing=listing,
        )
        return jobs.overview_page(view, version)

    def job(self, request: Request, job: str) -> Page:
        """Return the page of a job."""
        _check_job(request, job)
        version = self._version(request, job)
        view = self._view(job)
        running, counts = self._running(request, [job])
        schedules = [
            each for host in self._hosts(request) for each in host.schedules if each.job == job
        ]
        listing = read_listing(request.query_params, Links(1).job(job), "runs", [*survey.SORTS])
        runs, found = survey.list_runs(self._engine, [job], listing.wanted(), RUNS_SHOWN)
        first = survey.read_first(self._engine, job) or view.newest
        content = jobs.JobContent(
            view, running, counts[job], listing, runs, found, first, schedules
        )
        return jobs.job_page(content, version)

    def runs(self, request: Request) -> Page:
        """Return the page of the runs of all jobs, by default the newest first."""
        version = self._version(request)
        sorts = ["when", *(each for each in survey.SORTS if each not in {"run", "when"})]
        listing = read_listing(request.query_params, "runs", "runs", sorts)
        is_all = access_of(request).jobs == "*"
        chosen = None if is_all else [head.job for head in self._heads(request)]
        runs, found = survey.list_runs(self._engine, chosen, listing.wanted(), RUNS_SHOWN)
        return runs_page(listing, runs, found, version)

    def _heads(self, request: Request) -> list[JobHead]:
        """Return the jobs that may be seen."""
        access = access_of(request)
        return [head for head in survey.list_heads(self._engine) if access.covers(head.job)]

    def _view(self, job: str) -> JobView:
        view = self.reports.view(job)
        if view is None:
            raise NotFoundError(f"There is no job called {job}.")
        return view

    def run(self, request: Request, trial: str) -> Page:
        """Return the page of a run."""
        content = self._run(request, trial)
        version = self._version(request, content.trial.job)
        return run_page(content, version, self.reports.pictures_of(content.trial, content.trace))

    def cancel(self, request: Request, trial: str) -> Response:
        """Cancel a run by the button of its page; raises ``Refusal`` if that is not allowed."""
        api.cancel(trial, self._store, access_of(request))
        return RedirectResponse(f"../{quote(trial)}#now", 303)

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

    def _version(self, request: Request, job: str | None = None) -> str:
        """Return the version of a job, or that of all which the request may read about."""
        versions = survey.read_versions(self._engine)
        return versions.of_jobs(access_of(request).jobs) if job is None else versions.of(job)

    def _running(
        self, request: Request, jobs: Collection[str] | None = None, limit: int | None = _CARDS
    ) -> tuple[list[Live], Counter[str]]:
        """Return the newest runs of some or all jobs that go on, and how many each job has."""
        found = [
            (number, own)
            for number, own in survey.list_running(self._engine)
            if (jobs is None or own in jobs) and access_of(request).covers(own)
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
            raise NotFoundError("There is no such run, or you may not see it.")
        running = next(iter(survey.read_running(self._engine, stored.trial)), None)
        trace = read_trace(self._store.trace(trial))
        found = stored if running is None else read_live(running).trial
        return RunContent(found, running, trace, access_of(request).can_write)


def _may_see(request: Request, job: str) -> bool:
    return is_job_name(job) and access_of(request).covers(job)


def _check_job(request: Request, job: str) -> None:
    if not _may_see(request, job):
        raise NotFoundError("There is no such job, or you may not see it.")

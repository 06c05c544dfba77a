"""What monitoring asks for: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from zeusrun import __version__
from zeusrun.export.prometheus import CONTENT_TYPE, Families, add_last_run, add_live, add_totals
from zeusrun.history.sql import survey
from zeusrun.server.auth import access_of
from zeusrun.server.pages.reports import build_total
from zeusrun.server.pages.runs import read_live
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.history.sql.survey import Part
    from zeusrun.server.auth import Access
    from zeusrun.trial import Trial

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
        families = Families()
        for head in survey.list_heads(engine):
            if access.covers(head.job):
                _add_job(families, head.job, *read_totals(head.job, head.changes))
        _add_running(families, history, access)
        families.add("server_info", "The server; always 1.", 1, version=__version__)
        return PlainTextResponse(families.text(), media_type=CONTENT_TYPE)

    router = APIRouter(include_in_schema=False)
    for path, endpoint in (
        ("/healthz", check_process),
        ("/readyz", check_database),
        ("/metrics", show_metrics),
    ):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
    return router


def _add_job(families: Families, job: str, ended: list[Part], last: Trial | None) -> None:
    """Add what the runs of a job have taken, under the names of ``zeusrun export``."""
    parts = [part for part in ended if part.status != TrialStatus.PREEMPTED.value]
    runs: Counter[str] = Counter()
    for part in parts:
        runs[part.status] += part.runs
    by_source = {
        source.value: build_total(job, [each for each in parts if each.energy_source == source])
        for source in EnergySource
    }
    energy_j = {source: total.energy_j for source, total in by_source.items()}
    whole = build_total(job, parts)
    prices, carbon_g = whole.prices, whole.carbon_g
    add_totals(families, job, runs=runs, energy_j=energy_j, prices=prices, carbon_g=carbon_g)
    if last is not None:
        add_last_run(families, last)


def _add_running(families: Families, history: SqlHistory, access: Access) -> None:
    """Add the runs that have not ended, with what their launchers sent last."""
    covered = [each for each in survey.list_running(history.engine) if access.covers(each[1])]
    for job, count in Counter(job for _, job in covered).items():
        families.add("running", "Runs that are running, start-up included.", count, job=job)
    newest = [number for number, _ in covered[-_MAX_RUNNING:]]
    for running in survey.read_running(history.engine, newest):
        job, trial, left_s = running.trial.job, running.trial.trial, running.lease_left_s
        add_live(families, read_live(running), trial=trial)
        families.add("run_lease_seconds", "Until it counts as LOST.", left_s, job=job, trial=trial)

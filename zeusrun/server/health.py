"""What monitoring asks for: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from zeusrun import __version__
from zeusrun.export.prometheus import CONTENT_TYPE, Families, add_last_run, add_totals
from zeusrun.history.sql import survey
from zeusrun.server.auth import access_of

if TYPE_CHECKING:
    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.history.sql.survey import EndedRuns, JobHead
    from zeusrun.server.auth import Access
    from zeusrun.server.limits import BoundedRequests
    from zeusrun.trial import Trial

_MOST_RUNNING = 1000
_LIVE = (
    ("power_w", "power_watts", "Power now, of all devices of the job."),
    ("energy_j", "energy_joules_total", "Energy since training began."),
    ("cost_j", "cost_joules_total", "Cost since training began."),
    ("time_s", "time_seconds_total", "Time since training began."),
    ("steps", "steps_total", "Optimizer steps."),
    ("epochs", "epoch", "Completed epochs."),
    ("last_metric", "metric", "The metric as last reported."),
    ("best_metric", "best_metric", "The best value of the metric."),
)
"""Of what a launcher sends with a heartbeat: the key, the name, the help text."""


class _Totals:
    """What the runs of each job have taken; a job is read again once it has changed."""

    def __init__(self, history: SqlHistory) -> None:
        self._engine = history.engine
        self._known: dict[str, tuple[int, list[EndedRuns], Trial | None]] = {}

    def read(self, head: JobHead) -> tuple[list[EndedRuns], Trial | None]:
        """Return how the runs of a job have ended, and the last one."""
        known = self._known.get(head.job)
        if known is None or known[0] != head.changes:
            ended = survey.count_ended(self._engine, head.job)
            known = (head.changes, ended, survey.read_last_ended(self._engine, head.job))
            self._known[head.job] = known
        return known[1:]


def build_health_router(history: SqlHistory, requests: BoundedRequests) -> APIRouter:
    """Return the routes; the first two need no token."""
    totals = _Totals(history)

    async def check_process() -> Response:
        return JSONResponse({"status": "ok"})

    def check_database() -> Response:
        history.identify()
        return JSONResponse({"status": "ok"})

    def show_metrics(request: Request) -> Response:
        access = access_of(request)
        families = Families()
        for head in survey.list_heads(history.engine):
            if access.covers(head.job):
                _add_job(families, head.job, *totals.read(head))
        _add_running(families, history, access)
        _add_process(families, requests)
        return PlainTextResponse(families.text(), media_type=CONTENT_TYPE)

    router = APIRouter(include_in_schema=False)
    for path, endpoint in (
        ("/healthz", check_process),
        ("/readyz", check_database),
        ("/metrics", show_metrics),
    ):
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
    return router


def _add_job(families: Families, job: str, ended: list[EndedRuns], last: Trial | None) -> None:
    """Add what the runs of a job have taken, under the names of ``zeusrun export``."""
    runs: Counter[str] = Counter()
    energy_j: dict[str, float] = {}
    prices: dict[str, float] = {}
    carbon_g: float | None = None
    for part in ended:
        runs[part.status] += part.runs
        if part.energy_source is not None and part.energy_j is not None:
            energy_j[part.energy_source] = energy_j.get(part.energy_source, 0.0) + part.energy_j
        if part.currency is not None and part.price is not None:
            prices[part.currency] = prices.get(part.currency, 0.0) + part.price
        if part.carbon_g is not None:
            carbon_g = (carbon_g or 0.0) + part.carbon_g
    add_totals(families, job, runs=runs, energy_j=energy_j, prices=prices, carbon_g=carbon_g)
    if last is not None:
        add_last_run(families, last)


def _add_running(families: Families, history: SqlHistory, access: Access) -> None:
    """Add the runs that have not ended, with what their launchers sent last."""
    running = [(number, job) for number, job in survey.list_running(history.engine)]
    covered = [number for number, job in running if access.covers(job)]
    for job, count in Counter(job for _, job in running if access.covers(job)).items():
        families.add("running", "Runs that are running, start-up included.", count, job=job)
    for trial, live, left_s in survey.read_running(history.engine, covered[-_MOST_RUNNING:]):
        labels = {"job": trial.job, "trial": trial.trial}
        text = "A run that is running; always 1."
        families.add("run_info", text, 1, **labels, host=trial.host, gpu_model=trial.gpu_model)
        families.add("run_lease_seconds", "Until it counts as LOST.", left_s, **labels)
        for key, name, text in _LIVE:
            value = live.get(key)
            known = isinstance(value, (int, float)) and not isinstance(value, bool)
            families.add(f"run_{name}", text, value if known else None, **labels)


def _add_process(families: Families, requests: BoundedRequests) -> None:
    """Add what this worker process has answered; each of several counts by itself."""
    worker = str(os.getpid())
    families.add("server_info", "The server; always 1.", 1, version=__version__, worker=worker)
    for status, count in sorted(requests.answered.items()):
        text = "Requests that were answered."
        families.add("server_requests_total", text, count, status=str(status), worker=worker)
    text = "Time in which they were answered, added up."
    families.add("server_request_seconds_total", text, requests.spent_s, worker=worker)
    text = "Requests that are being answered."
    families.add("server_requests", text, requests.now, worker=worker)

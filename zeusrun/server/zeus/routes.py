"""The routes of Zeus 0.16's batch size optimizer, under the paths that its client expects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from zeusrun.server.auth import Access, access_of
from zeusrun.server.zeus.messages import Answer, Report, Settings, TrialId
from zeusrun.server.zeus.service import ZeusService

if TYPE_CHECKING:
    from zeusrun.bandit.registry import Policy
    from zeusrun.history.sql.store import SqlHistory

MIGRATE = "/migrate"
"""Ends the server's URL of a client whose settings replace those registered."""
PATIENCE_S = 4.0
"""The client waits 5 s for a batch size. A trial that began later would have no training."""


def build_router(history: SqlHistory, policy: Policy) -> APIRouter:
    """Return Zeus's routes over a history; the policy chooses the batch sizes of all jobs."""
    service = ZeusService(history, policy)
    # The client sends JSON without a content type.
    router = APIRouter(strict_content_type=False)
    is_new: dict[int | str, dict[str, Any]] = {
        201: {"model": Settings, "description": "The job is new."}
    }

    def check_access(request: Request, job_id: str) -> Access:
        access = access_of(request)
        access.check_write(service.name_of(job_id))
        return access

    @router.post("/jobs", responses=is_new)
    def register(request: Request, response: Response, job: Settings) -> Settings:
        """Register a job, or check that it is registered with the same settings."""
        access = check_access(request, job.job_id or f"{job.job_id_prefix}-")
        migrate = request.scope["path"].endswith(f"{MIGRATE}/jobs")
        settings, created = service.register(job, access, migrate=migrate)
        response.status_code = 201 if created else 200
        return settings

    @router.get("/jobs/batch_size")
    async def choose_batch_size(request: Request, response: Response, job_id: str) -> TrialId:
        """Begin a training: return its batch size and its number."""
        response.headers["Cache-Control"] = "no-store"
        until_t = time.monotonic() + PATIENCE_S  # from here on, as it may wait for a thread

        def begin() -> TrialId:
            return service.begin(job_id, check_access(request, job_id), until_t)

        return await run_in_threadpool(begin)

    @router.post("/report")
    def report(request: Request, result: Report) -> Answer:
        """Report what a training has taken and reached so far; learn whether it goes on."""
        return service.report(result, check_access(request, result.job_id))

    @router.patch("/trials")
    def end_trial(request: Request, trial: TrialId) -> None:
        """End a training: if no rule stopped it, it died."""
        service.end(trial, check_access(request, trial.job_id))

    @router.delete("/jobs")
    def delete_job(request: Request, job_id: str) -> None:
        """Remove a job; its trials stay in the history, and count no longer."""
        service.delete(job_id, check_access(request, job_id))

    both = APIRouter(tags=["zeus"])
    both.include_router(router)
    both.include_router(router, prefix=MIGRATE, include_in_schema=False)
    return both

"""The routes of Zeus 0.16's batch size optimizer, under the paths that its client expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from zeusrun.server.zeus.messages import Answer, Report, Settings, TrialId
from zeusrun.server.zeus.service import RefusedError, ZeusService

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import TypeAlias

    from zeusrun.bandit.registry import Policy
    from zeusrun.history.sql.store import SqlHistory

    Authorize: TypeAlias = Callable[[Request, str, bool], None]
    Audit: TypeAlias = Callable[[Request, str, str], None]

MIGRATE = "/migrate"
"""Ends the server's URL of a client whose settings replace those registered."""


class _Route(APIRoute):
    """A route that answers refusals as Zeus's own server does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RefusedError as error:
                return JSONResponse({"message": str(error)}, error.status)
            except RequestValidationError as error:
                # Not the input: it may be NaN, which JSON does not have.
                named = ("loc", "msg", "type")
                detail = [{name: each[name] for name in named} for each in error.errors()]
                return JSONResponse({"detail": detail}, 422)

        return handle


def build_router(
    history: SqlHistory,
    policy: Policy,
    *,
    authorize: Authorize,
    audit: Audit = lambda _request, _action, _subject: None,
) -> APIRouter:
    """Return Zeus's routes. Include them without a prefix, and under one that carries a token.

    Args:
        history: Where jobs and trials are stored.
        policy: What chooses the batch sizes of all jobs.
        authorize: Called with the request, the name of the job's history, and whether it is
            written; raises ``HTTPException`` if the request may not do that.
        audit: Called with the request, an action and its subject after each write.
    """
    service = ZeusService(history, policy)

    def admit(request: Request, job_id: str) -> str:
        job = service.name_of(job_id)
        authorize(request, job, True)
        return job

    def register(
        request: Request,
        response: Response,
        job: Settings,
        migrate: Annotated[bool, Query(description="Replace the registered settings.")] = False,
    ) -> Settings:
        """Register a job, or check that it is registered with the same settings."""
        admit(request, job.job_id or f"{job.job_id_prefix}-")
        asked = migrate or request.url.path.endswith(f"{MIGRATE}/jobs")
        settings, created = service.register(job, migrate=asked)
        response.status_code = 201 if created else 200
        audit(request, "zeus job", settings.job_id or "")
        return settings

    def choose_batch_size(request: Request, response: Response, job_id: str) -> TrialId:
        """Begin a training: return its batch size and its number."""
        job = admit(request, job_id)
        trial = service.begin(job_id, request.client.host if request.client else None)
        response.headers["Cache-Control"] = "no-store"
        audit(request, "begin", f"{job}-{trial.trial_number}-1")
        return trial

    def report(request: Request, result: Report) -> Answer:
        """Report what a training has taken and reached so far; learn whether it goes on."""
        job = admit(request, result.job_id)
        answer = service.report(result)
        audit(request, "report", f"{job}-{result.trial_number}-1")
        return answer

    def end_trial(request: Request, trial: TrialId) -> None:
        """End a training: if no rule stopped it, it died."""
        job = admit(request, trial.job_id)
        service.end(trial)
        audit(request, "end", f"{job}-{trial.trial_number}-1")

    def delete_job(request: Request, job_id: str) -> None:
        """Remove a job; its trials stay in the history, and count no longer."""
        job = admit(request, job_id)
        service.delete(job_id)
        audit(request, "delete zeus job", job)

    # The client sends JSON without a content type.
    router = APIRouter(tags=["zeus"], route_class=_Route, strict_content_type=False)
    for prefix in ("", MIGRATE):
        options: dict[str, Any] = {"include_in_schema": not prefix}
        router.post(f"{prefix}/jobs", responses={201: {"model": Settings}}, **options)(register)
        router.get(f"{prefix}/jobs/batch_size", **options)(choose_batch_size)
        router.post(f"{prefix}/report", **options)(report)
        router.patch(f"{prefix}/trials", **options)(end_trial)
        router.delete(f"{prefix}/jobs", **options)(delete_job)
    return router

"""The routes of Zeus 0.16's batch size optimizer, under the paths that its client expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from zeusrun.server.zeus.messages import Answer, Report, Settings, TrialId
from zeusrun.server.zeus.service import RefusedError, ZeusService

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from zeusrun.bandit.registry import Policy
    from zeusrun.history.sql.store import SqlHistory

    Admit: TypeAlias = Callable[[Request, str], "Writer"]

MIGRATE = "/migrate"
"""Ends the server's URL of a client whose settings replace those registered."""


class Writer(Protocol):
    """A request that may change a job."""

    def audited(self, action: str, subject: str) -> AbstractContextManager[None]:
        """Log the change that is made inside of the block."""


class Refused(BaseModel):
    """Why a request was refused."""

    message: str


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


def build_router(history: SqlHistory, policy: Policy, admit: Admit) -> APIRouter:
    """Return Zeus's routes.

    Args:
        history: Where jobs and trials are stored.
        policy: What chooses the batch sizes of all jobs.
        admit: Called with each request and the name of the history that it changes; raises if the
            request may not do that.
    """
    service = ZeusService(history, policy)
    # The client sends JSON without a content type.
    router = APIRouter(route_class=_Route, strict_content_type=False)
    answers = _refusals(409)
    answers[201] = {"model": Settings, "description": "The job is new."}

    @router.post("/jobs", responses=answers)
    def register(
        request: Request,
        response: Response,
        job: Settings,
        migrate: Annotated[bool, Query(description="Replace the registered settings.")] = False,
    ) -> Settings:
        """Register a job, or check that it is registered with the same settings."""
        writer = admit(request, service.name_of(job.job_id or f"{job.job_id_prefix}-"))
        asked = migrate or request.url.path.endswith(f"{MIGRATE}/jobs")
        settings, created = service.register(job, writer.audited, migrate=asked)
        response.status_code = 201 if created else 200
        return settings

    @router.get("/jobs/batch_size", responses=_refusals(400, 503))
    def choose_batch_size(request: Request, response: Response, job_id: str) -> TrialId:
        """Begin a training: return its batch size and its number."""
        writer = admit(request, service.name_of(job_id))
        response.headers["Cache-Control"] = "no-store"
        client = request.client.host if request.client else None
        return service.begin(job_id, client, writer.audited)

    @router.post("/report", responses=_refusals(400))
    def report(request: Request, result: Report) -> Answer:
        """Report what a training has taken and reached so far; learn whether it goes on."""
        writer = admit(request, service.name_of(result.job_id))
        return service.report(result, writer.audited)

    @router.patch("/trials", responses=_refusals(404))
    def end_trial(request: Request, trial: TrialId) -> None:
        """End a training: if no rule stopped it, it died."""
        service.end(trial, admit(request, service.name_of(trial.job_id)).audited)

    @router.delete("/jobs", responses=_refusals(404))
    def delete_job(request: Request, job_id: str) -> None:
        """Remove a job; its trials stay in the history, and count no longer."""
        service.delete(job_id, admit(request, service.name_of(job_id)).audited)

    both = APIRouter(tags=["zeus"])
    both.include_router(router)
    both.include_router(router, prefix=MIGRATE, include_in_schema=False)
    return both


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Refused} for code in codes}

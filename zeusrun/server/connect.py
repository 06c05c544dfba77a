"""Gives another machine a token of its own for a code that ``zeusrun token create`` has printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import AfterValidator, BaseModel, Field

from zeusrun.history.sql.tokens import redeem_code
from zeusrun.server.api import API, check_client
from zeusrun.server.auth import check_origin
from zeusrun.server.refusals import LOG, Json, Refusal

if TYPE_CHECKING:
    from starlette.responses import Response

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.server.auth import Authentication


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


class Redeemed(BaseModel):
    """A code, and the name of the machine that uses it."""

    code: str = Field(max_length=100)
    host: Annotated[str, Field(min_length=1, max_length=253), AfterValidator(_check_printable)]


def build_connect_router(authentication: Authentication, history: SqlHistory) -> APIRouter:
    """Return the routes, which need no token: a code is one."""

    async def describe() -> Response:
        """Say that this is a zeusrun server, so that no code is sent to another one."""
        return Json({"api": API})

    async def redeem(request: Request, body: Redeemed) -> Response:
        """Use a code; return a new token."""
        check_origin(request.headers)
        client = request.client.host if request.client else ""
        authentication.guesses.take(client, 0)
        made = await run_in_threadpool(redeem_code, history.engine, body.code, body.host)
        if made is None:
            authentication.guesses.take(client)
            raise Refusal(
                400,
                "code",
                "this code cannot be used: it is mistyped, was used before or is older than an "
                "hour, or its token is no longer valid; `zeusrun token create` makes another",
            )
        LOG.info("connect %s: token %s from %s", body.host, made[0], client)
        return Json({"token": made[1]}, 201)

    router = APIRouter(prefix="/api/v1", dependencies=[Depends(check_client)], tags=["zeusrun"])
    router.add_api_route("/connect", describe, methods=["GET"], response_model=None)
    router.add_api_route("/connect", redeem, methods=["POST"], status_code=201, response_model=None)
    return router

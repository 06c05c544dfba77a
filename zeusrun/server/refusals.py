"""How the server refuses a request: a status, a code for programs, a sentence for people.

No answer contains a traceback, a statement of SQL or the URL of the database: those are for the
server's own log.
"""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from zeusrun import __version__
from zeusrun.errors import HistoryError
from zeusrun.history.base import Conflict, UnavailableError, UnknownTrialError, UnreadableTrialError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import Scope

LOG = logging.getLogger("zeusrun.server")
RETRY_S = 2
"""When a client that was refused for now should try again."""
OF_ZEUS = "zeusrun.zeus"
"""In the scope of a request for one of Zeus's routes."""


class Json(JSONResponse):
    """JSON in ASCII: texts of training scripts may have halves of surrogate pairs."""

    def render(self, content: Any) -> bytes:  # noqa: ANN401 - JSON is any
        """Return the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class Refusal(Exception):  # noqa: N818 - it is an answer, not a failure of the server
    """A request is refused. ``code`` is one word for programs, ``advice`` for their authors."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers, self.advice = dict(headers or {}), advice

    def answer(self, scope: Scope, faults: Sequence[Mapping[str, Any]] = ()) -> Response:
        """Return the response to a request; ``faults`` are what FastAPI found in its form.

        Zeus's server answers its own errors with ``message``, and those of FastAPI with ``detail``.
        """
        error = {"code": self.code, "message": self.message, "advice": self.advice}
        content: dict[str, Any] = {"error": error}
        if OF_ZEUS in scope:
            details = [{key: each[key] for key in ("loc", "msg", "type")} for each in faults]
            content |= {"message": self.message, "detail": details or self.message}
        return Json(content, self.status, headers=self.headers)


def invalid(message: object) -> Refusal:
    """Return the refusal of a request that can never succeed."""
    return Refusal(422, "invalid", str(message))


def unreadable(error: ValueError) -> Refusal:
    """Return the refusal of a record that a newer zeusrun may have sent: it can be sent later."""
    text = f"{error}; the server is zeusrun {__version__}: if you have a newer one, update it"
    return Refusal(422, "unreadable", text)


def overloaded(message: str, code: str = "overloaded") -> Refusal:
    """Return the refusal of a request that may succeed a little later."""
    return Refusal(503, code, message, {"Retry-After": str(RETRY_S)})


def refusal_of(error: Exception, where: str = "") -> Refusal:
    """Return the refusal that an error means; ``where`` is the request, for the log."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, HistoryError):
        return _refusal_of_history(error, where)
    if isinstance(error, HTTPException):
        codes = {404: "route", 405: "method"}
        headers = dict(error.headers or {})
        return Refusal(
            error.status_code, codes.get(error.status_code, "invalid"), str(error.detail), headers
        )
    LOG.error("%sthis is a bug in zeusrun: %s", where, _describe(error))
    return Refusal(500, "bug", "this is a bug in zeusrun; the server's log contains more")


def _refusal_of_history(error: HistoryError, where: str) -> Refusal:
    if isinstance(error, Conflict):
        return Refusal(409, "conflict", str(error))
    if isinstance(error, UnknownTrialError):
        return Refusal(404, "unknown", str(error))
    LOG.error("%s%s", where, error)
    if isinstance(error, UnreadableTrialError):  # trying again does not help
        return Refusal(500, "damaged", str(error))
    what = "does not respond" if isinstance(error, UnavailableError) else "cannot be used"
    text = f"the server's database {what}; the server's log says why"
    return overloaded(text, code="unavailable")


def answer_error(request: Request, error: Exception) -> Response:
    """Answer a request that raised an error."""
    return refusal_of(error, f"{request.method} {request.url.path}: ").answer(request.scope)


def answer_invalid(request: Request, error: Any) -> Response:  # noqa: ANN401 - FastAPI's
    """Answer a request whose parameters or body do not have the form of the API's description."""
    faults = error.errors()
    place = ".".join(str(part) for part in faults[0]["loc"])
    return invalid(f"{place}: {faults[0]['msg']}").answer(request.scope, faults)


def _describe(error: Exception) -> str:
    """Return an error in one line, with the modules and lines that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-6:])
    return " ".join(f"{type(error).__name__}: {error} (at {places})".split())

"""The routes of the pages, how they are sent, and signing in.

Signing in is a form for a token, and a cookie that keeps it. The cookie is HttpOnly, so no script
reads it, and SameSite=Lax, so other sites can only link to a page. It permits reading only:
requests that change something need the header.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from zeusrun.history.base import UnavailableError
from zeusrun.history.rules import job_of
from zeusrun.server import api
from zeusrun.server.auth import COOKIE, access_of, check_origin
from zeusrun.server.pages import document
from zeusrun.server.pages.jobs import job_page, overview_page
from zeusrun.server.pages.machines import machines_page
from zeusrun.server.pages.reports import UNREADABLE, Reports, Visit
from zeusrun.server.pages.runs import run_page, runs_page
from zeusrun.server.refusals import LOG, Refusal
from zeusrun.view.report.markup import Html, join, tag
from zeusrun.view.units import sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.server.auth import Authentication
    from zeusrun.server.settings import ServerSettings

_FOREVER = "private, max-age=31536000, immutable"
_DEMO = tag("strong", "Demo: nothing here was measured", class_="demo")
_THREADS = 4


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


def _as_document(build: Callable[..., document.Page], *, demo: bool) -> Callable[[Visit], Response]:
    """Return what sends a page, or a page that says why there is none."""

    def answer(visit: Visit) -> Response:
        request, asked = visit.request, visit.request.path_params
        job, status, version = asked.get("job") or job_of(asked.get("trial", "")), 200, None
        try:
            version = visit.version(job)  # first, so that the page is not older
            page = build(visit, **asked)
        except document.NotFoundError as error:
            status, version = 404, None
            page = document.message_page(visit.links, "Not found", str(error))
        except UNREADABLE as error:
            LOG.warning("a page cannot be shown: %s", error)
            text = "The history cannot be read now; the server's log says why."
            if isinstance(error, UnavailableError):
                text = "The database does not respond."
            status, version, text = 503, None, f"{text} This page comes back by itself."
            page = document.message_page(visit.links, "Not available", text)
        owner = _DEMO if demo else account(request)
        whole = document.build_document(page, visit.links, owner, job=job, version=version)
        headers = {
            **document.HEADERS,
            "ETag": f'"{hashlib.sha256(whole.encode()).hexdigest()[:24]}"',
        }
        if status == 503:
            headers |= {"Retry-After": "5", "Refresh": "5"}
        if status == 200 and request.headers.get("If-None-Match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(whole, status, headers)

    return answer


def _send_version(visit: Visit) -> Response:
    """Send the version of a job, or of all: a page asks for itself if that differs."""
    job = visit.request.query_params.get("job")
    if job is not None:
        try:
            visit.check_job(job)
        except document.NotFoundError as error:
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
    if name not in document.STATIC:
        return _send_text("There is no such file.", 404)
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": _FOREVER}
    return Response(document.static_text(name), media_type=document.STATIC[name], headers=headers)


def _send_text(text: str, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(text, status, headers, media_type="text/plain")


_KEPT_S = 30 * 86400
_NO_STORE = {"Cache-Control": "no-store"}


def build_login_router(authentication: Authentication, settings: ServerSettings) -> APIRouter:
    """Return the routes to sign in and out."""
    prefix = settings.path_prefix
    cookie_path = prefix or "/"

    async def show_form(next: str = "") -> Response:  # noqa: A002 - in addresses
        return _respond(_form(_inside(next, prefix)))

    async def sign_in(request: Request) -> Response:
        check_origin(request.headers)
        form = parse_qs((await request.body()).decode("utf-8", "replace"))
        place = _inside(form.get("next", [""])[0], prefix)
        text = form.get("token", [""])[0].strip()
        try:
            client = request.client.host if request.client else ""
            await authentication.check_token(text, client, "/login")
        except Refusal as refusal:
            if refusal.status not in {401, 403}:
                raise
            content = _form(place, sentence(refusal.message))
            return _respond(content, status=refusal.status)
        answer = RedirectResponse(place, 303, _NO_STORE)
        answer.set_cookie(
            COOKIE,
            text,
            max_age=_KEPT_S,
            path=cookie_path,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return answer

    async def sign_out(request: Request) -> Response:
        check_origin(request.headers)
        answer = RedirectResponse(f"{prefix}/login", 303, _NO_STORE)
        answer.delete_cookie(COOKIE, path=cookie_path, httponly=True, samesite="lax")
        return answer

    router = APIRouter(include_in_schema=False)
    router.add_api_route("/login", show_form, methods=["GET"], response_model=None)
    router.add_api_route("/login", sign_in, methods=["POST"], response_model=None)
    router.add_api_route("/logout", sign_out, methods=["POST"], response_model=None)
    return router


def account(request: Request) -> Html | None:
    """Return a button to sign out for the header of a page; ``None`` if nobody has signed in."""
    access = access_of(request)
    if not access.by_cookie:
        return None
    button = tag("button", "Sign out", type="submit", title=f"Token {access.token}")
    return tag("form", button, method="post", action=document.links_of(request).to("logout"))


def _how() -> Html:
    """Return how to make a token; nobody is told which database it is."""
    who = (
        "The administrator of the server makes one, as its user, with its ZEUSRUN_HOME and "
        "--database-url: "
    )
    command = tag("code", "zeusrun token create --job '*' --read")
    return tag("p", who, command, class_="commands")


def _form(place: str, problem: str = "") -> Html:
    label = tag("label", "Token", for_="token")
    field = Html(
        '<input id="token" name="token" type="password" required autofocus '
        'autocomplete="current-password" spellcheck="false" maxlength="200">'
    )
    hidden = tag("input", type="hidden", name="next", value=place)
    user = Html(  # for managers of passwords
        '<input name="username" value="zeusrun" autocomplete="username" hidden>'
    )
    return join(
        (
            tag("h1", "Sign in"),
            tag("p", problem, role="alert") if problem else "",
            tag(
                "form",
                hidden,
                user,
                label,
                field,
                tag("button", "Sign in", type="submit"),
                method="post",
                action="login",
            ),
            _how(),
        )
    )


def _respond(content: Html, *, status: int = 200) -> Response:
    whole = document.build_document(document.Page("Sign in", content), document.Links())
    return HTMLResponse(whole, status, {**document.HEADERS, **_NO_STORE})


def _inside(place: str, prefix: str) -> str:
    """Return the path of a page of this server; a foreign address becomes the first page."""
    plain = place.isascii() and place.isprintable() and "\\" not in place
    is_own = place.startswith(f"{prefix}/") and not place.startswith("//")
    return place if plain and is_own else f"{prefix}/"

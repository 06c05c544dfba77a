"""Signing in to the page: a form for a token, and the cookie that keeps it.

The cookie is HttpOnly, so no script reads it, and SameSite=Lax, so other sites can only link to a
page. It permits reading only: requests that change something need the header.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from zeusrun.redaction import hide_password
from zeusrun.server.auth import COOKIE, access_of, check_origin, is_local
from zeusrun.server.pages.document import HEADERS, Links, Page, build_document, links_of
from zeusrun.server.refusals import Refusal
from zeusrun.view.report.markup import Html, join, tag
from zeusrun.view.units import sentence

if TYPE_CHECKING:
    from zeusrun.server.auth import Authentication
    from zeusrun.server.settings import ServerSettings

_KEPT_S = 30 * 86400
_NO_STORE = {"Cache-Control": "no-store"}


def build_login_router(authentication: Authentication, settings: ServerSettings) -> APIRouter:
    """Return the routes to sign in and out."""
    prefix = settings.path_prefix
    cookie_path = prefix or "/"

    async def show_form(request: Request, next: str = "") -> Response:  # noqa: A002 - in addresses
        return _respond(_form(_inside(next, prefix), _how(request, settings)))

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
            content = _form(place, _how(request, settings), sentence(refusal.message))
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
    return tag("form", button, method="post", action=links_of(request).to("logout"))


def _how(request: Request, settings: ServerSettings) -> Html:
    """Return how to make a token.

    The command names the database, so that it is right for any user and home. Other machines are
    not told which database it is, and nobody is told its password.
    """
    command, url = "zeusrun token create --job '*' --read", settings.database_url
    if is_local(request) and hide_password(url) == url:
        command = f"{command} --database-url {quote(url)}"
        return tag("p", "To make one: ", tag("code", command), class_="commands")
    who = (
        "The administrator of the server makes one, as its user, with its ZEUSRUN_HOME and "
        "--database-url: "
    )
    return tag("p", who, tag("code", command), class_="commands")


def _form(place: str, how: Html, problem: str = "") -> Html:
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
            how,
        )
    )


def _respond(content: Html, *, status: int = 200) -> Response:
    document = build_document(Page("Sign in", content), Links())
    return HTMLResponse(document, status, {**HEADERS, **_NO_STORE})


def _inside(place: str, prefix: str) -> str:
    """Return the path of a page of this server; a foreign address becomes the first page."""
    plain = place.isascii() and place.isprintable() and "\\" not in place
    is_own = place.startswith(f"{prefix}/") and not place.startswith("//")
    return place if plain and is_own else f"{prefix}/"

"""Signing in to the page: a form for a token, and the cookie that keeps it.

The cookie is HttpOnly, so no script reads it, and SameSite=Lax, so other sites can only link to a
page. It permits reading only: requests that change something need the header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from zeusrun.server.auth import COOKIE, access_of, check_origin
from zeusrun.server.pages.document import HEADERS, Links, Page, build_document
from zeusrun.server.refusals import Refusal
from zeusrun.view.report.markup import Html, escape, join, tag

if TYPE_CHECKING:
    from zeusrun.server.auth import Authentication
    from zeusrun.server.settings import ServerSettings

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
            await authentication.check_token(text, request.client.host if request.client else "")
        except Refusal as refusal:
            if refusal.status != 401:
                raise
            why = refusal.message
            return _respond(_form(place, f"{why[:1].upper()}{why[1:]}."), status=401)
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
    """Return who has signed in at a proxy, or a button to sign out, for the header of a page."""
    access = access_of(request)
    if access.person is not None:
        return tag("span", access.person, class_="who", title=f"Signed in as {access.person}")
    if not access.by_cookie:
        return None
    depth = request.url.path.removeprefix(request.scope.get("root_path", "")).count("/") - 1
    button = tag("button", "Sign out", type="submit", title=f"Token {access.token}")
    return tag("form", button, method="post", action="../" * depth + "logout")


def _form(place: str, problem: str = "") -> Html:
    label = tag("label", "Token", for_="token")
    field = Html(
        '<input id="token" name="token" type="password" required autofocus '
        'autocomplete="current-password" spellcheck="false" maxlength="200">'
    )
    hidden = Html(
        f'<input type="hidden" name="next" value="{escape(place)}">'
        '<input name="username" value="zeusrun" autocomplete="username" hidden>'  # for managers
    )
    how = "Whoever runs this server makes one with: zeusrun token create --read"
    return join(
        (
            tag("h1", "Sign in"),
            tag("p", problem, role="alert") if problem else "",
            tag(
                "form",
                hidden,
                label,
                field,
                tag("button", "Sign in", type="submit"),
                method="post",
                action="login",
            ),
            tag("p", how),
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

"""The output of ``token`` for people and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from zeusrun.clock import timestamp
from zeusrun.view import units
from zeusrun.view.console import plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from zeusrun.history.sql.tokens import Token

_STYLES = {"valid": "green", "expired": "yellow", "revoked": "dim"}


def tokens_table(tokens: Sequence[Token], where: str) -> RenderableType:
    """Return what each token of a database permits, and when it was last used."""
    if not tokens:
        return Text(f"{where} has no tokens yet; make one: zeusrun token create --job '*' --write")
    table = plain_table("token", "jobs", "may", "state", "expires", "last used", "note")
    for token in tokens:
        state = token.state
        table.add_row(
            token.id,
            token.jobs,
            "write" if token.can_write else "read",
            Text(state, style=_STYLES[state]),
            _moment(token.expires_at) if token.expires_at else "never",
            _moment(token.used_at) if token.used_at else "never",
            token.note or "",
        )
    return table


def until(token: Token) -> str:
    """Return how long a token is valid."""
    return "for ever" if token.expires_at is None else f"until {_moment(token.expires_at)}"


def token_json(token: Token) -> dict[str, Any]:
    """Return a token as ``--json`` prints it; times are RFC 3339."""
    times = {
        name: None if (at := getattr(token, name)) is None else timestamp(at)
        for name in ("created_at", "expires_at", "revoked_at", "used_at")
    }
    may = "write" if token.can_write else "read"
    own = {"token": token.id, "jobs": token.jobs, "may": may, "state": token.state}
    return {**own, **times, "note": token.note}


def _moment(at: float) -> str:
    return units.minute(timestamp(at))

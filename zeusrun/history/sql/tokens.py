"""The tokens of a server: what each permits. The database has their hashes only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from zeusrun.history.sql.engine import now_s, reading, writing
from zeusrun.history.sql.schema import TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.engine import Engine

TOKEN = re.compile(r"zeusrun_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
"""What a token looks like; its first group is its id."""


@dataclass(frozen=True)
class Token:
    """A token as the database knows it; all times in Unix seconds by the database's clock.

    Attributes:
        id: Names it; it is the readable part of the token itself.
        jobs: A pattern for the names of jobs, such as ``team-*``.
        can_write: Whether it permits changes, too.
        for_zeus: Whether it permits nothing but the requests of Zeus's clients.
        note: What it is for.
        created_at: When it was made.
        expires_at: Until when it is valid; ``None``: for ever.
        revoked_at: When it was revoked.
        used_at: When it was last used, to the minute.
        expired: Whether ``expires_at`` is over.
        hash: SHA-256 of the token.
    """

    id: str
    jobs: str
    can_write: bool
    for_zeus: bool
    note: str | None
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None
    expired: bool
    hash: str = field(repr=False)

    @property
    def may(self) -> str:
        """``read``, ``write`` or ``zeus``."""
        return "zeus" if self.for_zeus else "write" if self.can_write else "read"

    @property
    def state(self) -> str:
        """``valid``, ``expired`` or ``revoked``."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expired else "valid"

    @property
    def valid(self) -> bool:
        """Whether it permits anything now."""
        return self.state == "valid"


def create_token(
    engine: Engine,
    jobs: str,
    *,
    can_write: bool,
    for_zeus: bool = False,
    lasts_s: float | None = None,
    note: str | None = None,
) -> tuple[str, Token]:
    """Make a token; return it, as nobody can read it later, and what it permits."""
    own_id = secrets.token_hex(4)
    text = f"zeusrun_{own_id}_{secrets.token_urlsafe(32)}"
    values = {
        "id": own_id,
        "hash": _hash(text),
        "jobs": jobs,
        "can_write": can_write,
        "for_zeus": for_zeus,
        "note": note,
        "created_at": now_s(),
        "expires_at": None if lasts_s is None else now_s() + lasts_s,
    }
    with writing(engine) as connection:
        connection.execute(sa.insert(TOKENS).values(values))
    return text, next(token for token in list_tokens(engine) if token.id == own_id)


def list_tokens(engine: Engine) -> list[Token]:
    """Return all tokens that were ever made, oldest first."""
    expired = sa.func.coalesce(TOKENS.c.expires_at < now_s(), sa.false()).label("expired")
    query = sa.select(TOKENS, expired).order_by(TOKENS.c.created_at, TOKENS.c.id)
    with reading(engine) as connection:
        return [Token(**row) for row in connection.execute(query).mappings()]


def revoke_token(engine: Engine, own_id: str) -> bool:
    """Make a token invalid for ever; return whether there is a token with this id."""
    update = sa.update(TOKENS).where(TOKENS.c.id == own_id)
    update = update.values(revoked_at=sa.func.coalesce(TOKENS.c.revoked_at, now_s()))
    with writing(engine) as connection:
        return bool(connection.execute(update).rowcount)


def mark_used(engine: Engine, ids: Iterable[str]) -> None:
    """Record that tokens have been used just now."""
    update = sa.update(TOKENS).where(TOKENS.c.id.in_(list(ids)))
    with writing(engine) as connection:
        connection.execute(update.values(used_at=now_s()))


def find_token(tokens: Iterable[Token], text: str) -> Token | None:
    """Return the token that a text is, whether valid or not; ``None`` if it is none.

    It takes the same time for any text with the id of a token.
    """
    match = TOKEN.fullmatch(text)
    found = next((token for token in tokens if match and token.id == match[1]), None)
    return found if found and hmac.compare_digest(_hash(text), found.hash) else None


def _hash(text: str) -> str:
    # A token has 256 random bits, so a slow hash would protect it no better.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()

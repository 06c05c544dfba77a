"""The tokens of a server: what each permits. The database has their hashes only.

A code gives one machine a token of its own, with the rights of another: it is used once, within an
hour.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sqlalchemy as sa

from zeusrun.history.sql.engine import now_s, reading, write, writing
from zeusrun.history.sql.schema import CODES, TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.engine import Connection, Engine

TOKEN = re.compile(r"zeusrun_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
"""What a token looks like; its first group is its id."""
CODE_S = 3600.0
"""How long a code is valid."""
_CODE_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # none looks like another one
_CODE_LENGTH = 16  # 80 bits
_BY_CODE = ", by a code of "  # in the note of a token


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

    def is_of(self, other: str) -> bool:
        """Whether it is valid, and a code of the token with this id gave it to a machine."""
        return self.valid and (self.note or "").endswith(f"{_BY_CODE}{other}")


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
    expires_at = None if lasts_s is None else now_s() + lasts_s
    rights = {"jobs": jobs, "can_write": can_write, "for_zeus": for_zeus, "expires_at": expires_at}
    with writing(engine) as connection:
        own_id, text = _insert(connection, **rights, note=note)
    return text, next(token for token in list_tokens(engine) if token.id == own_id)


def create_code(engine: Engine, own_id: str) -> str:
    """Make a code that passes the rights of a token on to one machine; return it."""
    letters = "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_LENGTH))
    values = {"hash": _hash(letters), "token": own_id, "expires_at": now_s() + CODE_S}
    with writing(engine) as connection:
        connection.execute(sa.delete(CODES).where(CODES.c.expires_at < now_s()))
        connection.execute(sa.insert(CODES).values(values))
    return "-".join(re.findall("....", letters))


def redeem_code(engine: Engine, code: str, host: str) -> tuple[str, str] | None:
    """Use a code for a machine; return the id of its new token, and the token.

    ``None``: the code is not known, was used or has expired, or its token is no longer valid.
    """
    code_hash = _hash(re.sub(r"[\s-]", "", code).lower())
    its_own, given = CODES.c.hash == code_hash, TOKENS.c.expires_at
    rights = (TOKENS.c.jobs, TOKENS.c.can_write, TOKENS.c.for_zeus, given)
    known = sa.select(TOKENS.c.id, *rights).join(CODES, CODES.c.token == TOKENS.c.id)
    known = known.where(its_own, CODES.c.expires_at > now_s(), TOKENS.c.revoked_at.is_(None))
    known = known.where(sa.or_(given.is_(None), given > now_s()))

    def work(connection: Connection) -> tuple[str, str] | None:
        row = connection.execute(known).mappings().first()
        used = connection.execute(sa.delete(CODES).where(its_own)).rowcount
        if row is None or not used:  # of two requests at once, one deletes nothing
            return None
        passed_on = dict(row)
        from_ = passed_on.pop("id")
        return _insert(connection, **passed_on, note=f"{host}{_BY_CODE}{from_}")

    return write(engine, work)


def _insert(connection: Connection, **values: object) -> tuple[str, str]:
    """Add a token; return its id, and the token."""
    own_id = secrets.token_hex(4)
    text = f"zeusrun_{own_id}_{secrets.token_urlsafe(32)}"
    values |= {"id": own_id, "hash": _hash(text), "created_at": now_s()}
    connection.execute(sa.insert(TOKENS).values(values))
    return own_id, text


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

"""Tokens, in each database."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

pytest.importorskip("sqlalchemy")

from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import (
    TOKEN,
    create_token,
    find_token,
    list_tokens,
    mark_used,
    revoke_token,
)

DATABASES = [
    "sqlite_url",
    pytest.param("postgres_url", marks=pytest.mark.long),
]


@pytest.fixture(params=DATABASES)
def history(request):
    with closing(SqlHistory(request.getfixturevalue(request.param))) as history:
        yield history


def test_a_token_is_made_found_used_and_revoked(history):
    engine = history.engine
    text, token = create_token(engine, "team-*", can_write=True, lasts_s=60, note="nightly")
    assert TOKEN.fullmatch(text)[1] == token.id
    assert (token.jobs, token.can_write, token.note) == ("team-*", True, "nightly")
    assert token.created_at == pytest.approx(time.time(), abs=30)
    assert token.expires_at == pytest.approx(token.created_at + 60, abs=1)
    assert (token.valid, token.used_at, token.revoked_at) == (True, None, None)
    other, _ = create_token(engine, "*", can_write=False)
    late, _ = create_token(engine, "*", can_write=False, lasts_s=-1)
    tokens = list_tokens(engine)
    assert find_token(tokens, text) == token
    assert find_token(tokens, other).expires_at is None
    assert not find_token(tokens, late).valid
    for wrong in ("", "nobody", text[:-1], f"{text}x", text.replace(token.id, "00000000")):
        assert find_token(tokens, wrong) is None
    mark_used(engine, [token.id])
    assert revoke_token(engine, token.id)
    assert not revoke_token(engine, "00000000")
    now = find_token(list_tokens(engine), text)
    assert now.used_at == pytest.approx(now.revoked_at, abs=30)
    assert not now.valid
    assert revoke_token(engine, token.id)  # again: the first time stays
    assert find_token(list_tokens(engine), text) == now
    assert text not in repr(tokens)
    assert tokens[0].hash not in repr(tokens)

"""Tokens, in each database."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from zeusrun.history.sql import tokens
from zeusrun.history.sql.engine import reading
from zeusrun.history.sql.schema import CODES
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import (
    TOKEN,
    create_code,
    create_token,
    find_token,
    list_tokens,
    mark_used,
    redeem_code,
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
    known = list_tokens(engine)
    assert find_token(known, text) == token
    assert find_token(known, other).expires_at is None
    assert not find_token(known, late).valid
    for wrong in ("", "nobody", text[:-1], f"{text}x", text.replace(token.id, "00000000")):
        assert find_token(known, wrong) is None
    mark_used(engine, [token.id])
    assert revoke_token(engine, token.id)
    assert not revoke_token(engine, "00000000")
    now = find_token(list_tokens(engine), text)
    assert now.used_at == pytest.approx(now.revoked_at, abs=30)
    assert not now.valid
    assert revoke_token(engine, token.id)  # again: the first time stays
    assert find_token(list_tokens(engine), text) == now
    assert text not in repr(known)
    assert known[0].hash not in repr(known)


def test_a_code_passes_the_rights_of_its_token_on_once(history):
    engine = history.engine
    _, given = create_token(engine, "team-*", can_write=True, lasts_s=600)
    code = create_code(engine, given.id)
    assert re.fullmatch("([a-km-np-z2-9]{4}-){3}[a-km-np-z2-9]{4}", code)
    assert redeem_code(engine, code[:-1] + "0", "gpu1") is None
    own_id, text = redeem_code(engine, code.upper().replace("-", " "), "gpu1")
    made = find_token(list_tokens(engine), text)
    assert (made.id, made.note) == (own_id, f"gpu1, by a code of {given.id}")
    assert (made.jobs, made.may, made.expires_at) == ("team-*", "write", given.expires_at)
    assert redeem_code(engine, code, "gpu2") is None
    assert revoke_token(engine, own_id)
    assert next(token for token in list_tokens(engine) if token.id == given.id).valid


def test_a_code_ends_with_its_hour_and_with_its_token(history, monkeypatch):
    engine = history.engine
    _, given = create_token(engine, "*", can_write=False)
    kept = create_code(engine, given.id)
    monkeypatch.setattr(tokens, "CODE_S", -1.0)
    assert redeem_code(engine, create_code(engine, given.id), "gpu1") is None
    monkeypatch.undo()
    _, late = create_token(engine, "*", can_write=False, lasts_s=-1)
    assert redeem_code(engine, create_code(engine, late.id), "gpu1") is None
    assert revoke_token(engine, given.id)
    assert redeem_code(engine, kept, "gpu1") is None
    assert len(list_tokens(engine)) == 2


def test_the_database_has_the_hash_of_a_code_alone(history):
    _, given = create_token(history.engine, "*", can_write=False)
    code = create_code(history.engine, given.id)
    with reading(history.engine) as connection:
        (row,) = connection.execute(sa.select(CODES)).all()
    assert not any(code.replace("-", "") in str(value) or code in str(value) for value in row)


def test_of_two_that_use_a_code_at_once_one_gets_a_token(history):
    _, given = create_token(history.engine, "*", can_write=True)
    for _ in range(5):
        code, both = create_code(history.engine, given.id), threading.Barrier(2)

        def use(host, code=code, both=both):
            with closing(SqlHistory(history.engine.url.render_as_string(False))) as own:
                both.wait(300)
                return redeem_code(own.engine, code, host)

        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(use, ("gpu1", "gpu2")))
        assert sum(each is not None for each in made) == 1
    assert len(list_tokens(history.engine)) == 6

"""Tokens and the audit log, in each database."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

pytest.importorskip("sqlalchemy")

from tests.factories import DONE, begin, build_trial
from zeusrun.history.sql.audit import (
    AuditEntry,
    audited,
    list_entries,
    prune_entries,
)
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
    pytest.param("mariadb_url", marks=pytest.mark.long),
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


def test_the_audit_log_is_written_with_the_change_or_not_at_all(history):
    with audited(AuditEntry("begin", "job-1-1", "abcd1234", "192.0.2.1")):
        begin(history, build_trial())
    with audited(AuditEntry("finish", "job-9-1")), pytest.raises(Exception, match="no trial"):
        history.finish("job-9-1", DONE)
    history.finish("job-1-1", DONE)  # nobody announced it
    for _ in range(2):  # the second time changes nothing
        with audited(AuditEntry("settings", "x" * 999, client="y" * 999)):
            history.keep_settings("job", "name: job")
    with audited(AuditEntry("finish", "job-1-1")):
        history.finish("job-1-1", DONE)
    entries = list_entries(history.engine, 2)
    assert [entry[:4] for entry in entries] == [
        ("begin", "job-1-1", "abcd1234", "192.0.2.1"),
        ("settings", "x" * 250, None, "y" * 64),
    ]
    assert entries[0].at == pytest.approx(time.time(), abs=30)
    assert list_entries(history.engine, 1) == entries[1:]


def test_old_entries_of_the_audit_log_are_removed(history):
    create_token(history.engine, "*", can_write=False)
    assert prune_entries(history.engine, 1) == 0
    assert prune_entries(history.engine, -1) >= 1
    assert list_entries(history.engine, 9) == []

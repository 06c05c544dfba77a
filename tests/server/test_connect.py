"""Codes over HTTP: each gives one machine a token of its own."""

from __future__ import annotations

import pytest

from zeusrun.history.sql import tokens as token_store
from zeusrun.history.sql.tokens import create_code, create_token, list_tokens, revoke_token

WRONG = "aaaa-bbbb-cccc-dddd"


@pytest.fixture
def make_code(server):
    """Make a token and a code of it; return the id of the token, and the code."""

    def make(jobs="*", *, write=True, **options):
        with server.history() as history:
            token = create_token(history.engine, jobs, can_write=write, **options)[1]
            return token.id, create_code(history.engine, token.id)

    return make


def redeem(server, code, host="gpu1", **headers):
    return server.ask("POST", "/api/v1/connect", {"code": code, "host": host}, **headers)


def test_a_code_is_exchanged_for_a_token_with_the_same_rights(server, make_code, logged):
    own_id, code = make_code("team-*", write=False, lasts_s=60)
    assert server.get("/api/v1/connect").json == {"api": 1}
    answer = redeem(server, code)
    assert answer.status == 201
    access = server.get("/api/v1", answer.json["token"]).json["access"]
    assert (access["jobs"], access["write"], access["token"] != own_id) == ("team-*", False, True)
    assert logged == [f"connect gpu1: token {access['token']} from 127.0.0.1"]
    with server.history() as history:
        given, made = list_tokens(history.engine)
        assert (made.expires_at, made.note) == (given.expires_at, f"gpu1, by a code of {own_id}")
        revoke_token(history.engine, access["token"])
    assert server.get("/api/v1", answer.json["token"]).status == 401


def test_a_code_that_was_used_or_has_ended_is_refused_in_the_same_words(
    server, make_code, monkeypatch
):
    used, revoked, expired = make_code(), make_code(), make_code(lasts_s=-1)
    monkeypatch.setattr(token_store, "CODE_S", -1.0)
    late = make_code()
    assert redeem(server, used[1]).status == 201
    with server.history() as history:
        revoke_token(history.engine, revoked[0])
        count = len(list_tokens(history.engine))
    answers = [redeem(server, code) for _, code in (used, revoked, expired, late)]
    answers.append(redeem(server, WRONG))
    assert {(each.status, each.code) for each in answers} == {(400, "code")}
    assert len({each.message for each in answers}) == 1
    assert "`zeusrun token create` makes another" in answers[0].message
    with server.history() as history:
        assert len(list_tokens(history.engine)) == count


def test_the_description_of_the_api_has_it(server):
    assert set(server.get("/api/v1/openapi.json").json["paths"]["/api/v1/connect"]) == {
        "get",
        "post",
    }


def test_what_is_no_code_of_a_machine_is_refused(server, make_code):
    _, code = make_code()
    for body in ({}, {"code": code}, {"code": "x" * 101, "host": "a"}, {"code": code, "host": ""}):
        assert server.ask("POST", "/api/v1/connect", body).code == "invalid"
    for host in ("a\x1b[2J", "a\x00", "x" * 254):
        assert redeem(server, code, host).code == "invalid"
    assert redeem(server, code, Origin="https://evil.example").code == "forbidden"
    assert redeem(server, "x" * 5000).code == "size"
    assert redeem(server, code).status == 201

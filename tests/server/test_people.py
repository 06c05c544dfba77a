"""People whom a proxy has signed in: whose word counts, and what they may read."""

from __future__ import annotations

import http.client
import json
import shutil
from contextlib import closing
from dataclasses import replace

import pytest

from tests.factories import DONE, build_trial
from tests.server.conftest import Answer, serving

ALICE = ("X-Forwarded-User", "alice@example.org")
HTML = ("Accept", "text/html,*/*")
PEOPLE = {
    "auth_header": "X-Forwarded-User",
    "groups_header": "X-Forwarded-Groups",
    "people": {
        "alice@example.org": "team-*",
        "@research": "digits",
        "@ops": "*",
        "jürgen": "team-a",
    },
}


@pytest.fixture(scope="module")
def people(empty_sqlite, tmp_path_factory):
    """A server on which people sign in, with two jobs; no test changes who may read what."""
    path = tmp_path_factory.mktemp("people") / "history.db"
    shutil.copy(empty_sqlite, path)
    with serving(database_url=f"sqlite:///{path}", **PEOPLE) as server:
        token = server.create_token()
        for job in ("team-a", "digits"):
            assert server.begin(build_trial(job=job), token).status == 201
        yield server


def ask(server, path, *headers, peer="127.0.0.1", method="GET", body=None):
    """Send a request with exactly these headers, from an address of this machine."""
    line = http.client.HTTPConnection("127.0.0.1", server.port, 30, source_address=(peer, 0))
    with closing(line):
        line.putrequest(method, path)
        content = b"" if body is None else json.dumps(body).encode()
        for name, value in (*headers, ("Content-Length", str(len(content)))):
            line.putheader(name, value)
        line.endheaders(content)
        answer = line.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read())


def jobs_of(server, *headers, **where):
    answer = ask(server, "/api/v1/jobs", *headers, **where)
    return answer.json["jobs"] if answer.status == 200 else answer.status


def test_a_person_reads_the_jobs_of_their_entry_and_no_others(people):
    assert jobs_of(people, ALICE) == ["team-a"]
    assert ask(people, "/api/v1/jobs/team-a/trials", ALICE).json["total"] == 1
    answer = ask(people, "/api/v1/jobs/digits/trials", ALICE)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert answer.message == "alice@example.org may read jobs called team-*, not digits"
    assert ask(people, "/api/v1", ALICE).json["access"]["jobs"] == "team-*"
    page = ask(people, "/", ALICE, HTML).body
    assert (b"team-a" in page, b"digits" in page) == (True, False)
    assert ask(people, "/job/team-a", ALICE, HTML).status == 200
    assert ask(people, "/job/digits", ALICE, HTML).status == 404
    assert ask(people, "/run/digits-1-1", ALICE, HTML).status == 404
    assert b"digits" not in ask(people, "/metrics", ALICE).body


@pytest.mark.parametrize(
    ("name", "groups", "jobs"),
    [
        ("alice@example.org", "research", ["digits", "team-a"]),
        ("bob", "research", ["digits"]),
        ("bob", "x, research ,y", ["digits"]),
        ("alice@example.org", "ops,research", ["digits", "team-a"]),
        ("j\u00fcrgen".encode(), "", ["team-a"]),
        ("Alice@example.org", "", 403),  # exactly as it stands in the settings
        ("bob", "Research", 403),
        ("bob", "@research", 403),
        ("@research", "", 403),  # nobody is a group by their name
        ("research", "alice@example.org", 403),
        ("alice@example.org, bob", "", 403),  # two names that a proxy has joined
    ],
)
def test_entries_of_a_person_and_of_their_groups_add_up(people, name, groups, jobs):
    headers = ("X-Forwarded-User", name), ("X-Forwarded-Groups", groups)
    found = jobs_of(people, *headers)
    assert (sorted(found) if isinstance(found, list) else found) == jobs


def test_an_entry_for_everybody_is_for_all_whom_the_proxy_lets_through(start):
    server = start(auth_header="Remote-User", people={"*": "public-*", "bob": "digits"})
    with server.history() as history:
        history.add([build_trial(job=job).finish(DONE) for job in ("digits", "public-a")])
    assert jobs_of(server, ("Remote-User", "anybody")) == ["public-a"]
    assert sorted(jobs_of(server, ("Remote-User", "bob"))) == ["digits", "public-a"]
    assert jobs_of(server, ("Remote-User", "*")) == ["public-a"]
    assert jobs_of(server) == 401
    assert jobs_of(server, ("Remote-Groups", "x")) == 401


def test_who_may_read_nothing_is_told_what_to_ask_for(people, logged):
    mallory = ("X-Forwarded-User", "mallory <b>")
    answer = ask(people, "/api/v1/jobs", mallory)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert answer.message == (
        "mallory <b> is signed in, but may read no job here. The administrator can add "
        '"mallory <b>": "team-*" to `people` in server.yaml, and restart it'
    )
    page = ask(people, "/job/team-a", mallory, HTML)
    assert (page.status, page.headers["cache-control"]) == (403, "no-store")
    assert b"refuses this request: mallory &lt;b&gt; is signed in, but" in page.body
    assert b'href="../static/page.css' in page.body
    assert logged == [f"refused: person mallory <b> from 127.0.0.1: {answer.message}"] * 2


def test_people_change_nothing(people, logged):
    token = people.create_token()
    logged.clear()
    trial = build_trial(2, job="team-a")
    begun = {"trial": trial.to_json(), "after": people.version("team-a", token)}
    kind = ("Content-Type", "application/json")
    for method, path, body in (
        ("POST", "/api/v1/jobs/team-a/trials", begun),
        ("POST", "/api/v1/jobs/team-a/imports", {"trials": []}),
        ("POST", "/api/v1/jobs/team-a/turns", {"number": 0}),
        ("DELETE", "/api/v1/jobs/team-a/turns/1", None),
        ("PUT", "/api/v1/jobs/team-a/settings", {"settings": ""}),
        ("POST", "/api/v1/trials/team-a-1-1/outcome", DONE.to_json()),
        ("POST", "/api/v1/trials/team-a-1-1/forgotten", {"forgotten": True}),
        ("PUT", "/api/v1/trials/team-a-1-1/lease", {}),
        ("PUT", "/api/v1/trials/team-a-1-1/trace", {}),
        ("PUT", "/api/v1/hosts/gpu1", {}),
        ("GET", "/jobs/batch_size?job_id=team-a", None),  # a GET that begins a run
    ):
        answer = ask(people, path, ALICE, kind, method=method, body=body)
        assert (answer.status, answer.code) == (403, "forbidden"), path
        assert answer.message == "people may only read; a change needs a token"
    assert people.get("/api/v1/jobs/team-a/trials", token).json["total"] == 1
    refused = "refused: person alice@example.org from 127.0.0.1: people may only read; a change"
    assert sum(line.startswith(refused) for line in logged) == 11


def test_a_token_in_the_request_counts_instead_of_the_person(people):
    token = people.create_token("digits")
    own = ("Authorization", f"Bearer {token}")
    assert jobs_of(people, ALICE, own) == ["digits"]
    second = replace(build_trial(2, job="digits"), uuid="e" * 32)
    begun = {"trial": second.to_json(), "after": people.version("digits", token)}
    kind = ("Content-Type", "application/json")
    path = "/api/v1/jobs/digits/trials"
    assert ask(people, path, ALICE, own, kind, method="POST", body=begun).status == 201
    assert jobs_of(people, ALICE, ("Authorization", "Bearer wrong")) == 401
    assert jobs_of(people, ALICE, ("Authorization", "Basic YTpi")) == ["team-a"]  # oauth2-proxy's
    for sent, status in ((token, 403), ("wrong", 401), ("", 401)):
        zeus = ask(people, f"/zeus/{sent}/jobs/batch_size?job_id=team-a", ALICE)
        assert zeus.status == status
        assert "alice" not in zeus.message


def test_the_cookie_of_a_token_counts_where_the_proxy_names_nobody(people):
    cookie = ("Cookie", f"zeusrun_token={people.create_token('digits')}")
    assert jobs_of(people, cookie) == ["digits"]
    assert jobs_of(people, cookie, ALICE) == ["team-a"]
    assert b"Sign out" in ask(people, "/", cookie, HTML).body
    refused = ask(people, "/", HTML)
    assert (refused.status, refused.headers["location"]) == (303, "/login?next=/")


def test_the_page_shows_who_is_signed_in(people):
    page = ask(people, "/", ALICE, HTML).body
    assert b'<span class="who" title="Signed in as alice@example.org">alice@example.org<' in page
    assert b"Sign out" not in page


def test_the_header_counts_only_from_a_trusted_proxy(start):
    """The peer of the connection decides, not what X-Forwarded-For makes of it."""
    server = start(**{**PEOPLE, "trusted_proxies": "127.0.0.2, 127.0.1.0/24"})
    for peer in ("127.0.0.2", "127.0.1.7"):
        assert jobs_of(server, ALICE, peer=peer) == []
        assert jobs_of(server, ALICE, ("X-Forwarded-For", "192.0.2.7"), peer=peer) == []
    for peer in ("127.0.0.1", "127.0.0.3"):  # a client itself, and a proxy that is not trusted
        assert jobs_of(server, ALICE, peer=peer) == 401
        for claimed in ("127.0.0.2", "127.0.0.1", "192.0.2.7, 127.0.0.2"):
            for name in ("X-Forwarded-For", "X-Real-IP", "Forwarded"):
                assert jobs_of(server, ALICE, (name, claimed), peer=peer) == 401
    mallory = ("X-Forwarded-User", "mallory")
    assert jobs_of(server, mallory, mallory, peer="127.0.0.3") == 401  # not even looked at


def test_where_people_sign_in_nobody_else_needs_no_token(start):
    """Not on the same machine, and not before the first token."""
    assert start(**PEOPLE).get("/api/v1/jobs").status == 401
    assert start(**PEOPLE, insecure=True).get("/api/v1/jobs").status == 401


def test_without_the_setting_no_header_names_anybody(start):
    assert jobs_of(start(require_token=True), ALICE) == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([ALICE, ALICE], 400),
        ([ALICE, ("X-Forwarded-User", "bob")], 400),
        ([ALICE, ("x-forwarded-user", "")], 400),
        ([ALICE, ("X-Forwarded-Groups", "a"), ("X-Forwarded-Groups", "ops")], 400),
        ([ALICE, ("X-Forwarded-Groups", "ops\x1b[2J")], 400),
        ([("X-Forwarded-User", "a\x1b[2J")], 400),
        ([("X-Forwarded-User", "a\tb")], 400),
        ([("X-Forwarded-User", "a\u0085b".encode())], 400),
        ([("X-Forwarded-User", "a\u202eb".encode())], 400),
        ([("X-Forwarded-User", b"\xff")], 400),
        ([("X-Forwarded-User", "a" * 201)], 400),
        ([("X-Forwarded-User", "a" * 200)], 403),
        ([("X-Forwarded-User", "")], 401),  # nobody is signed in
        ([("X-Forwarded-User", " ")], 401),
        ([("X_Forwarded_User", "alice@example.org")], 401),
        ([("X-Forwarded_User", "alice@example.org")], 401),
        ([("X-ForwardedUser", "alice@example.org")], 401),
        ([("Forwarded-User", "alice@example.org")], 401),
        ([("Remote-User", "alice@example.org")], 401),
        ([("X-Forwarded-Groups", "ops")], 401),
        ([("x-FORWARDED-user", "alice@example.org")], 200),
        ([ALICE, ("X_Forwarded_User", "bob")], 200),
    ],
)
def test_only_one_clear_name_in_exactly_this_header_is_a_person(people, logged, headers, status):
    answer = ask(people, "/api/v1/jobs", *headers)
    assert answer.status == status
    if status == 400:
        assert answer.code == "invalid"
        assert "X-Forwarded-" in answer.message
        assert logged == [f"refused: person unknown from 127.0.0.1: {answer.message}"]
    assert all(line.isprintable() for line in logged)


def test_the_log_says_once_who_came_and_what_they_may_read(start, logged):
    server = start(**PEOPLE)
    for _ in range(2):
        ask(server, "/api/v1/jobs", ALICE, ("X-Forwarded-For", "192.0.2.7"))
    ask(server, "/api/v1/jobs", ALICE, ("X-Forwarded-Groups", "research"))
    ask(server, "/api/v1/jobs/digits/trials", ALICE)
    who = "person alice@example.org from"
    assert logged == [
        f"{who} 192.0.2.7 may read jobs called team-*",
        f"{who} 127.0.0.1 may read jobs called team-*, digits",
        f"refused: {who} 127.0.0.1: alice@example.org may read jobs called team-*, not digits",
    ]


def test_what_changes_elsewhere_does_not_reach_the_page_of_a_person(people):
    token = people.create_token()
    before = ask(people, "/version", ALICE).body
    digits = people.get("/version?job=digits", token).body
    people.ask("POST", "/api/v1/trials/digits-1-1/outcome", DONE.to_json(), token)
    assert people.get("/version?job=digits", token).body != digits
    assert ask(people, "/version", ALICE).body == before
    assert ask(people, "/version?job=digits", ALICE).status == 404
    people.ask("POST", "/api/v1/trials/team-a-1-1/outcome", DONE.to_json(), token)
    assert ask(people, "/version", ALICE).body != before


def test_a_page_of_another_site_reads_nothing_as_a_person(people):
    for headers in (("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")):
        assert jobs_of(people, ALICE, headers) == 403

"""Signing in to the page."""

from __future__ import annotations

import html
import re
from http.cookies import SimpleCookie

HTML = {"Accept": "text/html,*/*"}


def sign_in(server, token, to="/", **headers):
    return server.submit_form("/login", {"token": token, "next": to}, **headers)


def cookie(answer):
    return SimpleCookie(answer.headers["set-cookie"])["zeusrun_token"]


def test_who_opens_a_page_signs_in_and_comes_back(server):
    token = server.create_token(write=False)
    refused = server.get("/job/a?before=5", **HTML)
    assert refused.status == 303
    assert refused.headers["location"] == "/login?next=/job/a%3Fbefore%3D5"
    form = server.get(refused.headers["location"])
    assert (form.status, b'value="/job/a?before=5"' in form.body) == (200, True)
    answer = sign_in(server, token, "/job/a?before=5")
    assert (answer.status, answer.headers["location"]) == (303, "/job/a?before=5")
    kept = cookie(answer)
    assert (kept["httponly"], kept["samesite"], kept["path"]) == (True, "lax", "/")
    page = server.get("/", Cookie=f"zeusrun_token={kept.value}", **HTML)
    assert (page.status, b"Sign out" in page.body) == (200, True)


def read_command(page):
    return html.unescape(re.search(r"<code>(.*)</code>", page.body.decode())[1])


def test_the_form_says_who_makes_a_token_and_nobody_is_told_the_database(server):
    page = server.get("/login")
    assert read_command(page) == "zeusrun token create --job '*' --read"
    assert b"with its ZEUSRUN_HOME and --database-url" in page.body
    assert b"sqlite" not in page.body


def test_a_wrong_token_is_told_and_sets_no_cookie(server):
    server.create_token()
    answer = sign_in(server, "wrong")
    assert (answer.status, "set-cookie" in answer.headers) == (401, False)
    assert b"This token is not known to the server." in answer.body


def test_signing_out_removes_the_cookie(server):
    answer = server.submit_form("/logout", {})
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert cookie(answer)["max-age"] == "0"


def test_the_cookie_reads_and_changes_nothing(server):
    token = server.create_token()
    own = {"Cookie": f"zeusrun_token={token}"}
    assert server.get("/api/v1/jobs", **own).status == 200
    assert server.ask("PUT", "/api/v1/hosts/gpu1", {}, **own).status == 401
    begun = server.get("/jobs/batch_size?job_id=mnist", **own)  # a GET that begins a run
    assert (begun.status, begun.code) == (401, "token")


def test_pages_of_other_sites_neither_sign_in_nor_out(server):
    token = server.create_token()
    for headers in ({"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert sign_in(server, token, **headers).status == 403
        assert server.submit_form("/logout", {}, **headers).status == 403


def test_nobody_is_sent_elsewhere_after_signing_in(server):
    token = server.create_token()
    foreign = ["https://evil.example/", "//evil.example", "/\\evil.example", "/\r\nX: y", "//["]
    for to in (*foreign, "evil", "/caf\xe9", ""):
        assert sign_in(server, token, to).headers["location"] == "/"


def test_behind_a_path_prefix_all_of_this_is_under_it(start):
    server = start(path_prefix="/team/zeusrun")
    token = server.create_token()
    for path in ("/team/zeusrun/", "/"):  # a proxy may have removed it
        answer = server.get(path, **HTML)
        assert answer.headers["location"] == "/team/zeusrun/login?next=/team/zeusrun/"
    for path in ("/team/zeusrun/login", "/login"):
        answer = server.submit_form(path, {"token": token, "next": "/team/zeusrun/machines"})
        assert answer.headers["location"] == "/team/zeusrun/machines"
        assert cookie(answer)["path"] == "/team/zeusrun"
    assert sign_in(server, token, "/elsewhere").headers["location"] == "/team/zeusrun/"
    for path in ("/team/zeusrun/api/v1/jobs", "/api/v1/jobs"):
        assert server.get(path, token).json == {"jobs": []}
    zeus = server.get(f"/team/zeusrun/zeus/{token}/jobs/batch_size?job_id=a")
    assert (zeus.status, b"unknown job" in zeus.body) == (400, True)  # Zeus's own answer


def test_the_cookie_is_secure_behind_https(server):
    token = server.create_token()
    answer = sign_in(server, token, X_Forwarded_Proto="https")
    assert cookie(answer)["secure"] is True

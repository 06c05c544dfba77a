"""Signing in to the page."""

from __future__ import annotations

import html
import re
import shlex
import shutil
from http.cookies import SimpleCookie

import pytest

from zeusrun.server.app import build_app
from zeusrun.server.settings import ServerSettings

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


def test_the_command_of_the_page_makes_a_token_of_this_server(start, zeusrun, empty_sqlite):
    folder = zeusrun.folder / "it's here"
    folder.mkdir()
    shutil.copy(empty_sqlite, folder / "own.db")
    url = f"sqlite:///{folder}/own.db"
    server = start(database_url=url, path_prefix="/team", require_token=True)
    name, *arguments = shlex.split(read_command(server.get("/team/login")))
    assert name == "zeusrun"
    made = zeusrun(*arguments)
    assert made.returncode == 0, made.stderr
    assert server.get("/team/api/v1/jobs", made.stdout.strip()).status == 200
    wrong = server.submit_form("/team/login", {"token": "wrong"})
    assert read_command(wrong) == shlex.join([name, *arguments])


def test_other_machines_are_not_told_the_database(server):
    page = server.get("/login", X_Forwarded_For="192.0.2.7")
    assert read_command(page) == "zeusrun token create --job '*' --read"
    assert b"with its ZEUSRUN_HOME and --database-url" in page.body
    assert b"sqlite" not in page.body


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@db/z", "postgresql://db/z?password=hunter2"]
)
def test_nobody_is_told_the_password_of_the_database(url):
    pytest.importorskip("psycopg")
    pytest.importorskip("httpx")
    from fastapi.testclient import TestClient

    app = build_app(ServerSettings(database_url=url))
    page = TestClient(app, "http://127.0.0.1", client=("127.0.0.1", 50000)).get("/login").text
    assert "<code>zeusrun token create --job &#x27;*&#x27; --read</code>" in page
    assert "hunter2" not in page


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

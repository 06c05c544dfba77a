"""How the client reaches a server: addresses, proxies, deadlines, tokens, refusals."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import socket
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, closing, suppress

import pytest

from tests.servers import Proxy
from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.base import Conflict, RefusedError, UnavailableError, UnknownTrialError
from zeusrun.history.http.address import check_url, is_loopback
from zeusrun.history.http.client import HttpHistory, read_token
from zeusrun.history.http.transport import Transport, _find_proxy

SECRET = "a-very-secret-token"


class Scripted:
    """A server that answers every request with the same bytes, and keeps what it gets."""

    def __init__(self, answer, *, pause_s=0.0, size=20, close=True):
        self._answer, self._pause_s, self._close, self._size = answer, pause_s, close, size
        self.got = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.ended = threading.Event()
        self._clients, self._threads = [], [threading.Thread(target=self._run)]
        self._threads[0].start()

    def _run(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client):
        with client, suppress(OSError):
            while data := client.recv(1 << 16):
                self.got.append(data)
                size = self._size if self._pause_s else len(self._answer) or 1
                for at in range(0, len(self._answer), size):
                    client.sendall(self._answer[at : at + size])
                    self.ended.wait(self._pause_s)
                if self._close:
                    return

    def close(self):
        self.ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # its thread waits for a client
        self._listener.close()
        self._threads[0].join()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


def http(status, body, *headers):
    text = body if isinstance(body, str) else json.dumps(body)
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}", *headers]
    return ("\r\n".join(head) + "\r\n\r\n" + text).encode()


@pytest.fixture
def serve():
    servers = []

    def make(*arguments, **options):
        servers.append(Scripted(*arguments, **options))
        return servers[-1]

    yield make
    for each in servers:
        each.close()


@pytest.fixture
def connect():
    """Return a function that makes a client of a server; its connections end with the test."""
    with ExitStack() as stack:

        def make(*arguments):
            return stack.enter_context(closing(HttpHistory(*arguments)))

        yield make


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http", "https", "all", "no"):
        for variable in (f"{name}_proxy", f"{name}_proxy".upper()):
            monkeypatch.delenv(variable, raising=False)


def ask(url):
    with closing(HttpHistory(url, SECRET)) as history:
        return history.find("digits-1-1")


def refusal(code, message="no"):
    return {"error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (http(409, refusal("conflict")), Conflict, "no"),
        (http(422, refusal("invalid", "bad")), ValueError, "bad"),
        (http(413, refusal("size", "larger than")), ValueError, "larger than"),
        (http(413, "too much"), RefusedError, r"413; a proxy .* allow 32 MiB"),
        (http(401, refusal("token", "bad token")), RefusedError, "bad token; `zeusrun token"),
        (http(400, "<h1>plain HTTP request"), RefusedError, "answers https, not http: correct"),
        (http(403, refusal("forbidden")), RefusedError, "token create"),
        (http(400, refusal("version", "update yours")), RefusedError, "update yours"),
        (http(500, refusal("bug", "a bug")), HistoryError, "a bug"),
        (http(503, refusal("overloaded", "later")), UnavailableError, "later"),
        (http(502, "<html>bad gateway"), UnavailableError, "502"),
        (http(200, "<html>hello"), HistoryError, "address of a zeusrun server"),
        (http(200, []), HistoryError, "address of a zeusrun server"),
        (http(200, {"status": "ok"}), HistoryError, "address of a zeusrun server"),
        (http(200, {"trial": ["a"]}), HistoryError, "address of a zeusrun server"),
        (http(200, {"trial": {"status": "ASLEEP"}}), HistoryError, "update zeusrun here"),
        (http(404, refusal("route", "Not Found")), RefusedError, "Not Found; is this the add"),
        (http(404, "not here"), RefusedError, "address of a zeusrun server"),
        (http(301, "", "Location: https://other/"), RefusedError, "redirects to https://other/"),
        (b"220 smtp.example.org ESMTP\r\n", UnavailableError, "does not respond"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", UnavailableError, "does not respond"),
        (b"", UnavailableError, "without response; if it is an https address, correct its address"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else "",
)
def test_what_a_server_answers_becomes_the_right_error(serve, answer, kind, words):
    server = serve(answer)
    with pytest.raises(kind, match=words) as error:
        ask(server.url)
    assert type(error.value) is kind
    assert SECRET not in str(error.value)
    assert f"Bearer {SECRET}".encode() in b"".join(server.got)
    assert b"User-Agent: zeusrun/" in b"".join(server.got)


@pytest.mark.parametrize("answer", [{}, {"jobs": 7, "trials": 7, "now": "x", "incarnation": ""}])
def test_an_answer_of_another_program_is_an_error(connect, serve, answer):
    history = connect(serve(http(200, answer)).url)
    for call in (
        history.describe,
        history.jobs,
        lambda: history.changes("job", None),
        lambda: history.unfinished("job"),
    ):
        with pytest.raises(HistoryError, match="address of a zeusrun server"):
            call()


def test_a_server_may_say_when_to_try_again(serve):
    server = serve(http(429, refusal("rate", "too many"), "Retry-After: 7"))
    with pytest.raises(UnavailableError) as error:
        ask(server.url)
    assert error.value.retry_after_s == 7.0


def test_a_trial_that_the_server_does_not_know_is_none(connect, serve):
    server = serve(http(404, refusal("unknown", "no trial")))
    assert ask(server.url) is None
    with pytest.raises(UnknownTrialError):
        connect(server.url).renew("digits-1-1")


@pytest.mark.parametrize("pause_s", [0.05, 30.0])
def test_a_server_that_answers_too_slowly_is_left(connect, serve, pause_s):
    server = serve(http(200, {"trial": " " * 5000}), pause_s=pause_s)
    history, begun_t = connect(server.url), time.monotonic()
    for _ in range(3):
        with pytest.raises(UnavailableError, match="took too long"):
            history._ask("GET", "/trials/a-1-1", dict, limit_s=0.1)
    assert server.connections == 3  # each has a new one
    assert time.monotonic() - begun_t < 20  # 250 pieces would take longer


class Reader:
    """A server that reads a request slowly, and answers it."""

    def __init__(self, bytes_per_s):
        self._rate = bytes_per_s
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.body, self._left = b"", threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def join(self):
        """Read no more, and wait for the end of its thread."""
        self._left.set()
        self._thread.join()

    def _serve(self):
        with self._listener, self._listener.accept()[0] as client, suppress(OSError):
            head, _, self.body = client.recv(1 << 16).partition(b"\r\n\r\n")
            length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            while len(self.body) < length and (data := client.recv(self._rate // 20)):
                self.body += data
                if self._left.wait(len(data) / self._rate):
                    return
            client.sendall(http(200, {}))


@pytest.mark.long  # waits for 4 s
def test_a_long_request_takes_longer_than_a_connection_may(monkeypatch):
    monkeypatch.setattr("zeusrun.history.http.transport._CONNECT_S", 0.5)
    server, body = Reader(4 << 20), bytes(range(256)) * (8 << 12)
    with closing(Transport(server.url)) as transport:
        answer = transport.send("POST", "/", {}, body, 60.0)
    server.join()
    assert (answer.status, server.body) == (200, body)


@pytest.mark.parametrize("rate", [1 << 20, 1000])  # the deadline is over, or a piece takes long
def test_a_server_that_reads_too_slowly_is_left(monkeypatch, rate):
    monkeypatch.setattr("zeusrun.history.http.transport._CONNECT_S", 0.5)
    server, begun_t = Reader(rate), time.monotonic()
    with (
        closing(Transport(server.url)) as transport,
        pytest.raises(UnavailableError, match="took too long"),
    ):
        transport.send("POST", "/", {}, bytes(32 << 20), 2.0)
    assert time.monotonic() - begun_t < 10
    server.join()


def test_a_server_that_speaks_http_is_not_tried_again_by_https(serve):
    server = serve(http(400, "Invalid HTTP request"))
    with pytest.raises(HistoryError, match="answers http, not https: correct its address") as error:
        ask(server.url.replace("http", "https"))
    assert type(error.value) is HistoryError


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError, match="refused"):
        ask(f"http://127.0.0.1:{port}")


def test_a_connection_stays_open_and_one_that_was_closed_is_replaced(connect, serve):
    server = serve(http(200, {"jobs": ["a"]}), close=False)
    history = connect(server.url)
    assert [history.jobs() for _ in range(3)] == [["a"]] * 3
    assert server.connections == 1
    closing = serve(http(200, {"jobs": ["b"]}, "Connection: keep-alive"))
    history = connect(closing.url)
    assert [history.jobs() for _ in range(3)] == [["b"]] * 3  # it is closed after each answer
    assert closing.connections == 3


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@host",
        "https://secret@host",
        "https://secret@host:99999",
        "ftp://secret@host",
        "ftp://host",
        "https://",
        "https://host:port",
        "https://host?token=secret",
        "https://[::1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_secrets(url):
    with pytest.raises(UsageError) as error:
        check_url(url)
    assert "secret" not in str(error.value)


PROXY = {
    "https_proxy": "http://proxy:3128",
    "http_proxy": "other:80",
    "no_proxy": ".local,a.org,*.b.org",
}


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://zeus.example.org", "http://proxy:3128"),
        ("http://zeus.example.org", "http://other:80"),
        ("https://a.org", None),
        ("https://b.a.org", None),
        ("https://ba.org", "http://proxy:3128"),
        ("https://zeus.local", None),
        ("https://zeus.b.org", None),
        ("https://zeusb.org", "http://proxy:3128"),
        ("http://localhost:8787", None),
        ("http://127.0.0.1:8787", None),
        ("https://[::1]:8787", None),
        ("https://localhost.example.org", "http://proxy:3128"),
        ("https://127.example.org", "http://proxy:3128"),
    ],
)
def test_a_proxy_of_the_environment_is_used_except_where_no_proxy_says(url, proxy, monkeypatch):
    assert _find_proxy(check_url(url)) is None
    for name, value in PROXY.items():
        monkeypatch.setenv(name, value)
    assert _find_proxy(check_url(url)) == proxy
    monkeypatch.setenv("no_proxy", "*")
    assert _find_proxy(check_url(url)) is None


def test_a_proxy_of_another_kind_is_refused_without_its_password(monkeypatch):
    for proxy in ("socks5://me:secret@proxy:1080", "me:secret@proxy:99999", "secret@proxy:99999"):
        monkeypatch.setenv("all_proxy", proxy)
        with pytest.raises(UsageError, match="proxy") as error:
            ask("https://zeus.example.org")
        assert "sec" not in str(error.value)


def test_requests_pass_through_a_proxy(connect, serve, monkeypatch):
    proxy = serve(http(200, {"jobs": ["a"]}))
    monkeypatch.setenv("http_proxy", f"http://me:pw%40@127.0.0.1:{proxy.port}")
    assert connect("http://zeus.example.org/x").jobs() == ["a"]
    assert proxy.got[0].startswith(b"GET http://zeus.example.org/x/api/v1/jobs HTTP/1.1")
    assert b"proxy-authorization: basic bwu6chda" in proxy.got[0].lower()
    monkeypatch.setenv("http_proxy", f"http://me:ключ@127.0.0.1:{proxy.port}")
    connect("http://zeus.example.org/x").jobs()
    login = b64encode("me:ключ".encode()).lower()
    assert b"proxy-authorization: basic " + login in proxy.got[1].lower()
    secure = serve(http(407, "who are you?"))
    monkeypatch.setenv("https_proxy", f"http://me:{SECRET}@127.0.0.1:{secure.port}")
    with pytest.raises(UnavailableError, match=r"by the proxy http://\*+@127.0.0.1.*407") as error:
        connect("https://zeus.example.org", SECRET).jobs()
    assert secure.got[0].startswith(b"CONNECT zeus.example.org:443")
    assert f"Bearer {SECRET}".encode() not in secure.got[0]
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "example.org")),
    ],
)
def test_which_addresses_are_of_this_machine_alone(host, loopback):
    assert is_loopback(host) is loopback


def test_without_the_library_one_sentence_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "urllib3" else find(name)
    )
    with pytest.raises(UsageError, match=r"on a server needs urllib3; .* extra 'http': pip inst"):
        HttpHistory("https://zeus.example.org")


def test_a_library_that_is_too_old_is_no_bug(monkeypatch):
    for kind in ("HTTPResponse", "BaseHTTPResponse"):
        monkeypatch.delattr(f"urllib3.{kind}.read1")
    with pytest.raises(UsageError, match=r"on a server needs urllib3 2\.2; .* extra 'http': pip"):
        HttpHistory("https://zeus.example.org")


def test_a_compressed_answer_is_read(connect, serve):
    body = gzip.compress(json.dumps({"jobs": ["a"]}).encode())
    head = f"HTTP/1.1 200 X\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    assert connect(serve(head.encode() + body).url).jobs() == ["a"]


def test_a_lost_answer_is_an_error_at_the_client(connect, serve):
    server = serve(http(200, {"jobs": ["a"]}))
    proxy = Proxy(server.port)
    proxy.mode = "lose"
    with pytest.raises(UnavailableError):
        connect(proxy.url).jobs()
    assert server.got
    proxy.close()


def test_a_token_comes_from_the_environment_or_from_a_file_of_the_home(tmp_path):
    url = "https://zeus.example"
    assert read_token(tmp_path, {}, url) is None
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    assert read_token(tmp_path, {}, url) == SECRET
    assert read_token(tmp_path, {"ZEUSRUN_TOKEN": "another"}, url) == "another"
    path.chmod(0o640)
    with pytest.raises(HistoryError, match="chmod 600"):
        read_token(tmp_path, {}, url)
    for wrong in ("", "a b", "zwei\nlines", "schlüssel"):
        with pytest.raises(HistoryError, match="no token in ZEUSRUN_TOKEN") as error:
            read_token(tmp_path, {"ZEUSRUN_TOKEN": wrong}, url)
        assert not wrong or wrong not in str(error.value)


def test_the_token_of_connect_is_sent_to_no_other_server(tmp_path):
    for name, text in (("token", SECRET), ("address", "https://zeus.example\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    assert read_token(tmp_path, {}, "https://zeus.example/") == SECRET
    for url in ("https://zeus.example.org", "http://zeus.example", "https://zeus.example/other"):
        assert read_token(tmp_path, {}, url) is None
        assert read_token(tmp_path, {"ZEUSRUN_TOKEN": "another"}, url) == "another"

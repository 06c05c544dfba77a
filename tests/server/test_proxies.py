"""HTTPS: by uvicorn itself, and by nginx in front with the configuration that we ship."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from contextlib import closing

import pytest

from tests.factories import REACHED, ROOT, begin, build_trial
from zeusrun.errors import HistoryError
from zeusrun.history.base import UnavailableError
from zeusrun.history.http.client import HttpHistory

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
CONFIGURATION = ROOT / "deploy" / "nginx.conf"
HEAD = """
user root;
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/main.log;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {ours}
}}
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The files of a certificate for 127.0.0.1, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl is installed to make a certificate")
    folder = tmp_path_factory.mktemp("certificate")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run(command, check=True, capture_output=True)
    return f"{folder}/cert.pem", f"{folder}/key.pem"


class Https:
    """Asks a port over HTTPS."""

    def __init__(self, port, certificate):
        self.port = port
        self.context = ssl.create_default_context(cafile=certificate[0])

    def connect(self):
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=self.context, timeout=300
        )

    def ask(self, method, path, body=None, token=None, raw=None, **own):
        headers = {"Content-Type": "application/json", **own}
        headers |= {} if token is None else {"Authorization": f"Bearer {token}"}
        with closing(self.connect()) as line:
            line.request(method, path, json.dumps(body) if body is not None else raw, headers)
            answer = line.getresponse()
            return answer.status, answer.headers, answer.read()


def test_uvicorn_serves_https_by_itself(start, certificate):
    cert, key = certificate
    server = start(ssl_certfile=cert, ssl_keyfile=key)
    status, _, body = Https(server.port, certificate).ask("GET", "/api/v1")
    assert (status, json.loads(body)["api"]) == (200, 1)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        server.get("/api/v1")  # in the clear
    with pytest.raises(UnavailableError, match="if it is an https address, correct its address"):
        HttpHistory(f"http://127.0.0.1:{server.port}").jobs()
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", server.port)) as line:
        ssl.create_default_context().wrap_socket(line, server_hostname="127.0.0.1")


@pytest.fixture
def behind_nginx(start, certificate, tmp_path):
    """A server, and its address through nginx."""
    server = start(path_prefix="/zeusrun")
    with through_nginx(server, certificate, tmp_path, CONFIGURATION.read_text()) as https:
        yield server, https


@contextlib.contextmanager
def through_nginx(server, certificate, tmp_path, ours):
    """Run nginx with our configuration; yield its address."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    for there, here in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("server 127.0.0.1:8787", f"server 127.0.0.1:{server.port}"),
        ("/etc/ssl/certs/zeusrun.pem", certificate[0]),
        ("/etc/ssl/private/zeusrun.key", certificate[1]),
        ("/var/log/nginx", str(tmp_path)),
    ):
        assert there in ours
        ours = ours.replace(there, here)
    path = tmp_path / "nginx.conf"
    path.write_text(HEAD.format(folder=tmp_path, ours=ours))
    command = [NGINX, "-p", str(tmp_path), "-e", f"{tmp_path}/main.log", "-c", str(path)]
    child = subprocess.Popen(command)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert child.poll() is None, (tmp_path / "main.log").read_text()
                time.sleep(0.02)
        yield Https(port, certificate)
    finally:
        child.terminate()
        child.wait()


def test_all_of_it_works_behind_nginx_under_a_path(behind_nginx, logged, tmp_path):
    server, https = behind_nginx
    token = server.create_token()
    status, _, body = https.ask("GET", "/zeusrun/api/v1/jobs/job/trials", token=token)
    assert status == 200
    begun = {"trial": build_trial().to_json(), "after": json.loads(body)["version"]}
    assert https.ask("POST", "/zeusrun/api/v1/jobs/job/trials", begun, token)[0] == 201
    assert https.ask("GET", "/zeusrun/api/v1/jobs")[0] == 401
    # Zeus's clients: their token is in no log.
    status, _, body = https.ask("GET", f"/zeusrun/zeus/{token}/jobs/batch_size?job_id=a")
    assert (status, b"unknown job" in body) == (400, True)
    for path in (f"zeus/{token}/jobs?x=/zeus/y", f"zeus/{token}/zeus/y", f"zeus//zeus/{token}/"):
        https.ask("GET", f"/zeusrun/{path}")
    for path in (f"%7Aeus/{token}/jobs", f"api/{token}", f"login?token={token}", "last"):
        https.ask("GET", f"/zeusrun/{path}")
    while "/last" not in (log := (tmp_path / "zeusrun.log").read_text()):
        time.sleep(0.01)
    assert '"GET /zeusrun/zeus/***/jobs/batch_size" 400' in log
    assert log.count('"GET /zeusrun/zeus/***/jobs" 405') == 2
    assert token[17:] not in log
    # The page: signing in, from a browser that sends where it comes from.
    with closing(https.connect()) as line:
        origin = f"https://127.0.0.1:{https.port}"
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": origin}
        line.request("POST", "/zeusrun/login", f"token={token}&next=/zeusrun/", form)
        answer = line.getresponse()
        assert (answer.status, answer.headers["location"]) == (303, "/zeusrun/")
        cookie = answer.headers["set-cookie"]
        assert re.search(r"; HttpOnly; .*Path=/zeusrun; SameSite=lax; Secure", cookie)
        answer.read()
        line.request("GET", "/zeusrun/", headers={"Cookie": cookie.partition(";")[0]})
        page = line.getresponse().read().decode()
        assert "job" in page
        assert 'href="/' not in page  # every address is relative
    assert f"begin job-1-1: token {token.split('_')[1]} from 127.0.0.1" in logged


def test_a_launcher_works_over_https_behind_nginx(behind_nginx, certificate, monkeypatch):
    server, https = behind_nginx
    url = f"https://127.0.0.1:{https.port}/zeusrun"
    token = server.create_token()
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    stranger = HttpHistory(url, token)
    with pytest.raises(HistoryError, match=r"certificate of .* is not valid: .*SSL_CERT_FILE"):
        stranger.jobs()
    stranger.close()
    with pytest.raises(HistoryError, match="answers https, not http: correct"):
        HttpHistory(url.replace("https", "http"), token).jobs()
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    with closing(HttpHistory(url, token)) as history:
        trial = begin(history, build_trial(uuid="1" * 32))
        history.renew(trial.uuid, {"epoch": 1})
        assert history.live(trial.trial) == {"epoch": 1}
        assert history.finish(trial.trial, REACHED) == trial.finish(REACHED)
        assert history.trials("job") == [trial.finish(REACHED)]
        assert history.describe()["access"]["jobs"] == "*"
    with (
        closing(HttpHistory(url)) as history,
        pytest.raises(HistoryError, match="this server needs a token"),
    ):
        history.jobs()


def test_an_https_server_that_says_nothing_is_left(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            client = context.wrap_socket(listener.accept()[0], server_side=True)
            with client, contextlib.suppress(OSError):
                while client.recv(1 << 16):
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
            ended.set()

        ended = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with closing(HttpHistory(url)) as history:
            with pytest.raises(UnavailableError, match="took too long"):
                history._ask("GET", "/jobs", dict, limit_s=0.3)
            assert ended.wait(300)  # its connection is closed


def test_nginx_refuses_large_bodies(behind_nginx):
    _, https = behind_nginx
    with closing(https.connect()) as line:
        line.putrequest("POST", "/zeusrun/api/v1/jobs/job/imports")
        line.putheader("Content-Length", "100000000")
        line.endheaders()
        assert line.getresponse().status == 413

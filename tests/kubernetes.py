"""A cluster for zeusrun's client: the stand-in, or a server that answers what a test says."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from tests.fake_kubernetes import IMAGE
from zeusrun.run_on.kubernetes import client

if TYPE_CHECKING:
    from pathlib import Path

SECTION = {"image": IMAGE, "resources": {"cpu": 1, "memory": "1Gi"}}
# Pods take their history from a Secret, so that these tests need no server.
SECRETS = {"secrets": {"ZEUSRUN_HISTORY": "zeusrun/history"}}
POLICY = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 75]}},
    ]
}
SAFE = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def build_job(script, name, image=IMAGE, **spec):
    """Return a Job whose pod runs a script of sh, as a namespace with "restricted" takes it."""
    container = {
        "name": "node",
        "image": image,
        "command": ["sh", "-c", script],
        "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    grace_s = spec.pop("grace_s", 20)
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s}
    pod |= {"securityContext": SAFE, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "podFailurePolicy": POLICY, **spec, "template": {"spec": pod}},
    }


def check_strictly(document):
    """Return what ``check`` finds; a field that no schema has is told as a server tells it."""
    from tests.kubernetes_schemas import check  # takes a second

    unexpected = re.compile(
        r"(.*): Additional properties are not allowed \('(.*?)' was unexpected\).*"
    )
    return [unexpected.sub(r'unknown field "\1.\2"', each) for each in check(document)]


def forget_cluster():
    """Let the next call of the client read the kubeconfig again."""
    for each in vars(client).values():
        getattr(each, "cache_clear", lambda: None)()


def write_kubeconfig(path, url, namespace="ml") -> Path:
    described = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "that-of-the-test"}}],
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}
        ],
    }
    path.write_text(yaml.safe_dump(described))
    return path


@pytest.fixture
def kubeconfig(monkeypatch):
    """Let zeusrun in this process use the cluster of a kubeconfig."""

    def use(path):
        monkeypatch.setenv("KUBECONFIG", str(path))
        # The library has read the variable when it was imported.
        default = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(default, str(path))
        forget_cluster()

    monkeypatch.setattr("zeusrun.run_on.registry._states", {})
    yield use
    forget_cluster()


@pytest.fixture
def hasty(monkeypatch):
    """Let nobody pause who waits for a cluster, nor wait long for one that is silent."""
    for name in (
        "zeusrun.commands.follow._POLL_S",
        "zeusrun.run_on.kubernetes.submit._POLL_S",
        "zeusrun.run_on.kubernetes.output._AGAIN_S",
        "zeusrun.run_on.registry._AGAIN_S",
    ):
        monkeypatch.setattr(name, 0.03)
    monkeypatch.setattr("zeusrun.run_on.kubernetes.client._SILENT_S", (5.0, 0.3))


@pytest.fixture
def used_cluster(cluster, kubeconfig, tmp_path):
    """The stand-in, as the cluster of zeusrun in this process."""
    kubeconfig(cluster.kubeconfig(tmp_path / "kubeconfig"))
    return cluster


class Answers:
    """A server that answers what a test says, and notes what it is asked.

    Attributes:
        asked: Each request: verb, path, and options.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.closing = threading.Event()
        self._found: dict[tuple[str, str], tuple[int, list[bytes | float], bool]] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.answers = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, path, answer, code=200, *, verb="GET", cut=False):
        """Say what is answered to a path, which ends as ``path`` does.

        Args:
            path: The end of it.
            answer: JSON, or the bytes of a stream: each part is one chunk, or seconds of silence.
            code: Of HTTP.
            verb: Of HTTP.
            cut: Whether the connection is lost after the last part.
        """
        parts = answer if isinstance(answer, list) else [json.dumps(answer).encode()]
        self._found[verb, path] = code, parts, cut

    def refuse(self, path, code, message, *, verb="GET"):
        """Answer an error as Kubernetes does."""
        status = {"kind": "Status", "status": "Failure", "message": message, "code": code}
        self.put(path, status, code, verb=verb)

    def find(self, verb, path):
        for (known, end), answer in self._found.items():
            if known == verb and path.endswith(end):
                return answer
        text = json.dumps({"kind": "Status", "message": f"{path} not found", "code": 404})
        return 404, [text.encode()], False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: Answers


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        url = urlsplit(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.answers.asked.append((self.command, url.path, dict(parse_qsl(url.query))))
        code, parts, cut = self.server.answers.find(self.command, url.path)
        with suppress(ConnectionError):
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in parts:
                if isinstance(part, float):
                    self.server.answers.closing.wait(part)
                    continue
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
            if not cut:
                self.wfile.write(b"0\r\n\r\n")
                return
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names are given


@pytest.fixture
def answers(kubeconfig, tmp_path):
    """Such a server, as the cluster of zeusrun in this process."""
    server = Answers()
    kubeconfig(write_kubeconfig(tmp_path / "kubeconfig", server.url))
    yield server
    server.close()

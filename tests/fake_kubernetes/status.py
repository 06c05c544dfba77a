"""Kubeflow Trainer's server for the status of TrainJobs: HTTPS, with a token for each TrainJob."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.fake_kubernetes.network import HOST
from tests.fake_kubernetes.store import Failure

NAME = "kubeflow-trainer-controller-manager.kubeflow-system.svc"
TOKEN_FOLDER = "/var/run/secrets/kubeflow/trainer"
_PORT = 10443
_MAX_BODY = 1 << 16
_PATH = re.compile(
    r"/apis/trainer\.kubeflow\.org/v1alpha1/namespaces/([^/]+)/trainjobs/([^/]+)/status"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_CERTIFICATES = f"""
[req]
distinguished_name = dn
prompt = no
[dn]
CN = {NAME}
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = CA:FALSE
subjectAltName = DNS:{NAME}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


def _make_certificates(folder):
    (folder / "conf").write_text(_CERTIFICATES)
    usual = "openssl req -x509 -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    for name, more in (("ca", "-subj /CN=ca"), ("leaf", "-CA ca.crt -CAkey ca.key")):
        words = f"{usual} -config conf -extensions {name} -keyout {name}.key -out {name}.crt {more}"
        subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)


def _problem(status) -> str | None:
    """Return what is wrong with a ``trainerStatus``, as the schema of a TrainJob has it."""

    def is_text(value):
        return isinstance(value, str) and 1 <= len(value) <= 64

    for name, most in (("progressPercentage", 100), ("estimatedRemainingSeconds", 2**31 - 1)):
        value = status.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            return f"status.trainerStatus.{name}: Invalid value: {value}"
    metrics = status.get("metrics") or []
    if len(metrics) > 256:
        return "status.trainerStatus.metrics: Too many: must have at most 256 items"
    if not all(is_text(each.get("name")) and is_text(each.get("value")) for each in metrics):
        return "status.trainerStatus.metrics: Invalid value: 1 to 64 characters"
    if not _TIME.fullmatch(status.get("lastUpdatedTime") or ""):
        return "lastUpdatedTime is required when trainerStatus is present"
    return None


class StatusServer:
    """The server.

    Attributes:
        posts: The monotonic time, the name of the TrainJob, the answer's code and the body of each.
    """

    def __init__(self, cluster, folder) -> None:
        self._cluster, self._folder = cluster, Path(folder)
        self._folder.mkdir(parents=True)
        self._tokens: dict[tuple[str, str], str] = {}
        self.posts: list[tuple[float, str, int, dict]] = []
        _make_certificates(self._folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "leaf.crt", self._folder / "leaf.key")
        self._server = ThreadingHTTPServer((HOST, _PORT), _Handler, bind_and_activate=False)
        self._server.daemon_threads, self._server.status = True, self
        self._server.socket.close()
        listening = cluster.network.listen(_PORT)
        listening.setblocking(True)
        self._server.socket = context.wrap_socket(
            listening, server_side=True, do_handshake_on_connect=False
        )
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def extra(self, trainjob) -> dict:
        """Return what the containers of a TrainJob need to reach the server."""
        meta = trainjob["metadata"]
        path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{meta['namespace']}/trainjobs"
        values = {
            "URL": f"https://{NAME}:{_PORT}{path}/{meta['name']}/status",
            "CA_CERT": f"{TOKEN_FOLDER}/ca.crt",
            "TOKEN": f"{TOKEN_FOLDER}/token",
        }
        volume = {"name": "kubeflow-trainer-token", "projected": {"sources": []}}
        mount = {"name": volume["name"], "mountPath": TOKEN_FOLDER, "readOnly": True}
        named = [{"name": f"KUBEFLOW_TRAINER_SERVER_{key}", "value": values[key]} for key in values]
        return {"node": {"env": named, "volumeMounts": [mount]}, "pod": {"volumes": [volume]}}

    def token_files(self, namespace, name) -> Path:
        """Return the folder with the token of a TrainJob, which all of its pods have."""
        folder = self._folder / namespace / name
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / "ca.crt").write_bytes((self._folder / "ca.crt").read_bytes())
            (folder / "ca.crt").chmod(0o644)
            self.rotate(namespace, name)
        return folder

    def rotate(self, namespace, name):
        """Replace the token of a TrainJob; the one before is no longer valid."""
        self._tokens[namespace, name] = uuid.uuid4().hex
        folder = self._folder / namespace / name
        (folder / "new").write_text(self._tokens[namespace, name])
        (folder / "new").chmod(0o644)
        (folder / "new").replace(folder / "token")

    def answer(self, path, authorization, body) -> dict:
        """Store a status; return the answer."""
        if not (found := _PATH.fullmatch(path)):
            raise Failure(404, "NotFound", "Not found")
        if fault := self._cluster.next_fault(f"POST {path}"):
            fault.happen()
        if len(body) > _MAX_BODY:
            raise Failure(413, "RequestEntityTooLarge", "Payload too large")
        token = self._tokens.get(found.groups())
        if token is None or authorization != f"Bearer {token}":
            raise Failure(403, "Forbidden", "Forbidden")
        try:
            sent = json.loads(body)
            status = sent.get("trainerStatus")
            problem = status and _problem(status)
        except (ValueError, AttributeError):
            problem = "Invalid payload"
        if problem:
            raise Failure(422, "Invalid", problem)
        namespace, name = found.groups()
        store = self._cluster.store
        try:
            trainjob = store.get("trainjobs", namespace, name)
        except Failure:
            raise Failure(404, "NotFound", "Train job not found") from None
        if status is not None:
            with store.edit("trainjobs", trainjob) as new:
                new["status"]["trainerStatus"] = status
        return sent


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except (OSError, ssl.SSLError):  # a client that does not trust the server
            self.close_connection = True

    def do_POST(self):
        status = self.server.status
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        came = time.monotonic()
        try:
            code, said = 200, status.answer(self.path, self.headers.get("Authorization"), body)
        except Failure as failure:
            code, said = failure.code, failure.status
        status.posts.append((came, self.path.split("/")[-2], code, body))
        data = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

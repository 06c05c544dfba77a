"""What the cluster answers over HTTP: a bearer token, roles, and six resources."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tests.fake_kubernetes.controllers import prepare
from tests.fake_kubernetes.store import Failure, copy, missing_object

RESOURCES = {
    ("", "v1"): {"pods": "Pod"},
    ("batch", "v1"): {"jobs": "Job", "cronjobs": "CronJob"},
    ("trainer.kubeflow.org", "v1alpha1"): {"trainjobs": "TrainJob"},
}
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>log))?)?$"
)
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _without_nulls(value):
    """Return an object as it is read: a field that is null is not there."""
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


class Server(ThreadingHTTPServer):
    """The server; it can drop all connections at once."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, cluster, address, handler) -> None:
        self.cluster = cluster
        self.connections: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request, client_address):
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def drop(self):
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(ConnectionError):  # the client has gone, or the test has dropped it
            super().handle()

    def do_GET(self):
        cluster = self.server.cluster
        url = urlsplit(self.path)
        self.query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = cluster.next_fault(f"{self.command} {url.path}")
        cluster.answering.wait()
        try:
            if fault and not fault.after:
                fault.happen()
            code, answer = self._answer(url.path, _without_nulls(json.loads(body or b"{}")))
            if fault:
                fault.happen()
        except Failure as failure:
            code, answer = failure.code, failure.status
        if answer is not None:
            self._send(code, json.dumps(answer).encode(), "application/json")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815 - the names are given

    def _send(self, code, body, kind):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if code == 429:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path, body):
        cluster = self.server.cluster
        if self.headers.get("Authorization") != f"Bearer {cluster.token}":
            raise Failure(401, "Unauthorized", "Unauthorized")
        found = _PATH.match(path)
        group = (found and found["group"]) or ""
        kinds = RESOURCES.get((group, found["version"]), {}) if found else {}
        if not found or found["resource"] not in kinds or group in cluster.absent:
            self._send(404, b"404 page not found\n", "text/plain; charset=utf-8")
            return 404, None
        self._allow(group, found)
        if not found["name"]:
            return self._collection(group, found, kinds[found["resource"]], body)
        if found["part"]:
            return 200, self._send_log(found)
        return 200, self._object(found, body)

    def _allow(self, group, found):
        cluster = self.server.cluster
        resource = "pods/log" if found["part"] else found["resource"]
        verb = _VERBS.get(self.command, "patch")
        if verb == "get" and not found["name"]:
            verb = "watch" if self.query.get("watch") in {"1", "true", "True"} else "list"
        cluster.used.add((group, resource, verb))
        for rule in cluster.rules or []:
            sets = (rule["apiGroups"], rule["resources"], rule["verbs"])
            if all(
                {word, "*"} & set(each)
                for word, each in zip((group, resource, verb), sets, strict=True)
            ):
                return
        if cluster.rules is not None:
            full = f"{found['resource']}.{group}" if group else found["resource"]
            text = f'User "test" cannot {verb} resource "{resource}" in API group "{group}" in the '
            text = f'{full} is forbidden: {text}namespace "{found["namespace"]}"'
            raise Failure(403, "Forbidden", text, kind=found["resource"])

    def _collection(self, group, found, kind, body):
        cluster, resource = self.server.cluster, found["resource"]
        if self.command == "GET":
            with cluster.store.changed:
                items = [each for each in cluster.store.all(resource) if self._selects(found, each)]
                version = cluster.store.version
            if self.query.get("watch") in {"1", "true", "True"}:
                return 200, self._watch(found, items, version)
            meta = {"resourceVersion": str(version)}
            api = "/".join(filter(None, (group, found["version"])))
            return 200, {
                "kind": f"{kind}List",
                "apiVersion": api,
                "metadata": meta,
                "items": items,
            }
        if self.command != "POST":
            raise Failure(405, "MethodNotAllowed", "the server does not allow this method")
        namespace = found["namespace"]
        if namespace not in cluster.namespaces:
            raise missing_object("namespaces", namespace)
        self._check(kind, found["version"], body)
        body["metadata"]["namespace"] = namespace
        for name in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            body["metadata"].pop(name, None)
        return 201, cluster.store.add(resource, prepare(cluster, resource, copy(body)))

    def _check(self, kind, version, body):
        """Answer what is wrong with an object as an API server does: in one text."""
        name = body.get("metadata", {}).get("name", "")
        if body.get("kind") != kind:
            raise Failure(400, "BadRequest", f"the object is a {body.get('kind')}, not a {kind}")
        if not _DNS_LABEL.fullmatch(name) or (kind == "CronJob" and len(name) > 52):
            text = f'{kind} "{name}" is invalid: metadata.name: Invalid value: "{name}"'
            raise Failure(422, "Invalid", text)
        strict = self.query.get("fieldValidation") == "Strict"
        problems = self.server.cluster.validate(copy(body))
        unknown = [each for each in problems if "unknown field" in each]
        if unknown and strict:
            text = f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding '
            raise Failure(400, "BadRequest", f"{text}error: {', '.join(unknown)}")
        if wrong := [each for each in problems if each not in unknown]:
            text = wrong[0] if len(wrong) == 1 else f"[{', '.join(wrong)}]"
            raise Failure(422, "Invalid", f'{kind} "{name}" is invalid: {text}')

    def _object(self, found, body):
        store = self.server.cluster.store
        resource, name = found["resource"], found["name"]
        if self.command == "PUT":
            self._check(RESOURCES[found["group"] or "", found["version"]][resource], "", body)
            body["metadata"] |= {"namespace": found["namespace"]}
            if body["metadata"]["name"] != name:
                text = "the name of the object does not match the name on the URL"
                raise Failure(400, "BadRequest", text)
            return store.replace(resource, body)
        thing = store.get(resource, found["namespace"], name)
        if self.command == "DELETE":
            options = {**self.query, **body}
            usual = "Orphan" if resource == "jobs" else "Background"  # as batch/v1 always did
            grace = options.get("gracePeriodSeconds")
            policy = options.get("propagationPolicy") or usual
            store.delete(
                resource, thing, policy=policy, grace=None if grace is None else int(grace)
            )
            with suppress(Failure):
                return store.get(resource, found["namespace"], name)
            details = {"name": name, "kind": resource, "uid": thing["metadata"]["uid"]}
            return {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}
        if self.command != "GET":
            raise Failure(405, "MethodNotAllowed", "the server does not allow this method")
        return thing

    def _selects(self, found, thing):
        labels = thing["metadata"].get("labels", {})
        for term in filter(None, self.query.get("labelSelector", "").split(",")):
            name, _, value = term.replace("==", "=").partition("=")
            if labels.get(name.strip()) != value.strip():
                return False
        return thing["metadata"]["namespace"] == found["namespace"]

    # Streams: each chunk is one line, as clients of Kubernetes expect it.

    def _begin(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _left(self):
        """Return whether the client has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _watch(self, found, items, version):
        store = self.server.cluster.store
        ends = time.monotonic() + float(self.query.get("timeoutSeconds") or 1800)
        since = self.query.get("resourceVersion") or "0"
        self._begin("application/json")
        if since == "0":
            since = version
            for each in items:
                self._event("ADDED", each)
        since = int(since)
        while time.monotonic() < ends and not self._left():
            with store.changed:
                new = [each for each in store.events if each[0] > since]
                if since < store.oldest:
                    text = f"too old resource version: {since} ({store.oldest})"
                    self._event("ERROR", Failure(410, "Expired", text).status)
                    break
                since = store.version
            for _, resource, event, thing in new:
                if resource == found["resource"] and self._selects(found, thing):
                    self._event(event, thing)
            store.wait(since, min(0.5, max(0, ends - time.monotonic())))
        self._chunk(b"")

    def _event(self, kind, thing):
        thing = {"apiVersion": "v1", "kind": "Pod", **thing}
        self._chunk(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

    def _send_log(self, found):
        cluster = self.server.cluster
        pod = cluster.store.get("pods", found["namespace"], found["name"])
        name = self.query.get("container") or pod["spec"]["containers"][0]["name"]
        if name not in {each["name"] for each in pod["spec"]["containers"]}:
            text = f"container {name} is not valid for pod {found['name']}"
            raise Failure(400, "BadRequest", text)
        if not pod["spec"].get("nodeName"):
            self.send_response(204)  # no kubelet could be asked
            self.end_headers()
            return
        container = cluster.kubelet.container_of(pod)
        if container is None or not container.has_begun:
            waiting = pod["status"]["containerStatuses"][0]["state"].get("waiting", {})
            text = f'container "{name}" in pod "{found["name"]}" is waiting to start: '
            raise Failure(400, "BadRequest", text + waiting.get("reason", "ContainerCreating"))
        follow = self.query.get("follow") in {"1", "true", "True"}
        self._begin("text/plain")
        since = datetime.now(timezone.utc) - timedelta(
            seconds=int(self.query.get("sinceSeconds", 1e9))
        )
        if text := self.query.get("sinceTime"):  # whole seconds, as all times of objects
            since = datetime.fromisoformat(text.replace("Z", "+00:00")).replace(microsecond=0)
        lines = container.lines(since, self.query.get("tailLines"))
        if follow:
            cluster.followed.add(found["name"])
        for stamp, line in lines:
            if line is None:  # nothing new
                if not follow or self._left():
                    break
                continue
            shown = (
                f"{stamp} ".encode()
                if self.query.get("timestamps") in {"1", "true", "True"}
                else b""
            )
            self._chunk(shown + line)
        if container.lost:
            raise ConnectionResetError  # there is no node that could end the stream
        self._chunk(b"")

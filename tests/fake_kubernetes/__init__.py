"""A cluster of Kubernetes on this machine: an API over HTTP, and pods that are real processes.

Needs root, ``iproute2`` and ``nsenter``. What a pod writes goes to its volumes or into a layer of
its own. Every pod has a process that holds it: when the test is done or was killed, it kills it.
Not there: limits of resources, seccomp, events, more than one container in a pod.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.fake_kubernetes.api import Handler, Server
from tests.fake_kubernetes.controllers import Controllers
from tests.fake_kubernetes.kubelet import Container, Kubelet, collect_garbage
from tests.fake_kubernetes.network import HOST, Network
from tests.fake_kubernetes.store import Failure, Store, condition, set_condition
from tests.fake_kubernetes.trainjobs import JOBSET

__all__ = ["IMAGE", "FakeCluster", "Image", "cluster", "condition", "missing"]

IMAGE = "registry.example/train:1"
_TRIAL = """
mount -t tmpfs tmpfs /mnt && mkdir /mnt/a /mnt/b /mnt/c
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/a,workdir=/mnt/b /mnt/c
ip link add zt0 type bridge && ip link add zt1 type veth peer name zt2
"""


@functools.cache
def missing() -> str | None:
    """Return what keeps this machine from having a cluster; ``None`` if nothing does."""
    if os.geteuid() != 0:
        return "namespaces need root"
    for program in ("ip", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"the program {program} is not installed (Debian: iproute2, util-linux)"
    command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec", _TRIAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no containers here: {done.stderr.strip()}" if done.returncode else None


@dataclass
class Image:
    """What the containers of an image have.

    Attributes:
        environment: Variables that a manifest can replace.
        folder: The working directory.
        command: The entrypoint, for a container without a command.
        user: For a container without ``runAsUser``.
        mounts: Paths in the container, and the folders or files of this machine that are there.
        writable: The paths of ``mounts`` that can be written to.
    """

    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    command: list[str] = field(default_factory=list)
    user: int = 0
    mounts: dict[str, Path] = field(default_factory=dict)
    writable: set[str] = field(default_factory=set)


@dataclass
class _Fault:
    what: str
    code: int | None
    times: int
    after: bool

    def happen(self):
        if self.code is None:
            raise ConnectionAbortedError
        raise Failure(self.code, "InternalError", f"fault of a test: {self.code}")


class FakeCluster:
    """A cluster, as a context manager.

    Attributes:
        image: The images that can be pulled, by name. ``IMAGE`` has the Python of these tests.
        claims: The folder of each claim.
        secrets: Their values, by namespace, name and key.
        runtimes: Objects of the kind TrainingRuntime, by namespace and name.
        rules: Those of a Role of the user; ``None`` allows everything.
        used: Each group, resource and verb of a request.
        followed: The pods whose logs somebody has begun to follow.
        validate: Returns what is wrong with an object that is created or replaced.
        absent: API groups that are not installed.
        schedulable: Whether there is room for pods; ``unschedulable_message`` says why not.
        starting: While it is not set, containers are being created.
        host_address: Where pods of TrainJobs find this machine; see ``network``.
        backoff_s: How long a job waits before it replaces a pod that has failed.
    """

    node = "node-1"
    host_address = HOST

    def __init__(self, folder) -> None:
        self.folder = Path(folder)
        self.store = Store()
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self.image = {IMAGE: Image({"PATH": path, "LANG": "C.UTF-8"})}
        self.claims: dict[str, Path] = {}
        self.secrets: dict[str, dict[str, dict[str, str]]] = {}
        self.runtimes: dict[str, dict[str, dict]] = {}
        self.namespaces = {"default", "ml"}
        self.rules: list[dict] | None = None
        self.used: set[tuple[str, str, str]] = set()
        self.followed: set[str] = set()
        self.validate = lambda _: []
        self.absent: set[str] = set()
        self.schedulable = True
        self.unschedulable_message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
        self.backoff_s = 0.05
        self._network: Network | None = None
        self.token = uuid.uuid4().hex
        self.answering, self.starting = threading.Event(), threading.Event()
        self._faults: list[_Fault] = []
        self._closing = threading.Event()
        self._port = 0

    def __enter__(self):
        if reason := missing():
            pytest.skip(reason)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kubelet, self._controllers = Kubelet(self), Controllers(self)
        self.answering.set()
        self.starting.set()
        self.start()
        self._manager = threading.Thread(target=self._manage, daemon=True)
        self._manager.start()
        return self

    def __exit__(self, *_):
        self._closing.set()
        self.answering.set()
        self.stop()
        self._manager.join()
        self.kubelet.close()
        if self._network:
            self._network.close()

    def _manage(self):
        seen = 0
        while not self._closing.is_set():
            seen = self.store.wait(seen, 0.03)
            self._controllers.step()
            collect_garbage(self.store)
            self.kubelet.step()

    # The server, and what can be wrong with it.

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self):
        """Start the server, on the port that it had before."""
        self._server = Server(self, ("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        serve = functools.partial(self._server.serve_forever, 0.02)
        self._serving = threading.Thread(target=serve, daemon=True)
        self._serving.start()

    def stop(self):
        """Stop the server, and drop its connections; nothing listens on its port."""
        if self._server:
            self._server.shutdown()
            self._server.drop()
            self._server.server_close()
            self._serving.join()
            self._server = None

    def drop_connections(self):
        """Drop all connections, as a load balancer does."""
        self._server.drop()

    def hang(self):
        """Let all requests wait, until ``resume``."""
        self.answering.clear()

    def resume(self):
        self.answering.set()

    def fails(self, what, code=None, *, times=1, after=False):
        """Answer the next requests with an error.

        Args:
            what: A pattern, which is searched for in ``"GET /api/v1/namespaces/ml/pods"``.
            code: Of HTTP; ``None`` drops the connection.
            times: How many requests.
            after: Whether the request is carried out, and only its answer is lost.
        """
        self._faults.append(_Fault(what, code, times, after))

    def next_fault(self, request):
        with self.store.changed:
            for fault in self._faults:
                if fault.times and re.search(fault.what, request):
                    fault.times -= 1
                    return fault
        return None

    def compact(self):
        """Forget the past: a watch that goes on from there gets an error."""
        self.store.compact()

    def kubeconfig(self, path, *, namespace="ml") -> Path:
        """Write a kubeconfig for the user of the token."""
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        described = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": context}],
        }
        Path(path).write_text(yaml.safe_dump(described))
        return Path(path)

    # What a test looks at, and does to pods.

    def get(self, resource, name, namespace="ml") -> dict:
        return self.store.get(resource, namespace, name)

    def pods(self, namespace="ml", **labels) -> list[dict]:
        """Return the pods, oldest first; ``_`` in a label's name stands for ``-``."""
        wanted = {name.replace("_", "-"): value for name, value in labels.items()}
        pods = self.store.all("pods", namespace)
        return [pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]

    def wait(self, predicate, seconds=20):
        """Wait until ``predicate`` returns something that is true; return that."""
        deadline, version = time.monotonic() + seconds, 0
        while not (found := predicate()):
            if time.monotonic() > deadline:
                seen = [(pod["metadata"]["name"], pod["status"]) for pod in self.store.all("pods")]
                raise TimeoutError(f"not within {seconds} s; the pods: {seen}")
            version = self.store.wait(version, 0.02)  # lines of a log are no change of an object
        return found

    def wait_for(self, resource, name, kind, namespace="ml", seconds=20) -> dict:
        """Wait until an object has a condition of this type that is true; return the object."""

        def look():
            thing = self.get(resource, name, namespace)
            return condition(thing, kind) and thing

        return self.wait(look, seconds)

    def ran(self, namespace="ml") -> list[str]:
        """Return the names of all pods whose containers were started, those that are gone, too."""
        pods = [each.pod["metadata"] for each in self.kubelet.containers()]
        return [pod["name"] for pod in pods if pod["namespace"] == namespace]

    def container(self, pod, namespace="ml") -> Container:
        """Return the container of a pod, which may be gone; it has the ``pid`` of the command."""
        wanted = (namespace, pod)
        for each in self.kubelet.containers():
            if (each.pod["metadata"]["namespace"], each.pod["metadata"]["name"]) == wanted:
                return each
        raise LookupError(f"no container of {pod} was started")

    def log(self, pod, namespace="ml") -> str:
        """Return what a pod has written so far; nothing if its container was not started."""
        if pod not in self.ran(namespace):
            return ""
        return b"".join(self.container(pod, namespace).written()).decode()

    def delete_pod(self, name, namespace="ml", *, grace=None):
        self.store.delete("pods", self.get("pods", name, namespace), grace=grace)

    def evict(self, name, namespace="ml"):
        """Do what ``kubectl drain`` does."""
        text = "Eviction API: evicting"
        self._disrupt(name, namespace, "EvictionByEvictionAPI", text)
        self.delete_pod(name, namespace)

    def kill(self, name, namespace="ml"):
        """Let the node of a pod die: nobody tells of the end of its container."""
        text = "Taint manager: deleting due to NoExecute taint"
        container = self.container(name, namespace)
        container.lost = True
        container.kill()
        container.ended.wait()
        with self.store.changed:
            self._disrupt(name, namespace, "DeletionByTaintManager", text)
            self.delete_pod(name, namespace)
            with self.store.edit("pods", self.get("pods", name, namespace)) as pod:
                pod["status"]["phase"] = "Failed"

    def kill_for_memory(self, name, namespace="ml"):
        """Kill the container of a pod as the kernel does when its memory limit is reached."""
        self.container(name, namespace).kill(reason="OOMKilled")

    def _disrupt(self, name, namespace, reason, text):
        with self.store.edit("pods", self.get("pods", name, namespace)) as pod:
            set_condition(pod, "DisruptionTarget", reason, text)

    # For the pods of TrainJobs: names and addresses.

    @property
    def network(self) -> Network:
        """Their network; ``network.forward(port)`` lets them reach a server of this machine."""
        with self.store.changed:
            self._network = self._network or Network()
            return self._network

    def network_of(self, pod):
        return self.network.plug(pod["metadata"]["uid"]) if _jobset_of(pod) else None

    def write_hosts(self, pod, path):
        """Write the names that a pod can resolve: its own, and those of pods that have started."""
        lines = ["127.0.0.1 localhost", f"{pod['status']['podIP']} {_hostname(pod)}"]
        if jobset := _jobset_of(pod):
            for other in self.store.all("pods"):
                if _jobset_of(other) == jobset and other["status"]["phase"] == "Running":
                    short = f"{_hostname(other)}.{jobset[1]}"
                    names = [short + rest for rest in ("", f".{jobset[0]}", f".{jobset[0]}.svc")]
                    lines.append(" ".join([other["status"]["podIP"], *names]))
        text = "\n".join(lines) + "\n"
        with open(path, "r+" if path.exists() else "w") as stream:  # the file is mounted: no other
            stream.write(text)
            stream.truncate()
            os.fchmod(stream.fileno(), 0o644)

    def update_hosts(self):
        with self.store.changed:
            for pod in self.store.all("pods"):
                path = self.folder / "pods" / pod["metadata"]["uid"] / "hosts"
                if path.exists() and _jobset_of(pod):
                    self.write_hosts(pod, path)


def _hostname(pod):
    return pod["spec"].get("hostname", pod["metadata"]["name"])


def _jobset_of(pod) -> tuple[str, str] | None:
    """Return the namespace and the name of the JobSet of a pod, which is also its TrainJob's."""
    name = pod["metadata"].get("labels", {}).get(f"{JOBSET}jobset-name")
    return name and (pod["metadata"]["namespace"], name)


@pytest.fixture
def cluster(tmp_path):
    """A cluster with the namespaces ``default`` and ``ml``, and the image ``IMAGE``."""
    with FakeCluster(tmp_path / "cluster") as fake:
        yield fake

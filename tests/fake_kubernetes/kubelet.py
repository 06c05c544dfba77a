"""The scheduler and the node: pods become processes of this machine.

A user who is not root must be able to read the interpreter and the checkout, wherever they lie.
Each container has a layer of its own over the files of this machine, so a folder on the way to them
that others may not enter, as ``/root``, is opened there, and nowhere else. The other way, to keep
CAP_DAC_READ_SEARCH, would let the process read what a user of a real pod cannot.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from tests.fake_kubernetes.store import ENDED, FOREGROUND, now, set_condition

ROOT = Path(__file__).resolve().parents[2]
_SHIM = Path(__file__).with_name("container.py")
_VARIABLE = re.compile(r"\$(\$|\(([^)]*)\))")


class Waiting(Exception):  # noqa: N818
    """A container cannot be started yet: the reason and the message of ``state.waiting``."""


def readable_folders() -> list[str]:
    """Return the folders that Python needs here, without links in their paths."""
    found = {os.path.realpath(each) for each in (ROOT, sys.prefix, sys.base_prefix, *sys.path)}
    program = sys.executable
    while True:
        found.add(os.path.realpath(os.path.dirname(program)))
        if not os.path.islink(program):
            break
        program = os.path.join(os.path.dirname(program), os.readlink(program))
    folders = sorted(each for each in found - {"/", "/tmp"} if os.path.isdir(each))
    inner = {a for a in folders for b in folders if a.startswith(b + "/")}
    return [each for each in folders if each not in inner]


def expand(text, values) -> str:
    """Replace ``$(NAME)`` by a value that is known, and ``$$`` by ``$``; leave all else alone."""
    return _VARIABLE.sub(
        lambda found: "$" if found[1] == "$" else values.get(found[2], found[0]), text
    )


def _field(pod, path):
    """Return what a ``fieldRef`` refers to."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return pod["metadata"].get(found[1], {}).get(found[2], "")
    part, name = path.split(".")
    return str(pod[part].get(name, ""))


def environment_of(pod, container, secrets, image) -> dict[str, str]:
    """Return the environment of a container; the variables of the manifest come in their order."""
    found: dict[str, str] = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if reference := source.get("secretKeyRef"):
            name, key = reference["name"], reference["key"]
            namespace = pod["metadata"]["namespace"]
            if key not in secrets.get(namespace, {}).get(name, {}):
                if reference.get("optional"):
                    continue
                if name in secrets.get(namespace, {}):
                    text = f"couldn't find key {key} in Secret {namespace}/{name}"
                else:
                    text = f'secret "{name}" not found'
                raise Waiting("CreateContainerConfigError", text)
            found[variable["name"]] = secrets[namespace][name][key]
        elif reference := source.get("fieldRef"):
            found[variable["name"]] = _field(pod, reference["fieldPath"])
        else:
            found[variable["name"]] = expand(variable.get("value") or "", found)
    return {**image.environment, **found}


class Container:
    """The container of one pod, from its start until after its end.

    Attributes:
        has_begun: Whether it has a log.
        lost: Whether its node died, so that nobody tells of its end.
        pid: Of its command, on this machine.
    """

    def __init__(self, kubelet, pod, spec) -> None:
        self._kubelet, self.pod, self._spec = kubelet, pod, spec
        self._log: list[tuple[str, bytes]] = []
        self._written = threading.Condition()
        self.has_begun = self.lost = self._log_ended = False
        self.reason: str | None = None
        self.pid: int | None = None
        self._process: subprocess.Popen | None = None
        self._orders = b""
        self._timer: threading.Timer | None = None
        self._grace = float("inf")
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def lines(self, since=None, tail=None):
        """Yield times and lines, and ``None`` whenever there is no new one; stop after the end."""
        with self._written:
            first = f"{since.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S.%f}" if since else ""
            position = sum(1 for stamp, _ in self._log if stamp < first)
            if tail is not None:
                position = max(position, len(self._log) - int(tail))
        while True:
            with self._written:
                new, ended = self._log[position:], self._log_ended
            yield from new
            position += len(new)
            if not new:
                if ended:
                    return
                yield "", None
                with self._written:
                    if len(self._log) == position and not self._log_ended:
                        self._written.wait(0.3)

    def written(self) -> list[bytes]:
        with self._written:
            return [line for _, line in self._log]

    def stop(self, grace):
        """Send SIGTERM, and SIGKILL after the grace; a shorter grace replaces a longer one."""
        if grace >= self._grace or self.ended.is_set():
            return
        first, self._grace = self._grace == float("inf"), grace
        if grace == 0:
            self.kill()
            return
        if self._timer:
            self._timer.cancel()
        self._timer = threading.Timer(grace, self.kill)
        self._timer.daemon = True
        self._timer.start()
        if first:
            self._order(b"T")

    def kill(self, *, reason=None):
        self.reason = self.reason or reason
        self._order(b"K")

    def join(self):
        self.thread.join(300)
        if self.thread.is_alive():
            raise RuntimeError(f"{self.pod['metadata']['name']} outlives SIGKILL")

    def _order(self, order):
        with self._written:
            if self._process is None:  # it is being started
                self._orders += order
                return
        with suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(order)

    def _run(self):
        folder = Path(self._spec["base"])
        folder.mkdir(parents=True)
        path = folder.with_suffix(".json")
        path.touch(0o600)
        path.write_text(json.dumps(self._spec))
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-IS", _SHIM, path, str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[writer],
            env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
            cwd="/",
            start_new_session=True,  # Ctrl+C ends the tests, which end it
        )
        os.close(writer)
        with self._written:
            self._process = process
            process.stdin.write(self._orders)
        log = threading.Thread(target=self._read_log, args=(reader,), daemon=True)
        log.start()
        result = {"exit": 137}
        for line in process.stdout:
            said = json.loads(line)
            if "pid" in said:
                self.pid, self.has_begun = said["pid"], True
                self._kubelet.set_running(self)
            result = said
        process.stdout.close()
        process.wait()
        with suppress(OSError):
            process.stdin.close()
        log.join()
        if self._timer:
            self._timer.cancel()
        folder.rmdir()
        path.unlink()
        self.ended.set()
        self._kubelet.set_ended(self, result)

    def _read_log(self, reader):
        with open(reader, "rb") as stream:
            for line in stream:
                with self._written:
                    stamp = datetime.now(timezone.utc)
                    nanoseconds = f"{stamp:%Y-%m-%dT%H:%M:%S.%f}{len(self._log) % 1000:03d}Z"
                    full = line if line.endswith(b"\n") else line + b"\n"
                    self._log.append((nanoseconds, full))
                    self._written.notify_all()
        with self._written:
            self._log_ended = True
            self._written.notify_all()


class Kubelet:
    """Starts and ends pods, as their objects and the cluster's settings ask for it."""

    def __init__(self, cluster) -> None:
        self._cluster, self._store = cluster, cluster.store
        self._containers: dict[str, Container] = {}
        self._readable = readable_folders()

    def container_of(self, pod) -> Container | None:
        return self._containers.get(pod["metadata"]["uid"])

    def containers(self) -> list[Container]:
        """Return all that were ever started, oldest first."""
        return list(self._containers.values())

    def step(self):
        """Do what there is to do now."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._store.all("pods")}
        for uid in self._containers.keys() - pods.keys():
            self._containers[uid].stop(0)
        for uid, pod in pods.items():
            doomed = "deletionTimestamp" in pod["metadata"]
            if container := self._containers.get(uid):
                if doomed:
                    container.stop(pod["metadata"]["deletionGracePeriodSeconds"])
            elif pod["status"]["phase"] not in ENDED:
                if doomed:  # it has not started
                    with self._store.edit("pods", pod) as ended:
                        ended["status"]["phase"] = "Failed"
                else:
                    self._try(pod)

    def close(self):
        for container in self.containers():
            container.kill()
        for container in self.containers():
            container.join()

    def _try(self, pod):
        missing = self._missing_claim(pod)
        problem = None if self._cluster.schedulable else self._cluster.unschedulable_message
        problem = f'persistentvolumeclaim "{missing}" not found' if missing else problem
        with self._store.edit("pods", pod) as new:
            if not new["spec"].get("nodeName"):
                if problem:
                    set_condition(new, "PodScheduled", "Unschedulable", problem, status="False")
                    return
                set_condition(new, "PodScheduled")
                new["spec"]["nodeName"] = self._cluster.node
                new["status"]["hostIP"] = new["status"]["podIP"] = "127.0.0.1"
                self._set_waiting(new, "ContainerCreating", None)
            elif not self._cluster.starting.is_set():
                return
            else:
                try:
                    spec = self._build(new)
                except Waiting as waiting:
                    self._set_waiting(new, *waiting.args)
                    return
                container = Container(self, new, spec)
                self._containers[new["metadata"]["uid"]] = container
                container.thread.start()

    def _missing_claim(self, pod):
        for volume in pod["spec"].get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and claim not in self._cluster.claims:
                return claim
        return None

    def _build(self, pod):
        """Return what ``container.py`` is to do."""
        (container,) = pod["spec"]["containers"]
        image = self._cluster.image.get(container["image"])
        if image is None:
            text = f'Back-off pulling image "{container["image"]}"'
            raise Waiting("ImagePullBackOff", text)
        meta, context = pod["metadata"], pod["spec"].get("securityContext", {})
        own = {**context, **container.get("securityContext", {})}
        user = own.get("runAsUser", image.user)
        if own.get("runAsNonRoot") and user == 0:
            text = "container has runAsNonRoot and image will run as root "
            name = f'(pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: node)'
            raise Waiting("CreateContainerConfigError", text + name)
        network = self._cluster.network_of(pod)
        pod["status"]["podIP"] = network[2] if network else "127.0.0.1"
        environment = environment_of(pod, container, self._cluster.secrets, image)
        folder = self._cluster.folder / "pods" / meta["uid"]
        command = container.get("command") or image.command
        group = context.get("fsGroup")
        return {
            "base": str(folder / "root"),
            "readable": self._readable,
            "hostname": pod["spec"].get("hostname", meta["name"])[:63],
            "network": network,
            "read_only": own.get("readOnlyRootFilesystem", False),
            "drop": "ALL" in own.get("capabilities", {}).get("drop", []),
            "no_new_privileges": own.get("allowPrivilegeEscalation") is False,
            "user": user,
            "group": own.get("runAsGroup", 0),
            "groups": [] if group is None else [group],
            "folder": container.get("workingDir", image.folder),
            "command": [expand(each, environment) for each in command + container.get("args", [])],
            "environment": environment,
            "volumes": [*self._system_files(pod, folder), *self._volumes(pod, container, image)],
        }

    def _system_files(self, pod, folder):
        """Return the files that a container runtime and the DNS of a cluster would provide."""
        folder.mkdir(parents=True, exist_ok=True)
        self._cluster.write_hosts(pod, folder / "hosts")
        texts = {"nsswitch.conf": "hosts: files\n", "passwd": "root:x:0:0:root:/root:/bin/sh\n"}
        for name, text in texts.items():  # a host is known or not; the user of a pod has no name
            (folder / name).write_text(text)
            (folder / name).chmod(0o644)
        return [
            {"path": f"/etc/{name}", "source": f"{folder}/{name}", "read_only": True}
            for name in ("hosts", *texts)
        ]

    def _volumes(self, pod, container, image):
        found = [
            {"path": path, "source": str(source), "read_only": path not in image.writable}
            for path, source in image.mounts.items()
        ]
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", [])}
        group = pod["spec"].get("securityContext", {}).get("fsGroup")
        for each in container.get("volumeMounts", []):
            volume, path = volumes[each["name"]], each["mountPath"]
            source, mode = None, 0o777 if group is None else 0o2777
            if claim := volume.get("persistentVolumeClaim"):
                source = Path(self._cluster.claims[claim["claimName"]])
                source.mkdir(parents=True, exist_ok=True)
                if group is not None:
                    os.chown(source, 0, group)
                    source.chmod(0o2775)
            elif "emptyDir" not in volume:
                raise Waiting("ContainerCreating", f"volume {each['name']}: not in this cluster")
            source = source and str(source)
            read_only = each.get("readOnly", False)
            volume = {"path": path, "source": source, "read_only": read_only}
            found.append({**volume, "mode": mode, "group": group or 0})
        return sorted(found, key=lambda volume: volume["path"])

    def _set_waiting(self, pod, reason, message):
        self._set_state(pod, "waiting", {"reason": reason, "message": message})

    def _set_state(self, pod, kind, state):
        (container,) = pod["spec"]["containers"]
        running = kind == "running"
        entry = {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "restartCount": 0,
            "ready": running,
            "started": running,
            "lastState": {},
            "state": {kind: {name: each for name, each in state.items() if each is not None}},
        }
        pod["status"]["containerStatuses"] = [entry]
        reason = None if running else "ContainersNotReady"
        set_condition(pod, "Ready", reason, status=str(running))

    def set_running(self, container):
        with self._store.edit("pods", container.pod) as pod:
            pod["status"] |= {"phase": "Running", "startTime": now()}
            pod["status"]["podIP"] = container.pod["status"]["podIP"]
            self._set_state(pod, "running", {"startedAt": now()})
        self._cluster.update_hosts()

    def set_ended(self, container, result):
        """Write the end of a container into its pod; of a node that is lost nobody can do it."""
        with self._store.changed:  # nobody updates its files meanwhile
            shutil.rmtree(self._cluster.folder / "pods" / container.pod["metadata"]["uid"])
        if container.lost:
            return
        code, reason = result.get("exit", 137), container.reason
        if "problem" in result:
            code, reason = 128, "StartError"
        reason = reason or ("Error" if code else "Completed")
        with self._store.edit("pods", container.pod) as pod:
            if pod["status"]["phase"] in ENDED:
                return
            started = pod["status"].get("startTime")
            state = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
            if "problem" in result:
                state["message"] = f"failed to create containerd task: {result['problem']}"
            self._set_state(pod, "terminated", state)
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
        self._cluster.update_hosts()


def collect_garbage(store):
    """Delete what belongs to an object that is gone or, in the foreground, going."""
    things = [
        (name, each) for name in ("jobs", "cronjobs", "trainjobs") for each in store.all(name)
    ]
    alive = {each["metadata"]["uid"]: each for _, each in things}
    waited_for = set()
    for resource, thing in [*things, *(("pods", each) for each in store.all("pods"))]:
        for reference in thing["metadata"].get("ownerReferences", []):
            owner = alive.get(reference["uid"])
            foreground = owner and FOREGROUND in owner["metadata"].get("finalizers", [])
            if foreground:
                waited_for.add(reference["uid"])
            if (foreground or not owner) and "deletionTimestamp" not in thing["metadata"]:
                policy = "Foreground" if foreground else "Background"
                store.delete(resource, thing, policy=policy)
    for resource, thing in things:
        finalizers = thing["metadata"].get("finalizers", [])
        if FOREGROUND in finalizers and thing["metadata"]["uid"] not in waited_for:
            with store.edit(resource, thing) as going:
                finalizers.remove(FOREGROUND)
                going["metadata"]["finalizers"] = finalizers

"""The objects of the cluster: each change gets the next resource version, and can be watched."""

from __future__ import annotations

import json
import threading
import uuid
from contextlib import contextmanager
from datetime import datetime, timezone

FOREGROUND = "foregroundDeletion"
ENDED = ("Succeeded", "Failed")


def now() -> str:
    """Return the time as Kubernetes writes it: whole seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def copy(value):
    return json.loads(json.dumps(value))


class Failure(Exception):  # noqa: N818
    """An answer that is an error."""

    def __init__(self, code, reason, message, **details) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


def missing_object(resource, name):
    return Failure(404, "NotFound", f'{resource} "{name}" not found', name=name, kind=resource)


def key_of(resource, thing):
    return resource, thing["metadata"]["namespace"], thing["metadata"]["name"]


def owner_of(thing) -> dict:
    owners = thing["metadata"].get("ownerReferences", [])
    return next((each for each in owners if each.get("controller")), {})


def owned(thing, kind, api_version) -> list[dict]:
    """Return the ``ownerReferences`` of what belongs to ``thing``."""
    reference = {"apiVersion": api_version, "kind": kind, "name": thing["metadata"]["name"]}
    uid = thing["metadata"]["uid"]
    return [reference | {"uid": uid, "controller": True, "blockOwnerDeletion": True}]


def set_condition(thing, kind, reason=None, message=None, *, status="True"):
    """Add a condition to the status of ``thing``, or replace the one of the same type."""
    conditions = thing["status"].setdefault("conditions", [])
    old = next((each for each in conditions if each["type"] == kind), None)
    new = {"type": kind, "status": status}
    new |= {"reason": reason} if reason else {}
    new |= {"message": message} if message else {}
    since = old["lastTransitionTime"] if old and old["status"] == status else now()
    conditions[:] = [each for each in conditions if each is not old]
    conditions.append({**new, "lastTransitionTime": since})


def condition(thing, kind) -> dict | None:
    """Return the condition of this type, if it is true."""
    conditions = thing.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind and c["status"] == "True"), None)


class Store:
    """All objects, and what happened to them.

    Attributes:
        changed: Held while anything is read or written; notified after each change.
        version: The resource version of the last change.
        events: The version, resource, type and object of each change since ``oldest``.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version, self.oldest = 1000, 1000
        self.events: list[tuple[int, str, str, dict]] = []
        self._objects: dict[tuple, dict] = {}

    def get(self, resource, namespace, name) -> dict:
        with self.changed:
            found = self._objects.get((resource, namespace, name))
            if found is None:
                raise missing_object(resource, name)
            return copy(found)

    def all(self, resource, namespace=None) -> list[dict]:
        with self.changed:
            found = [copy(each) for key, each in self._objects.items() if key[0] == resource]
        return [each for each in found if namespace in {None, each["metadata"]["namespace"]}]

    def add(self, resource, thing) -> dict:
        with self.changed:
            key = key_of(resource, thing)
            if key in self._objects:
                message = f'{resource} "{key[2]}" already exists'
                raise Failure(409, "AlreadyExists", message, name=key[2], kind=resource)
            thing["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            thing["metadata"] |= {"generation": 1}
            return self._save(key, thing, "ADDED")

    def replace(self, resource, thing) -> dict:
        """Do what PUT does; a resource version must be that of the object as it is now."""
        with self.changed:
            key = key_of(resource, thing)
            old = self.get(*key)
            meant = thing["metadata"].get("resourceVersion")
            if meant is None and resource == "trainjobs":
                text = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
                raise Failure(422, "Invalid", f'{resource} "{key[2]}" is invalid: {text}')
            if meant not in {None, old["metadata"]["resourceVersion"]}:
                message = f'Operation cannot be fulfilled on {resource} "{key[2]}": the object has '
                message += "been modified; please apply your changes to the latest version and try "
                raise Failure(409, "Conflict", message + "again", name=key[2], kind=resource)
            template = (old["spec"].get("template"), thing["spec"].get("template"))
            if resource == "jobs" and template[0] != template[1] and not old["spec"]["suspend"]:
                text = f'Job.batch "{key[2]}" is invalid: spec.template: field is immutable'
                raise Failure(422, "Invalid", text)
            fixed = ("uid", "creationTimestamp", "generation", "deletionTimestamp")
            for name in fixed:
                thing["metadata"].pop(name, None)
            thing["metadata"] |= {n: old["metadata"][n] for n in fixed if n in old["metadata"]}
            thing["metadata"]["generation"] += thing["spec"] != old["spec"]
            return self._save(key, {**thing, "status": old.get("status", {})}, "MODIFIED")

    @contextmanager
    def edit(self, resource, thing):
        """Yield the object as it is now, and save it; if it is gone, changes are lost."""
        with self.changed:
            key = key_of(resource, thing)
            old = self._objects.get(key)
            if old is None or old["metadata"]["uid"] != thing["metadata"]["uid"]:
                yield copy(thing)
                return
            new = copy(old)
            yield new
            if new != old:
                self._save(key, new, "MODIFIED")

    def delete(self, resource, thing, *, policy="Background", grace=None):
        """Do what DELETE does; a pod stays until its kubelet has ended it.

        Args:
            resource: That of ``thing``.
            thing: As it was read.
            policy: What happens to what it owns.
            grace: The seconds that a pod gets, instead of those of its spec.
        """
        with self.changed, self.edit(resource, thing) as doomed:
            meta = doomed["metadata"]
            if resource == "pods":
                usual = doomed["spec"].get("terminationGracePeriodSeconds", 30)
                seconds = usual if grace is None else grace
                meta["deletionGracePeriodSeconds"] = min(
                    seconds, meta.get("deletionGracePeriodSeconds", seconds)
                )
            elif policy == "Foreground" and FOREGROUND not in meta.get("finalizers", []):
                meta["finalizers"] = [*meta.get("finalizers", []), FOREGROUND]
            elif policy == "Orphan":
                for pod in self.all("pods"):
                    if owner_of(pod).get("uid") == meta["uid"]:
                        with self.edit("pods", pod) as free:
                            del free["metadata"]["ownerReferences"]
            meta.setdefault("deletionTimestamp", now())

    def wait(self, seen, seconds) -> int:
        """Wait until there is a newer version than ``seen``; return the newest."""
        with self.changed:
            self.changed.wait_for(lambda: self.version != seen, seconds)
            return self.version

    def compact(self):
        """Forget what happened: a watch from a version of the past is an error."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.events.clear()

    def _save(self, key, thing, event):
        self.version += 1
        meta = thing["metadata"]
        meta["resourceVersion"] = str(self.version)
        self._objects[key] = copy(thing)
        ended = key[0] != "pods" or thing["status"]["phase"] in ENDED
        now_gone = "deletionTimestamp" in meta and not meta.get("finalizers")
        if now_gone and (ended or meta.get("deletionGracePeriodSeconds") == 0):
            del self._objects[key]
            event = "DELETED"
        self.events.append((self.version, key[0], event, self._objects.get(key) or copy(thing)))
        self.changed.notify_all()
        return copy(thing)

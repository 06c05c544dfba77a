"""The user's template of the pods: what it may contain, and how it is merged into a manifest."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from zeusrun.errors import JobFileError
from zeusrun.jobfile.secrets import looks_secret
from zeusrun.jobfile.section import collect_problems
from zeusrun.jobfile.yaml_reader import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# As Kubernetes' strategic merge patch does, in the lists that zeusrun makes.
_KEYS = dict.fromkeys(("containers", "env", "initContainers", "volumes"), "name")
_KEYS["volumeMounts"] = "mountPath"
_WHOLE = {"env", "volumes"}  # an item of these has one source
_OWNED = re.compile(
    r"metadata\.(?!labels|annotations)[^.[]+|metadata\.labels\.(.+/managed-by|zeusrun\..+)|spec\.("
    r"restartPolicy|terminationGracePeriodSeconds|activeDeadlineSeconds|hostname|subdomain|"
    r"volumes\[home\]|containers\[node\]\.(image|command|args|resources|env\[(HOME|USER|ZEUSRUN_.+)\]))"
)
PATCHED = (
    *("affinity", "containers", "imagePullSecrets", "nodeSelector", "schedulingGates"),
    *("securityContext", "serviceAccountName", "terminationGracePeriodSeconds", "tolerations"),
    "volumes",
)
"""What a TrainJob can set of its pods: https://pkg.go.dev/github.com/kubeflow/trainer/v2."""
_OF_RUNTIME = re.compile(
    rf"spec\.(?!({'|'.join(PATCHED)})\b)[^.[]+|spec\.containers\[(?!node\])[^]]+\]"
    r"|spec\.containers\[node\]\.(?!(env|name|securityContext|volumeMounts)\b)[^.[]+"
)


def read_template(path: Path, *, several: bool) -> dict[str, Any]:
    """Return the metadata and the spec of a template; ``several``: for a TrainJob.

    Raises:
        JobFileError: If it cannot be read, or has what it must not have.
    """
    document = read_document(path)
    if document.problems:
        raise collect_problems(document, document.problems)
    found = {key: document.data.get(key) or {} for key in ("metadata", "spec")}
    try:
        names = [*_list_names(found)]
    except (KeyError, TypeError, AttributeError):
        names = []
    right = {*map(type, found.values()), str(document.data.get("kind", "Pod"))} == {dict, "Pod"}
    if not (names and right) or document.data.keys() - found.keys() - {"apiVersion", "kind"}:
        raise JobFileError(
            f"{path} must have the form of a Pod: metadata and spec; each container, volume and "
            "variable needs a name, and each mount a mountPath"
        )
    if looks_secret(json.dumps(document.data)):
        raise JobFileError(f"{path} contains a secret; name it in run_on.kubernetes.secrets")
    if owned := [name for name in names if _OWNED.fullmatch(name)]:
        raise JobFileError(
            f"{path} must not contain {', '.join(owned)}: zeusrun sets that by its own keys, such "
            "as image, resources and home of run_on.kubernetes, launch.grace_period_s and timeout_s"
        )
    if several and (lost := [name for name in names if _OF_RUNTIME.fullmatch(name)]):
        raise JobFileError(
            f"{path} contains {', '.join(lost)}: the TrainJob of several nodes cannot set that; "
            "put it into a TrainingRuntime of your own, and name that in run_on.kubernetes.runtime"
        )
    return found


def _list_names(value: Any, path: str = "", key: str = "") -> Iterator[str]:  # noqa: ANN401 - YAML
    """Yield what a template contains, such as ``spec.containers[node].image``."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield f"{path}{name}"
            listed = path == "spec." or path.endswith("].")  # else env may be a label
            yield from _list_names(each, f"{path}{name}.", name if listed else "")
    if key in _KEYS:
        for each in value:
            item = f"{path[:-1]}[" + each[_KEYS[key]] + "]"  # raises TypeError unless it is text
            yield item
            yield from _list_names(each, f"{item}.")


def merge(base: Any, over: Any, key: str = "") -> Any:  # noqa: ANN401 - of YAML
    """Return ``base`` with the values of a template; lists of named items are merged by name."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{name: merge(base.get(name), each, name) for name, each in over.items()}}
    if base is None or key not in _KEYS:
        return over
    items = {each[_KEYS[key]]: each for each in base}
    for each in over:
        name = each[_KEYS[key]]
        items[name] = each if key in _WHOLE else merge(items.get(name), each)
    return [*items.values()]

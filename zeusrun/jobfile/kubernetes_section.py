"""The section ``run_on.kubernetes`` of a job file: what zeusrun asks Kubernetes for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from zeusrun.jobfile.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable

_Value = TypeVar("_Value")

JOIN_TOKEN = "ZEUSRUN_JOIN_TOKEN"  # noqa: S105 - its name
HISTORY, TOKEN = "ZEUSRUN_HISTORY", "ZEUSRUN_TOKEN"

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?")
_RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+|[^/]+/[^/]+")
_BYTES = re.compile(r"[0-9]{1,6}(\.[0-9]+)?m?")  # less than a megabyte
# What ``pod`` may add: https://pkg.go.dev/github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1
_POD = (
    *("affinity", "imagePullSecrets", "nodeSelector", "schedulingGates", "serviceAccountName"),
    "tolerations",
)
_ONE_POD = ("priorityClassName", "runtimeClassName", "schedulerName")
"""What a Job takes, and the patch of a TrainJob does not."""
_OWN = (
    *("HOME", "USER", "ZEUSRUN_ALLOCATION", "ZEUSRUN_HOME", "ZEUSRUN_JOB", "ZEUSRUN_NAME"),
    *("ZEUSRUN_NAMESPACE", "ZEUSRUN_REQUEST"),
)
"""Variables that zeusrun sets in a pod."""
_MOUNTED = ("/zeusrun", "/tmp", "/dev/shm")  # noqa: S108 - of each pod


def _matches(form: str, wanted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(form, text, re.ASCII):
            raise ValueError(f"must be {wanted}, not {text!r}")
        return text

    return check


def _check_variable(name: str) -> str:
    if name in _OWN:
        raise ValueError("is set by zeusrun itself; remove it")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError("is no name of a variable, such as HF_TOKEN")
    return name


def _read_quantity(value: object) -> object:
    """Return a quantity as a whole number or a text; raises ``ValueError``."""
    text = str(value)
    if not isinstance(value, (str, int, float)) or not _QUANTITY.fullmatch(text):
        given = "" if isinstance(value, (Mapping, list)) else f", not {value!r}"
        raise ValueError(f"must be a quantity such as 4, 500m or 16Gi{given}")
    return text if isinstance(value, float) else value


def _check_form(limits: object) -> object:
    """Raise ``ValueError`` for the form that a container has: ``{limits: {cpu: 4}}``."""
    for name in ("limits", "requests"):
        if isinstance(limits, Mapping) and name in limits:
            raise ValueError(f"are limits themselves: {{cpu: 4, memory: 16Gi}}; remove '{name}:'")
    return limits


def _check_limits(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    if missing := [name for name in ("cpu", "memory") if name not in limits]:
        raise ValueError(f"needs {' and '.join(missing)}: {{cpu: 4, memory: 16Gi}}")
    if unknown := [name for name in limits if not _RESOURCE.fullmatch(name)]:
        raise ValueError(
            f"has {unknown[0]}, which Kubernetes does not know; a GPU is nvidia.com/gpu: 1"
        )
    memory = str(limits["memory"])
    if _BYTES.fullmatch(memory):
        raise ValueError(f"has memory: {memory}, which is in bytes; write 16Gi for gigabytes")
    return limits


def _check_volumes(volumes: Mapping[str, str]) -> Mapping[str, str]:
    for path in volumes:
        if path in _MOUNTED:
            raise ValueError(
                f"has {path}, where each pod has a volume of its own; use another path"
            )
    return volumes


def _check_pod(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in pod:
        if key not in (*_POD, *_ONE_POD):
            raise ValueError(f"cannot have {key}; it takes {', '.join((*_POD, *_ONE_POD))}")
    return pod


def _frozen(mapping: Mapping[str, _Value]) -> Mapping[str, _Value]:
    return MappingProxyType(dict(mapping))


_AsDict = PlainSerializer(dict)
_Namespace = Annotated[
    str, AfterValidator(_matches("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name such as ml-team"))
]
_Image = Annotated[
    str, AfterValidator(_matches(r"[^\s]+", "an image such as registry.example/train:1"))
]
_Claim = Annotated[
    str,
    AfterValidator(
        _matches(
            r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
            "the name of a PersistentVolumeClaim, such as zeusrun-home",
        )
    ),
]
_Path = Annotated[
    str,
    AfterValidator(
        _matches(r"/[^:\s]*[^:\s/]", "an absolute path such as /data, without a / at its end")
    ),
]
_Reference = Annotated[
    str, AfterValidator(_matches(r"[a-z0-9.-]+/[\w.-]+", "SECRET/KEY, such as hf/token"))
]


class Kubernetes(Section):
    """What Kubernetes runs: a Job, or a TrainJob if launch has several nodes."""

    image: _Image = Field(description="Container image with zeusrun, torch and the script.")
    namespace: _Namespace | None = Field(
        None, description="Namespace; null: that of the current context of kubectl."
    )
    resources: Annotated[
        Mapping[str, Annotated[str | int | float, BeforeValidator(_read_quantity)]],
        BeforeValidator(_check_form),
        AfterValidator(_check_limits),
        AfterValidator(_frozen),
        _AsDict,
    ] = Field(
        description="Limits of each pod, as Kubernetes names them: {cpu: 4, memory: 16Gi, "
        "nvidia.com/gpu: 1}."
    )
    secrets: Annotated[
        Mapping[Annotated[str, AfterValidator(_check_variable)], _Reference],
        AfterValidator(_frozen),
        _AsDict,
    ] = Field(
        {},
        description="Variables from Secrets of the namespace, each as SECRET/KEY: "
        "{ZEUSRUN_TOKEN: zeusrun/token}.",
    )
    home: _Claim | None = Field(
        None,
        description="PersistentVolumeClaim for checkpoints and logs; null: they are gone with "
        "the pod.",
    )
    volumes: Annotated[
        Mapping[_Path, _Claim],
        AfterValidator(_check_volumes),
        AfterValidator(_frozen),
        _AsDict,
    ] = Field(
        {}, description="PersistentVolumeClaims by where they are mounted: {/data: imagenet}."
    )
    labels: Annotated[Mapping[str, str], AfterValidator(_frozen), _AsDict] = Field(
        {}, description="Labels of the job: {kueue.x-k8s.io/queue-name: team-a}."
    )
    pod: Annotated[
        Mapping[str, Any], AfterValidator(_check_pod), AfterValidator(_frozen), _AsDict
    ] = Field(
        {},
        description="More of the specification of the pods: nodeSelector, tolerations, affinity, "
        "imagePullSecrets and others.",
    )
    user: int = Field(1000, ge=1, description="User and group that the pods run as.")
    folder: _Path | None = Field(
        None,
        description="Folder of the image with what the folder of the job file has; null: the "
        "working directory of the image.",
    )

    def check_nodes(self, nodes: int) -> None:
        """Raise ``ValueError`` if so many nodes need what this lacks, or refuse what it has."""
        if nodes > 1 and JOIN_TOKEN not in self.secrets:
            raise ValueError(
                f"has nnodes: {nodes}, whose pods need a token to join: add "
                f"run_on.kubernetes.secrets: {{{JOIN_TOKEN}: zeusrun/join-token}}"
            )
        if nodes > 1 and (refused := [key for key in self.pod if key in _ONE_POD]):
            raise ValueError(
                f"has nnodes: {nodes}, and a TrainJob cannot set run_on.kubernetes.pod."
                f"{refused[0]}; set it in the TrainingRuntime of deploy/kubernetes/zeusrun.yaml"
            )

"""The section ``run_on.kubernetes`` of a job file: what zeusrun asks Kubernetes for."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, PlainSerializer

from zeusrun.jobfile.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable

_Value = TypeVar("_Value")

JOIN_TOKEN = "ZEUSRUN_JOIN_TOKEN"  # noqa: S105 - its name
HISTORY, TOKEN = "ZEUSRUN_HISTORY", "ZEUSRUN_TOKEN"

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?")
# What ``pod`` may add: https://pkg.go.dev/github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1
_POD = (
    *("affinity", "imagePullSecrets", "nodeSelector", "schedulingGates", "serviceAccountName"),
    "tolerations",
)
_ONE_POD = ("priorityClassName", "runtimeClassName", "schedulerName")
"""What a Job takes, and the patch of a TrainJob does not."""
_OWN = ("ZEUSRUN_JOB", "ZEUSRUN_REQUEST", "ZEUSRUN_ALLOCATION", "ZEUSRUN_HOME")


def _matches(form: str, wanted: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not re.fullmatch(form, text, re.ASCII):
            raise ValueError(f"must be {wanted}, not {text!r}")
        return text

    return check


def _check_variable(name: str) -> str:
    if name in _OWN or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError("is not a variable that can be set here")
    return name


def _check_quantity(value: str | int) -> str | int:
    if not _QUANTITY.fullmatch(str(value)):
        raise ValueError(f"must be a quantity such as 4, 500m or 16Gi, not {value!r}")
    return value


def _check_limits(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    if missing := [name for name in ("cpu", "memory") if name not in limits]:
        raise ValueError(f"needs {' and '.join(missing)}: {{cpu: 4, memory: 16Gi}}")
    return limits


def _check_pod(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in pod:
        if key not in (*_POD, *_ONE_POD):
            raise ValueError(
                f"cannot have {key}; zeusrun passes on {', '.join((*_POD, *_ONE_POD))}"
            )
    return pod


def _frozen(mapping: Mapping[str, _Value]) -> Mapping[str, _Value]:
    return MappingProxyType(dict(mapping))


_AsDict = PlainSerializer(dict)
_Namespace = Annotated[
    str, AfterValidator(_matches("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name such as ml-team"))
]
_MountPath = Annotated[
    str,
    AfterValidator(_matches(r"/[^:\s]*[^:\s/]", "an absolute path such as /data")),
]
_Reference = Annotated[
    str, AfterValidator(_matches(r"[a-z0-9.-]+/[\w.-]+", "SECRET/KEY, such as hf/token"))
]


class Kubernetes(Section):
    """What Kubernetes runs: a Job, or a TrainJob if launch has several nodes."""

    image: str = Field(
        min_length=1, description="Container image with zeusrun, torch and the script."
    )
    namespace: _Namespace | None = Field(
        None, description="Namespace; null: that of the current context of kubectl."
    )
    resources: Annotated[
        Mapping[str, Annotated[str | int, AfterValidator(_check_quantity)]],
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
    home: str | None = Field(
        None,
        description="PersistentVolumeClaim for checkpoints and logs; null: they are gone with "
        "the pod.",
    )
    volumes: Annotated[Mapping[_MountPath, str], AfterValidator(_frozen), _AsDict] = Field(
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
    folder: _MountPath | None = Field(
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
                f"{refused[0]}; set it in the TrainingRuntime"
            )

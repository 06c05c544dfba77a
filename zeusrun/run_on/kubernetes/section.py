"""The section ``run_on.kubernetes`` of a job file: what zeusrun asks Kubernetes for."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema

from zeusrun.jobfile.run_on_section import JOIN, SchedulerSection

JOIN_TOKEN = "ZEUSRUN_JOIN_TOKEN"  # noqa: S105 - its name
HISTORY = "ZEUSRUN_HISTORY"

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([mkMGTPE]|[KMGTPE]i)?")
_RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+|[^/]+/[^/]+")
_BYTES = re.compile(r"[0-9]{1,6}(\.[0-9]+)?m?")  # less than a megabyte
_FORM = "{cpu: 4, memory: 16Gi}"
_OWN = "HOME|USER|ZEUSRUN_(ALLOCATION|HOME|JOB|NAME|NAMESPACE|REQUEST)"


def _matches(form: str, wanted: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(form, text, re.ASCII):
            raise ValueError(f"must be {wanted}, not {text!r}")
        return text

    return AfterValidator(check)


def _check_limits(limits: Mapping[str, Any]) -> Mapping[str, Any]:
    if missing := [name for name in ("cpu", "memory") if name not in limits]:
        raise ValueError(f"needs {' and '.join(missing)}: {_FORM}")
    for name, value in limits.items():
        if not _RESOURCE.fullmatch(name):
            raise ValueError(
                f"has {name}, which Kubernetes does not know; a GPU is nvidia.com/gpu: 1"
            )
        if not _QUANTITY.fullmatch(str(value)):
            raise ValueError(f"has {name}: {value!r}, no quantity such as 4, 500m or 16Gi")
    if _BYTES.fullmatch(memory := str(limits["memory"])):
        raise ValueError(f"has memory: {memory}, which is in bytes; write 16Gi for gigabytes")
    return limits


_NAMESPACE = _matches("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name such as ml-team")
_PATH = _matches(r"/[^:\s]*[^:\s/]", "an absolute path such as /data, without a / at its end")
_CLAIM_FORM = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_CLAIM = "the name of a PersistentVolumeClaim, such as "
_Image = Annotated[str, _matches(r"[^\s]+", "an image such as registry.example/train:1")]
_Quantity = Annotated[Any, WithJsonSchema({"type": ["string", "number"]})]
_OTHER = "a variable that zeusrun does not set, such as HF_TOKEN"
_Variable = Annotated[str, _matches(rf"(?!({_OWN})$)[A-Za-z_]\w*", _OTHER)]
_Reference = Annotated[str, _matches(r"[a-z0-9.-]+/[\w.-]+", "SECRET/KEY, such as hf/token")]
_Path = Annotated[str, _PATH]
_NAMED = "a name such as zeusrun, or ClusterTrainingRuntime/NAME"
_Runtime = Annotated[str, _matches("((Cluster)?TrainingRuntime/)?[a-z0-9.-]+", _NAMED)]
_Claim = Annotated[str, _matches(_CLAIM_FORM, f"{_CLAIM}zeusrun-home")]
_Volume = Annotated[str, _matches(f"{_CLAIM_FORM}(:ro)?", f"{_CLAIM}imagenet or imagenet:ro")]


class Kubernetes(SchedulerSection):
    """What Kubernetes runs: a Job, or a TrainJob if launch has several nodes."""

    summary: ClassVar[str] = "Instead of hosts: Kubernetes runs launch.nnodes pods."
    fan_out: ClassVar[str] = JOIN
    ports: ClassVar[tuple[int, int]] = (29400, 29499)  # pods of a job know where to join
    joins_alone: ClassVar[bool] = True
    other_names: ClassVar[Mapping[str, str]] = {
        "run_on.kubernetes.nodes": "launch.nnodes",
        **dict.fromkeys(
            (f"run_on.kubernetes.{each}" for each in ("cpu", "gpus", "limits", "memory")),
            "run_on.kubernetes.resources",
        ),
    }

    image: _Image = Field(description="Container image with zeusrun, torch and the script.")
    namespace: Annotated[str, _NAMESPACE] | None = Field(
        None, description="Namespace; null: that of the current context of kubectl."
    )
    resources: Annotated[Mapping[str, _Quantity], AfterValidator(_check_limits)] = Field(
        description="Limits of each pod, as Kubernetes names them: {cpu: 4, memory: 16Gi, "
        "nvidia.com/gpu: 1}."
    )
    secrets: Mapping[_Variable, _Reference] = Field(
        {},
        description="Variables from Secrets of the namespace, each as SECRET/KEY: "
        "{ZEUSRUN_TOKEN: zeusrun/token}.",
    )
    home: _Claim | None = Field(
        None,
        description="PersistentVolumeClaim for checkpoints and logs; null: they are gone with "
        "the pod.",
    )
    volumes: Mapping[_Path, _Volume] = Field(
        {}, description='PersistentVolumeClaims by path; with :ro, only read: {/data: "data:ro"}.'
    )
    template: str | None = Field(
        None, min_length=1, description="File with more of the pods, as in a Pod: pod.yaml."
    )
    runtime: _Runtime = Field(
        "zeusrun", description="TrainingRuntime of several nodes, or ClusterTrainingRuntime/NAME."
    )
    user: int = Field(1000, ge=1, description="User and group that the pods run as.")
    folder: _Path | None = Field(
        None,
        description="Folder of the image with what the folder of the job file has; null: the "
        "working directory of the image.",
    )

    def check_nodes(self, nodes: int) -> None:
        """Raise ``ValueError`` if pods of so many nodes cannot join."""
        if nodes > 1 and JOIN_TOKEN not in self.secrets:
            raise ValueError(
                f"has nnodes: {nodes}, whose pods need a token to join: add "
                f"run_on.kubernetes.secrets: {{{JOIN_TOKEN}: zeusrun/join-token}}"
            )


SECTION = Kubernetes

"""The section ``sync`` of a job file: how the ranks agree on their gradients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from zeusrun.jobfile.run_on_section import count_ranks
from zeusrun.jobfile.section import Section

Topology = Literal[
    "auto",
    "star",
    "multi-star",
    "ring",
    "clique",
    "tree",
    "binary-tree",
    "binary-tree-star",
    "multi-binary-tree-star",
]


def _check_topology(topology: str | None, info: ValidationInfo) -> Any:  # noqa: ANN401 - as it was
    if topology is not None and info.data.get("compress", "none") != "none":
        raise ValueError("cannot be used together with 'compress'; keep one of them")
    return topology


def _check_vote(votes: bool, info: ValidationInfo) -> bool:
    if votes and info.data.get("topology") is None:
        raise ValueError("needs topology, from which the ranks may change")
    return votes


class Sync(Section):
    """How the ranks agree on their gradients: by default, by the all-reduce of the backend."""

    compress: Literal["none", "bf16", "fp16", "powersgd"] = Field(
        "none",
        description="bf16, fp16: gradients are exchanged as numbers of 16 bits; powersgd: as "
        "products of two small matrices.",
    )
    rank: int = Field(2, ge=1, le=64, description="With powersgd: the columns of these matrices.")
    warmup: int = Field(
        100,
        ge=2,
        description="With powersgd: backward passes before it, in which gradients are all-reduced.",
    )
    topology: Annotated[Topology | None, AfterValidator(_check_topology)] = Field(
        None,
        description="The way gradients take, on gloo: one of KungFu's; auto: the tree with the "
        "least latencies, as measured at the start. null: the all-reduce of the backend.",
    )
    vote: Annotated[bool, AfterValidator(_check_vote)] = Field(
        False,
        description="With topology: where most ranks find the network slow, they use the tree with "
        "the least latencies, then the all-reduce of the backend, until it is calm again.",
    )

    @property
    def variant(self) -> str | None:
        """A name that separates these runs from others; ``None`` for a plain all-reduce."""
        if self.topology is not None:
            return f"{self.topology}, votes" if self.vote else self.topology
        if self.compress == "powersgd":
            return f"powersgd {self.rank} after {self.warmup}"
        return None if self.compress == "none" else self.compress


def check_sync(sync: Sync | None, info: ValidationInfo) -> Sync | None:
    """Raise ``ValueError`` if other sections do not allow another way to agree."""
    data: dict[str, Any] = info.data
    launch = data.get("launch")
    if sync is None or launch is None:
        return sync
    if not launch.distributed:
        raise ValueError("needs launch.distributed: true, for ranks that train together")
    if data.get("instrument") is False:
        raise ValueError("needs the hooks of zeusrun; remove instrument: false")
    if data.get("elastic") is not None:
        raise ValueError("cannot be used together with 'elastic'; keep one of them")
    if count_ranks(data) == 1:
        raise ValueError("needs at least two ranks: set launch.nproc_per_node")
    return sync

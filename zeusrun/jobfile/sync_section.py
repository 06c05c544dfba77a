"""The section ``sync`` of a job file: how the ranks agree on their parameters."""

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


_WAYS = {"compress": "none", "every": None, "method": None, "topology": None}


def _check_alone(value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - any key's
    """Raise ``ValueError`` if another key says already how the ranks agree."""
    others = [name for name, nothing in _WAYS.items() if info.data.get(name, nothing) != nothing]
    if value is not None and others:
        raise ValueError(f"cannot be used together with {others[0]!r}; keep one of them")
    return value


def _check_switch(step: int | None, info: ValidationInfo) -> int | None:
    if step is not None and info.data.get("method") != "sma":
        raise ValueError("only goes with method: sma")
    return step


def _check_vote(votes: bool, info: ValidationInfo) -> bool:
    if votes and info.data.get("topology") is None:
        raise ValueError("needs topology; without one, write  on_slow: compress")
    return votes


def _check_on_slow(what: str, info: ValidationInfo) -> Any:  # noqa: ANN401 - as it was
    return what if what == "keep" else _check_alone(what, info)


class Sync(Section):
    """How the ranks agree on their parameters: by default, they all-reduce each gradient."""

    compress: Literal["none", "bf16", "fp16", "powersgd"] = Field(
        "none",
        description="bf16, fp16: gradients are exchanged as numbers of 16 bits; powersgd: as "
        "products of two small matrices.",
    )
    rank: int = Field(2, ge=1, le=64, description="With powersgd: the columns of these matrices.")
    every: Annotated[int | None, AfterValidator(_check_alone)] = Field(
        None,
        ge=2,
        description="Exchange no gradients; average the parameters after every so many optimizer "
        "steps (post-local SGD).",
    )
    warmup: int = Field(
        100,
        ge=2,
        description="With every and powersgd: optimizer steps before it, in which gradients are "
        "all-reduced as usual.",
    )
    method: Annotated[Literal["sma", "pair"] | None, AfterValidator(_check_alone)] = Field(
        None,
        description="Each rank trains a model of its own. sma: after each step, it moves towards "
        "the mean of all; pair: it averages with that of one other rank, without waiting for it.",
    )
    alpha: float = Field(
        0.1, gt=0, le=1, description="With sma: by which part of the distance it moves."
    )
    switch_at: Annotated[int | None, AfterValidator(_check_switch)] = Field(
        None,
        ge=1,
        description="With sma: the step after which gradients are all-reduced (AdaSGD).",
    )
    topology: Annotated[Topology | None, AfterValidator(_check_alone)] = Field(
        None,
        description="The way gradients take, on gloo: one of KungFu's; auto: the tree with the "
        "least latencies, as measured at the start. null: the all-reduce of the backend.",
    )

    vote: Annotated[bool, AfterValidator(_check_vote)] = Field(
        False,
        description="With topology: where most ranks find the network slow, they use the tree with "
        "the least latencies, then the all-reduce of the backend, until it is calm again.",
    )
    on_slow: Annotated[Literal["keep", "compress"], AfterValidator(_check_on_slow)] = Field(
        "keep",
        description="compress: where most ranks find the network slow, they exchange numbers of 16 "
        "bits, then average parameters after every 8 steps, until it is calm again.",
    )

    @property
    def variant(self) -> str | None:
        """A name that separates these runs from others; ``None`` for a plain all-reduce."""
        if self.every is not None:
            return f"average every {self.every}"
        if self.method == "sma":
            until = "" if self.switch_at is None else f" until {self.switch_at}"
            return f"sma {self.alpha:g}{until}"
        if self.compress == "powersgd":
            return f"powersgd {self.rank}"
        if self.topology is not None:
            return f"{self.topology}, votes" if self.vote else self.topology
        if self.on_slow == "compress":
            return "compress when slow"
        return self.method or (None if self.compress == "none" else self.compress)


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

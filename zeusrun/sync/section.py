"""The section ``sync`` of a job file: how the ranks agree on their parameters."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from zeusrun.jobfile.plugged import PartSection, count_ranks

if TYPE_CHECKING:
    from zeusrun.jobfile.plugged import Chosen

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
_WAYS = {"compress": "none", "every": None, "method": None, "topology": None, "on_slow": "keep"}


class Sync(PartSection):
    """How the ranks agree on their parameters: by default, they all-reduce each gradient."""

    key: ClassVar[str] = "sync"
    summary: ClassVar[str] = "How the ranks agree on their gradients."
    excludes: ClassVar[tuple[str, ...]] = ("elastic",)  # a new rank could not join

    compress: Literal["none", "bf16", "fp16", "powersgd"] = Field(
        "none",
        description="bf16, fp16: gradients are exchanged as 16-bit numbers; powersgd: as low-rank "
        "approximations (products of two small matrices).",
    )
    rank: int = Field(2, ge=1, le=64, description="With powersgd: the columns of these matrices.")
    every: int | None = Field(
        None,
        ge=2,
        description="Exchange no gradients; average the parameters after every so many backward "
        "passes, and at the end of an epoch (post-local SGD).",
    )
    warmup: int = Field(
        100,
        ge=2,
        description="With every and powersgd: backward passes before it, in which gradients are "
        "all-reduced as usual.",
    )
    method: Literal["sma", "pair"] | None = Field(
        None,
        description="Each rank trains a model of its own. sma: after each backward pass and its "
        "step, it moves towards the mean of all; pair: to the middle between it and that of one "
        "other rank, for which it does not wait.",
    )
    alpha: float = Field(
        0.1, gt=0, le=1, description="With sma: by which part of the distance it moves."
    )
    switch_at: int | None = Field(
        None,
        ge=1,
        description="With sma: after so many backward passes, gradients are all-reduced (AdaSGD).",
    )
    topology: Topology | None = Field(
        None,
        description="The way gradients take, on gloo: one of KungFu's; auto: the minimum "
        "spanning tree of the latencies measured at the start. null: the backend's all-reduce.",
    )
    vote: bool = Field(
        False,
        description="With topology: where most ranks find the network slow, they use auto, "
        "measured anew, then the backend's all-reduce, until it is calm again.",
    )
    on_slow: Literal["keep", "compress"] = Field(
        "keep",
        description="compress: where most ranks find the network slow, they exchange bf16, then "
        "average parameters after every 8 backward passes, until it is calm again.",
    )

    def _check_keys(self) -> None:
        """Raise ``ValueError`` if a key excludes another one, or has no effect without it."""
        ways = [name for name, nothing in _WAYS.items() if getattr(self, name) != nothing]
        if len(ways) > 1:
            raise ValueError(f"{ways[1]}: cannot be used together with {ways[0]!r}; keep one")
        powers, sma = self.compress == "powersgd", self.method == "sma"
        for name, has_effect, other in (
            ("rank", powers, "compress: powersgd"),
            ("warmup", powers or self.every is not None, "every or compress: powersgd"),
            ("alpha", sma, "method: sma"),
            ("switch_at", sma, "method: sma"),
            ("vote", self.topology is not None, "topology"),
        ):
            # Not whether it is set: the job.yaml of a run has every key.
            if not has_effect and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: needs {other}; without it, remove {name!r}")

    @property
    def sync_variant(self) -> str | None:
        """A name that separates these runs from others; ``None`` for a plain all-reduce."""
        if self.every is not None:
            return f"average every {self.every} after {self.warmup}"
        if self.method == "sma":
            until = "" if self.switch_at is None else f" until {self.switch_at}"
            return f"sma {self.alpha:g}{until}"
        if self.topology is not None:
            return f"{self.topology}, votes" if self.vote else self.topology
        if self.compress == "powersgd":
            return f"powersgd {self.rank} after {self.warmup}"
        if self.on_slow == "compress":
            return "compress when slow"
        return self.method or (None if self.compress == "none" else self.compress)

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if a key needs another one, or another section does not allow it."""
        launch = data.get("launch")
        if launch is None:
            return
        self._check_keys()
        if not launch.distributed:
            raise ValueError("needs launch.distributed: true, for ranks that train together")
        if count_ranks(data) == 1:
            raise ValueError("needs at least two ranks: set launch.nproc_per_node")

    def tell(self, chosen: Chosen) -> dict[str, Mapping[str, Any]]:
        """Return how the ranks agree; nothing for DDP's own all-reduce, which stays as it is."""
        return {} if self.sync_variant is None else super().tell(chosen)


SECTION = Sync

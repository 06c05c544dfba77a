"""The section ``elastic`` of a job file: how the number of ranks changes while they train."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from zeusrun.jobfile.plugged import PartSection, count_ranks
from zeusrun.jobfile.section import Section
from zeusrun.jobfile.validators import CLASS, check_max, read_pairs
from zeusrun.trial import BY_RANKS

if TYPE_CHECKING:
    from zeusrun.jobfile.plugged import Chosen
    from zeusrun.trial import Trial

_ENTRY = re.compile(r"\s*([0-9]{1,9})\s*:\s*([0-9]{1,3})\s*")
_MOST = 255


def read_steps(text: str) -> dict[int, int]:
    """Return the sizes of KungFu's ``"10:2,100:1"``, each by the step after which it begins."""
    return read_pairs(text, _ENTRY, "step", "a step and a number of ranks, such as 10:2,100:1")


def _check_steps(text: str | None, info: ValidationInfo) -> str | None:
    least, most = info.data.get("min"), info.data.get("max")
    if text is None or least is None or most is None:
        return text
    for size in (each for each in read_steps(text).values() if each):  # 0 ends the training
        if not least <= size <= most:
            raise ValueError(f"names {size}, which is not between min ({least}) and max ({most})")
    return text


def _check_policy(text: str) -> str:
    if not CLASS.fullmatch(text):
        raise ValueError(f"must be a class of your own as module:Class, not {text!r}")
    return text


def _check_listen(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"must be an address and a port, such as 127.0.0.1:9100, not {text!r}")
    return text


def _check_learning_rate(rule: str, info: ValidationInfo) -> str:
    if rule != "none" and info.data.get("batch_size") == "kept":
        raise ValueError(f"is {rule}, but the batch size stays; add  batch_size: scaled")
    return rule


class Provision(Section):
    """Adds one rank after the other while the training gains by it."""

    by: Literal["throughput", "joules"] = Field(
        description="throughput: a rank stays if it adds a third of its share; joules: if a "
        "sample takes less energy."
    )
    every: int = Field(100, ge=1, description="Steps for which each number of ranks is measured.")


class Elastic(PartSection):
    """How the number of ranks changes while they train."""

    key: ClassVar[str] = "elastic"
    summary: ClassVar[str] = "How the number of ranks changes while the training runs."
    excludes: ClassVar[tuple[str, ...]] = ("watch", "adapt")  # they need a fixed number of ranks

    min: int = Field(1, ge=1, le=_MOST, description="The fewest ranks that go on.")
    max: Annotated[int, AfterValidator(check_max)] = Field(
        ge=1, le=_MOST, description="The most ranks."
    )
    steps: Annotated[str | None, AfterValidator(_check_steps)] = Field(
        None,
        description="10:2,100:1 is 2 ranks after step 10, and 1 after step 100; 0 ends the "
        "training.",
    )
    policy: Annotated[str, AfterValidator(_check_policy)] | None = Field(
        None,
        description="A class of your own as module:Class, whose wanted_ranks(observation) returns "
        "a number of ranks, or None.",
    )
    provision: Provision | None = Field(
        None, description="Find the number of ranks by measuring; null: keep it."
    )
    listen: Annotated[str, AfterValidator(_check_listen)] | None = Field(
        None,
        description="Where KungFu's HTTP endpoint listens, such as 127.0.0.1:9100; anybody who "
        "reaches it may resize and stop the training.",
    )
    batch_size: Literal["kept", "scaled"] = Field(
        "kept",
        description="kept: the ranks share the same batch size, however many they are; scaled: "
        "each rank keeps its share, so that the batch size follows the number of ranks.",
    )
    learning_rate: Annotated[
        Literal["none", "linear", "sqrt"], AfterValidator(_check_learning_rate)
    ] = Field("none", description="How the learning rate follows a batch size that is scaled.")
    losses: int = Field(3, ge=0, description="How many ranks may be lost in a run before it fails.")
    lost_by: Literal["killed", "any"] = Field(
        "killed",
        description="killed: only ranks that a signal or lack of memory has ended are lost, and "
        "an exception fails the run; any: an exception, too.",
    )
    hang_s: float = Field(
        60, gt=0, description="Seconds for which a rank may do nothing while others wait for it."
    )

    @property
    def batch_variant(self) -> str | None:
        """What separates runs whose batch size follows the ranks from others."""
        return BY_RANKS if self.batch_size == "scaled" else None

    @property
    def most_ranks(self) -> int:
        """The largest number of ranks."""
        return self.max

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if other sections do not allow that the ranks change."""
        launch = data.get("launch")
        if launch is None:
            return
        ranks, run_on = launch.nproc_per_node, data.get("run_on")
        if run_on is not None and isinstance(ranks, int):
            ranks = count_ranks(data) or self.min  # a hostfile may have changed by then
        if not isinstance(ranks, int) or not self.min <= ranks <= self.max:
            where = "" if run_on is None else " on all hosts"
            raise ValueError(
                f"begins with launch.nproc_per_node{where}, which must be a number between min "
                f"({self.min}) and max ({self.max}), not {ranks}"
            )
        if launch.torchrun:
            raise ValueError("starts the ranks without torchrun; remove it, or launch.torchrun")
        if not launch.distributed:
            raise ValueError("needs launch.distributed: true, for ranks that train together")
        smallest = min(data["batch_size"].candidates) if "batch_size" in data else self.max
        if smallest < self.max:
            raise ValueError(
                f"has max: {self.max}, but a batch size of {smallest} has fewer samples than ranks"
            )

    def tell(self, chosen: Chosen) -> dict[str, Mapping[str, Any]]:
        """Return what decides on the number of ranks, and the settings that depend on it."""
        given = self.model_dump(include={"steps", "policy", "batch_size", "learning_rate"})
        more = {"ranks": chosen.ranks, "per_device_max": chosen.sizes.per_device_max}
        return {self.key: {**given, **more}}

    def starter(
        self, trial: Trial, max_restarts: int, others: Mapping[str, object]
    ) -> tuple[str, str]:
        """Return the module of the elastic agent, and what the agent may do."""
        limits = self.model_dump(include={"min", "max", "losses", "lost_by", "hang_s"})
        shared = trial.global_batch_size if self.batch_size == "kept" else 0
        sizes = {"ranks": trial.world_size, "batch_size": shared}
        plan = {"run_id": trial.trial, **sizes, "max_restarts": max_restarts, **limits}
        module = "zeusrun.elastic.nodes.agent" if others else "zeusrun.elastic.agent"
        return module, json.dumps({**plan, **others})


SECTION = Elastic

"""The section ``adapt`` of a job file: how the batch size changes while the ranks train."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from zeusrun.errors import did_you_mean
from zeusrun.jobfile.plugged import PartSection, count_ranks, find_part
from zeusrun.jobfile.section import Section
from zeusrun.jobfile.validators import CLASS, check_max, read_pairs
from zeusrun.jobfile.values import goes_with, read_by

if TYPE_CHECKING:
    from zeusrun.jobfile.plugged import Chosen
    from zeusrun.jobfile.sections import BatchSizes

ADAPT_POLICIES = ("noise-scale", "schedule")
"""The built-in policies; ``adapt.rank.policies`` implements them."""

_EVERY = re.compile(r"([1-9][0-9]{0,8}) (epoch|step)s?")
_ENTRY = re.compile(r"\s*([1-9][0-9]{0,8})\s*:\s*([1-9][0-9]{0,8})\s*")


def read_schedule(text: str) -> dict[int, int]:
    """Return the batch sizes of ``"10:64,20:128"``, by their first epochs; see ``read_pairs``."""
    what = "an epoch and a batch size, such as 10:64,20:128"
    return read_pairs(text, _ENTRY, "epoch", what)


def _check_policy(policy: Any) -> Any:  # noqa: ANN401 - any YAML
    names = [policy] if isinstance(policy, str) else policy
    if not isinstance(names, (list, tuple)) or not names:
        raise ValueError("must be a policy, module:Class, or a list of such classes")
    for name in names:
        if not isinstance(name, str) or not (name in ADAPT_POLICIES or CLASS.fullmatch(name)):
            known, hint = ", ".join(ADAPT_POLICIES), did_you_mean(str(name), ADAPT_POLICIES)
            raise ValueError(f"must be {known} or module:Class, not {name!r}{hint}")
        if name in ADAPT_POLICIES and len(names) > 1:
            raise ValueError(f"may only list classes of your own (module:Class), not {name!r}")
    return policy if isinstance(policy, str) else tuple(names)


def _check_every(every: Any) -> Any:  # noqa: ANN401 - any YAML
    match = _EVERY.fullmatch(every.strip()) if isinstance(every, str) else None
    if match is None:
        raise ValueError(f"must be such as 1 epoch or 100 steps, not {every!r}")
    return every


class AdaptBatchSize(Section):
    """How the batch size changes."""

    policy: Annotated[str | tuple[str, ...], BeforeValidator(_check_policy)] = Field(
        description="schedule, noise-scale (an experiment), or a class of your own as "
        "module:Class, or a list of such classes."
    )
    every: Annotated[str, BeforeValidator(_check_every)] = Field(
        "1 epoch", description="When the policy decides, such as 1 epoch or 100 steps."
    )
    min: int | None = Field(
        None, ge=1, description="The smallest batch size; null: the smallest candidate."
    )
    max: Annotated[int | None, AfterValidator(check_max)] = Field(
        None, ge=1, description="The largest batch size; null: the largest candidate."
    )
    growth: float = Field(
        2, ge=1.01, le=64, description="The largest factor by which one decision may change it."
    )
    schedule: Annotated[
        str | None,
        read_by(read_schedule),
        goes_with("policy", "schedule", example='schedule: "10:64,20:128"'),
    ] = Field(
        None, description="With policy schedule: 10:64,20:128 is 64 from epoch 10 on, then 128."
    )

    @property
    def interval(self) -> tuple[int, str]:
        """The number of epochs or steps between two decisions, and ``epoch`` or ``step``."""
        number, unit = self.every.strip().rstrip("s").split()
        return int(number), unit

    @property
    def classes(self) -> tuple[str, ...]:
        """The user's own classes, as ``module:Class``."""
        names = (self.policy,) if isinstance(self.policy, str) else self.policy
        return tuple(name for name in names if ":" in name)

    @property
    def planned(self) -> dict[int, int]:
        """The batch sizes of the schedule, by their first epochs."""
        return {} if self.schedule is None else read_schedule(self.schedule)


class Adapt(PartSection):
    """A batch size that changes while the training runs."""

    key: ClassVar[str] = "adapt"
    summary: ClassVar[str] = "How the batch size changes while the training runs."
    adapts: ClassVar[bool] = True

    batch_size: AdaptBatchSize = Field(description="How the batch size changes.")
    learning_rate: Literal["none", "linear", "sqrt"] = Field(
        "none", description="How the learning rate follows the batch size within a run."
    )

    @property
    def batch_variant(self) -> str:
        """The policy's name, which separates these runs from others."""
        chosen = self.batch_size
        if chosen.schedule is not None:
            return f"schedule {chosen.schedule}"
        return chosen.policy if isinstance(chosen.policy, str) else ",".join(chosen.policy)

    @property
    def measures(self) -> bool:
        """Whether it needs the noise scale."""
        return self.batch_size.policy == "noise-scale"

    def limits(self, sizes: BatchSizes) -> tuple[int, int]:
        """Return the smallest and the largest batch size."""
        chosen = self.batch_size
        lowest = sizes.candidates[0] if chosen.min is None else chosen.min
        return lowest, sizes.candidates[-1] if chosen.max is None else chosen.max

    def check(self, data: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if other sections do not allow that the batch size changes."""
        if "batch_size" not in data:
            return
        sizes: BatchSizes = data["batch_size"]
        chosen, (lowest, highest) = self.batch_size, self.limits(sizes)
        if sizes.apply == "dataloader":
            raise ValueError(
                "only goes with batch_size.apply: script, because run.loader sets the batch size"
            )
        largest = sizes.candidates[-1]
        if highest > largest and sizes.per_device_max is None:
            raise ValueError(
                f"has batch_size.max {highest}, above the largest candidate ({largest}), so it may "
                f"not fit in memory; add {highest} to batch_size.candidates, or set "
                "batch_size.per_device_max, so that larger ones accumulate gradients"
            )
        if not lowest <= sizes.default <= highest:
            raise ValueError(
                f"has a range of {lowest} to {highest}, which does not contain batch_size.default "
                f"({sizes.default})"
            )
        outside = [str(size) for size in chosen.planned.values() if not lowest <= size <= highest]
        if outside:
            raise ValueError(
                f"has a schedule with {', '.join(outside)}, outside {lowest} to {highest}; change "
                "batch_size.min or batch_size.max of adapt, or batch_size.candidates"
            )
        ranks = count_ranks(data)
        if ranks is not None:
            self.check_divisible(ranks)

    def warn_of(self, script: str) -> str | None:
        """Return why the batch size will not change with a script of this text."""
        if ".loader(" in script:
            return None
        return (
            "the batch size seems not to adapt: the script does not mention run.loader(...), which "
            "makes a data loader whose batch size can change (docs/adapt.md)"
        )

    def tell(self, chosen: Chosen) -> dict[str, Mapping[str, Any]]:
        """Return how the ranks change the batch size, and which gradients they measure for it."""
        size, (least, largest) = self.batch_size, self.limits(chosen.sizes)
        largest = largest if chosen.fitting is None else min(largest, chosen.fitting)
        interval, unit = size.interval
        asked = {
            "policies": size.classes or [size.policy],
            "interval": interval,
            "unit": unit,
            "minimum": least,
            "maximum": largest,
            "growth": size.growth,
            "schedule": list(size.planned.items()),
            "per_device_max": chosen.sizes.per_device_max,
            "learning_rate": self.learning_rate,
        }
        told: dict[str, Mapping[str, Any]] = {self.key: asked}
        if self.measures:
            watch = find_part("watch").model_validate({"noise_scale": {}})
            told |= watch.tell(chosen)
        return told

    def check_divisible(self, world_size: int) -> None:
        """Raise ``ValueError`` if the processes cannot share a planned batch size evenly."""
        uneven = [str(size) for size in self.batch_size.planned.values() if size % world_size]
        if uneven:
            raise ValueError(
                f"has a schedule with batch sizes that {world_size} processes cannot share evenly: "
                f"{', '.join(uneven)}; use multiples of {world_size}"
            )


SECTION = Adapt

"""All that a submit needs, built once by the command."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.launcher.processes.command import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeusrun.bandit.registry import Policy
    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.processes.installation import Torchrun


@dataclass(frozen=True)
class Submission:
    """A job, and all that running it needs."""

    spec: JobSpec
    history: History
    policy: Policy
    devices: Sequence[Device]  # to meter: the job's GPUs, else the CPU
    world_size: int
    torchrun: Torchrun
    home: Path  # contains the run directories
    environment: Mapping[str, str]  # inherited by the ranks
    forced_batch_size: int | None = None  # the user's own; ``None`` to ask the policy
    why_forced: str = "chosen by --batch-size"
    limits: LimitHolder | None = (
        None  # holds power limits while it is entered; ``None`` to change none
    )
    host: str = field(default_factory=platform.node)  # name of this machine

    @property
    def power_limits_w(self) -> tuple[float, ...]:
        """Limits per GPU that a policy may choose from, ascending; empty to change none."""
        optimizes = self.limits is not None and self.spec.power_limit.mode == "optimize"
        return self.limits.limits_w if optimizes and self.limits else ()

    @property
    def gpus(self) -> list[Device]:
        """The GPUs among the devices."""
        return [device for device in self.devices if device.is_gpu]

    @property
    def placement(self) -> Placement:
        """Where the ranks are started: all on this host."""
        return Placement(self.world_size)

    def close(self) -> None:
        """Close the devices."""
        for device in self.devices:
            device.close()

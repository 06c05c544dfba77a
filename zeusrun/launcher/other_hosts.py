"""Protocols for the other hosts of a submit; ``run_on/hosts`` implements them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections import deque
    from collections.abc import Mapping, Sequence

    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.launcher.power.limits import HeldLimits
    from zeusrun.launcher.processes.command import Command, Place
    from zeusrun.launcher.processes.torchrun import ProcessExit, StopLevel
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.sidecar.step_clock import StepCount


class Node(Protocol):
    """One other host: its devices, and its part of a run.

    Attributes:
        name: The name of the host, as the user writes it.
        ranks: The global ranks on this host.
        states: The process state of each of its live ranks, as psutil names it.
        counts: The step clock of each of its ranks that has made a step.
        lost: Why the host is lost, as a sentence; ``None`` if it is not.
        shared: Whether others computed on its devices in this run; ``None`` if unknown.
        saved: Whether a checkpoint of the run is on its disk, or on a shared one.
        all_live: Whether all of its ranks live.
        ended: Set once its part of the run has ended, or the host is lost.
        oom_kills: How many processes the kernel has killed there for lack of memory.
        notices: Messages of the node for the user, oldest first. The reader removes each message.
        signals: The signal numbers that its launcher received. The reader removes each number.
    """

    name: str
    ranks: range
    states: dict[int, str]
    counts: dict[int, StepCount]
    lost: str | None
    shared: bool | None
    saved: bool
    all_live: bool
    ended: threading.Event
    oom_kills: int | None
    notices: deque[str]
    signals: deque[int]

    @property
    def devices(self) -> Sequence[Device]:
        """The devices that the job uses on this host."""

    @property
    def is_running(self) -> bool:
        """Whether its part of the run has not ended."""

    @property
    def failed(self) -> bool:
        """Whether its torchrun has failed."""

    def start(self, command: Command, paths: RunPaths, grace_period_s: float) -> None:
        """Start its part of a run."""

    def wait_until_started(self) -> None:
        """Wait until it has; raises ``LaunchError``."""

    def stop(self, level: StopLevel) -> None:
        """Stop its part, at least so firmly."""

    def finish(self) -> ProcessExit:
        """Wait for the end of its part; return how that ended."""

    def ask_for_stacks(self) -> None:
        """Let its ranks write their stacks."""

    def kill_ranks(self) -> None:
        """Kill its ranks, but not its torchrun."""


class Hosts(Protocol):
    """The other hosts of a submit."""

    remarks: list[str]
    """Warnings about differences between the hosts."""

    @property
    def nodes(self) -> Sequence[Node]:
        """Each of them."""

    @property
    def slots(self) -> Mapping[str, int | str]:
        """By host, as ``launch.nproc_per_node``."""

    def places(self) -> list[Place]:
        """Return where the torchrun of each host is, that of this one first."""

    def join_limits(self, own: LimitHolder | None, mode: str) -> HeldLimits:
        """Return the power limits of all hosts as one; ``own`` are those of this one."""

    def close(self) -> None:
        """End the launchers there."""

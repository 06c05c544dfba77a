"""All that a submit needs: the job, its history and policy, and the devices of this machine."""

from __future__ import annotations

import contextlib
import itertools
import platform
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from zeusrun.choice.attempts import find_preempted
from zeusrun.choice.problem import Chooser, Machine, Moment
from zeusrun.clock import timestamp
from zeusrun.energy.device import LimitableDevice
from zeusrun.errors import DeviceError
from zeusrun.files.home import runs_directory
from zeusrun.jobfile.fingerprint import take_fingerprint
from zeusrun.jobfile.plugged import Chosen
from zeusrun.launcher.events import Noted, Warned
from zeusrun.launcher.processes.command import Place, build_command
from zeusrun.launcher.queue.tickets import find_waiting
from zeusrun.launcher.rundir.layout import RunPaths, has_begun, has_checkpoint, numbered_runs
from zeusrun.launcher.rundir.ownership import find_own, run_paths
from zeusrun.lever import POWER, Lever
from zeusrun.tariff import Tariffs
from zeusrun.trial import Hardware, HostShare, TrialStatus

if TYPE_CHECKING:
    import threading
    from collections import deque
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from zeusrun.bandit.registry import Policy
    from zeusrun.choice.problem import Forced
    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.power.limits import HeldLimits
    from zeusrun.launcher.processes.command import Command, Torchrun
    from zeusrun.launcher.processes.torchrun import ProcessExit, StopLevel
    from zeusrun.run_on.registry import Allocation
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import Trial


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

    def set_members(self, ranks: Sequence[int]) -> None:
        """Say which of its processes are ranks now, after their number has changed."""

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

    def join_limits(self, local: LimitHolder | None, mode: str) -> HeldLimits:
        """Return the power limits of all hosts as one; ``local`` are those of this one."""

    def close(self) -> None:
        """End the launchers there."""


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
    forced: Forced | None = None  # ``None`` to ask the policy
    limits: HeldLimits | None = None  # holds power limits while it is entered
    host: str = field(default_factory=platform.node)  # name of this machine
    tariffs: Tariffs = field(default_factory=Tariffs)
    read_tariffs: Callable[[], Tariffs] = Tariffs  # as they are now; raises ``JobFileError``
    describe_machine: Callable[[], dict[str, Any]] = dict  # for the page of a shared history
    cluster: Hosts | None = None  # the other hosts, if there are several
    allocation: Allocation | None = None  # the job of a scheduler that it runs in
    planned: Machine | None = None  # of a job that will run elsewhere, as far as it is known

    @property
    def gpus(self) -> list[Device]:
        """The GPUs among the devices."""
        return [device for device in self.devices if device.is_gpu]

    @property
    def nodes(self) -> Sequence[Node]:
        """The other hosts."""
        return () if self.cluster is None else self.cluster.nodes

    @property
    def own_ranks(self) -> int:
        """The number of ranks on this host, the first ones."""
        return self.world_size - sum(len(node.ranks) for node in self.nodes)

    @property
    def host_shares(self) -> tuple[HostShare, ...]:
        """All hosts, without energy; none if the job runs on this one alone."""
        others = [HostShare(node.name, len(node.ranks)) for node in self.nodes]
        return (HostShare(self.host, self.own_ranks), *others) if others else ()

    def commands(
        self,
        trial: Trial,
        paths: RunPaths,
        fitting: int | None = None,
        earlier: Sequence[Trial] = (),
    ) -> tuple[Command, ...]:
        """Return the commands that run a trial, that of this host first.

        ``fitting``: how far its batch size may grow; ``None``: as far as the job file allows.
        ``earlier``: the newest trials of the job, oldest first.
        """
        places = [Place(self.world_size)] if self.cluster is None else self.cluster.places()
        # The launcher of another host adds its own environment.
        of_node = {"ZEUSRUN_HOME": str(self.home)}
        return tuple(
            build_command(
                self.spec,
                trial,
                paths,
                self.torchrun,
                of_node if place.number else self.environment,
                chosen=Chosen(self.spec.batch_size, trial, fitting, earlier),
                place=place,
            )
            for place in places
        )

    @property
    def chooser(self) -> Chooser:
        """Who chooses for this job."""
        return Chooser(self.spec, self.policy, self.forced)

    def measure(self) -> Machine:
        """Return the machine as a choice sees it now; the limits to choose from need ``limits``."""
        if self.planned is not None:
            return self.planned
        fixed_w, gpus = self.spec.power_limit.watts, self.gpus
        limits_w = {fixed_w or gpu.read().power_limit_w for gpu in gpus}
        max_w = [device.max_power_w for device in self.devices]
        known_w = [watts for watts in max_w if watts is not None]
        optimizes = self.limits is not None and self.spec.power_limit.mode == "optimize"
        return Machine(
            host=self.host,
            allocation=None if self.allocation is None else self.allocation.name,
            time_left_s=None if self.allocation is None else self.allocation.time_left_s(),
            hardware=Hardware(
                self.world_size,
                " + ".join(dict.fromkeys(gpu.model for gpu in gpus)) or None,
                len(gpus),
                1 + len(self.nodes),
            ),
            hosts=self.host_shares,
            energy_measured=all(device.energy_source.measured for device in self.devices)
            if self.devices
            else None,
            max_power_w=sum(known_w) if known_w and len(known_w) == len(max_w) else None,
            levers=self.limits.levers if optimizes and self.limits else (),
            power_limit_w=limits_w.pop() if len(limits_w) == 1 else None,
        )

    def read_moment(self, trials: Sequence[Trial], *, limited: bool = False) -> Moment:
        """Return what holds now for a choice of the job's next trial; ``trials`` are its newest.

        ``limited``: whether the time is limited, so that it matters whether the script resumes.
        """
        job, home, history = self.spec.name, self.home, self.history
        now, runs = take_fingerprint(self.spec), runs_directory(home, job)
        known = max((trial.recurrence for trial in trials), default=0)
        newer = [(n, name) for n, name in numbered_runs(home, job) if n is not None and n > known]
        mine = _own_trials(history, home, self.host, trials)
        inside = None if self.allocation is None else self.allocation.name
        reserved = find_waiting([t for t in mine if t.status is TrialStatus.PREEMPTED], inside)
        preempted = find_preempted(mine, inside, reserved)
        paths = None if preempted is None else find_own(home, preempted)
        return Moment(
            now=timestamp(),
            uuid=uuid4().hex,
            runs=runs,
            fingerprint=now.parts,
            script=now.script,
            unrecorded=tuple(
                run for run in sorted(newer, reverse=True) if has_begun(RunPaths(runs / run[1]))
            ),
            preempted=preempted,
            has_files=paths is not None and paths.job_copy.is_file(),
            resumes=_resumes(home, trials) if limited else None,
        )

    def close(self) -> None:
        """Close the devices, and end the launchers of other hosts."""
        if self.cluster is not None:
            self.cluster.close()
        for device in self.devices:
            device.close()


@contextlib.contextmanager
def holding_limits(submission: Submission, emit: Emit) -> Iterator[Submission]:
    """Hold the GPUs' power limits for a submit, and restore the original ones at the end.

    Raises ``DeviceError`` if a GPU does not take the limit of the job.
    """
    mode, fixed_w = submission.spec.power_limit.mode, submission.spec.power_limit.watts
    shared = [text for device in submission.gpus if (text := device.caveat) is not None]
    if fixed_w is not None and shared:
        raise DeviceError(
            f"power_limit.watts: {shared[0]}; set power_limit.mode to 'observe', and the limit of "
            "the whole GPU by `nvidia-smi -pl`"
        )
    if mode == "optimize" and shared:
        emit(Noted(f"power limits are not changed: {shared[0]}"))
        mode = "observe"
    # The job's own ZEUSD_SOCK_PATH counts for the guard as it does for the devices.
    environment = {**submission.environment, **submission.spec.env}
    local: LimitHolder | None = None
    if any(isinstance(device, LimitableDevice) for device in submission.devices):
        from zeusrun.launcher.power.control import open_limits  # noqa: PLC0415 - few have them

        local = open_limits(mode, submission.devices, submission.home, environment)
    holder: HeldLimits | None = local
    if submission.cluster is not None and submission.gpus and mode != "observe":
        holder = submission.cluster.join_limits(local, mode)
    if holder is None:
        if fixed_w is not None:
            emit(Warned(f"power_limit.watts: the job has no GPU to hold to {fixed_w:g} W"))
        yield submission
        return
    try:
        with holder:
            if fixed_w is not None:
                holder.check(Lever(POWER, fixed_w))
            elif holder.refused is not None:
                emit(Noted(f"power limits are not changed: {holder.refused}"))
            yield replace(submission, limits=holder)
    finally:
        if holder.unrestored is not None:
            emit(Warned(holder.unrestored))


_FEW = 5  # newest runs: they show whether a script saves checkpoints


def _resumes(home: Path, trials: Sequence[Trial]) -> bool | None:
    """Whether one of the newest runs whose files are here has saved a checkpoint.

    ``None``: not known. A run without checkpoint that ended by itself before its first epoch, or
    crashed there, shows nothing.
    """
    ended = (each for each in reversed(trials) if each.status.finished and each.time_s is not None)
    saved = (each for each in ended if run_paths(home, each).checkpoints.is_dir())
    here = ((each, paths) for each in saved if (paths := find_own(home, each)) is not None)
    newest = list(itertools.islice(here, _FEW))
    if any(has_checkpoint(paths.run_dir) for _, paths in newest):
        return True
    ended_by_others = {TrialStatus.STOPPED, TrialStatus.PREEMPTED}
    shows = (each.epochs or each.status in ended_by_others for each, _ in newest)
    return False if any(shows) else None


def _own_trials(
    history: History, home: Path, host: str, trials: Sequence[Trial]
) -> Sequence[Trial]:
    """Return the trials that this machine can continue, and those that it ran."""
    if not trials or not history.keeps_leases(trials[0].job):
        return trials
    preempted = TrialStatus.PREEMPTED
    return [
        each
        for each in trials
        if (each.host in {None, host} and each.status is not preempted)
        or (each.status is preempted and find_own(home, each) is not None)
    ]

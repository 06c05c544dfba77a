"""All that a submit needs: the job, its history and policy, and the devices of this machine."""

from __future__ import annotations

import itertools
import platform
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from zeusrun.choice.attempts import find_preempted
from zeusrun.choice.problem import Chooser, Machine, Moment
from zeusrun.clock import timestamp
from zeusrun.files.home import runs_directory
from zeusrun.jobfile.fingerprint import take_fingerprint
from zeusrun.launcher.processes.command import Place, build_command
from zeusrun.launcher.queue.tickets import find_waiting
from zeusrun.launcher.rundir.layout import RunPaths, has_checkpoint, numbered_runs
from zeusrun.launcher.rundir.ownership import find_own, run_paths
from zeusrun.launcher.rundir.record import has_begun
from zeusrun.tariff import Tariffs
from zeusrun.trial import Hardware, HostShare, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.bandit.registry import Policy
    from zeusrun.choice.problem import Forced
    from zeusrun.energy.device import Device
    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.other_hosts import Hosts, Node
    from zeusrun.launcher.power.limits import HeldLimits
    from zeusrun.launcher.processes.command import Command, Torchrun
    from zeusrun.run_on.registry import Allocation
    from zeusrun.trial import Trial


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
        self, trial: Trial, paths: RunPaths, fitting: int | None = None
    ) -> tuple[Command, ...]:
        """Return the commands that run a trial, that of this host first.

        ``fitting``: how far its batch size may grow; ``None``: as far as the job file allows.
        """
        places = [Place(self.world_size)] if self.cluster is None else self.cluster.places()
        return tuple(self._command(trial, paths, fitting, place) for place in places)

    def _command(self, trial: Trial, paths: RunPaths, fitting: int | None, place: Place) -> Command:
        torchrun, environment = self.torchrun, self.environment
        if place.number:  # its launcher adds its own torchrun and its own environment
            torchrun, environment = replace(torchrun, argv=()), {"ZEUSRUN_HOME": str(self.home)}
        return build_command(
            self.spec, trial, paths, torchrun, environment, fitting=fitting, place=place
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
        own = None if self.allocation is None else self.allocation.name
        reserved = find_waiting([t for t in mine if t.status is TrialStatus.PREEMPTED], own)
        preempted = find_preempted(mine, own, reserved)
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

"""Steers the GPUs' power limit while a trial runs, and restores what dead launchers have left."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import TYPE_CHECKING

from zeusrun.bandit.problem import merged_profile
from zeusrun.energy.device import LimitableDevice, is_same_limit
from zeusrun.errors import DeviceError
from zeusrun.files.home import limits_directory
from zeusrun.gpu.power_limits.holder import LimitHolder
from zeusrun.gpu.power_limits.original_limits import is_held, read_record, repair_limits
from zeusrun.gpu.registry import open_device
from zeusrun.launcher.power.limits import LimitsReport
from zeusrun.launcher.power.profiler import Profiling
from zeusrun.launcher.processes.guard import GuardProcess
from zeusrun.lever import power_lever

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.choice.choose import Choice
    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.original_limits import Restored
    from zeusrun.launcher.power.limits import HeldLimits
    from zeusrun.lever import Lever
    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import PowerPoint

_RETRY_AFTER_S = 5.0


def open_limits(
    mode: str, devices: Sequence[Device], home: Path, environment: Mapping[str, str]
) -> LimitHolder | None:
    """Return the holder of the GPUs' limits, not entered yet; ``None`` to leave them alone.

    ``mode`` is ``power_limit.mode`` of the job file; the guard gets the job's ``environment``.
    """
    if mode == "observe" or not any(isinstance(device, LimitableDevice) for device in devices):
        return None
    directory = limits_directory(home)
    start_guard = functools.partial(GuardProcess, directory, environment)
    return LimitHolder(devices, directory, start_guard)


def restore_limits(home: Path) -> tuple[list[Restored], list[str], list[str]]:
    """Restore the power limits that dead launchers have left changed; see ``repair_limits``."""
    open_gpu = functools.partial(open_device, environment=os.environ)
    return repair_limits(limits_directory(home), open_gpu)


def held_by(home: Path, uuid: str) -> str | None:
    """Return which trial holds the power limit of a GPU; ``None`` if it has its original limit."""
    try:
        record = read_record(limits_directory(home), uuid)
    except DeviceError:
        return None  # doctor names a record that cannot be read
    if record is None:
        return None
    held = record.is_elsewhere or is_held(uuid, limits_directory(home))
    return record.trial if held else f"{record.trial}, dead: `zeusrun repair`"


class LimitControl:
    """The power limits of one trial.

    Without a holder, or without permission, it only measures; without GPUs or ``slowest``, the step
    clock of the rank that is furthest behind, not even that. ``fixed`` is the only limit to hold;
    ``None`` to let the policy choose by ``next_lever``, given the profile so far.
    """

    def __init__(
        self,
        holder: HeldLimits | None,
        gpus: Sequence[Device],
        slowest: Callable[[], StepCount | None] | None,
        warn: Callable[[str], None],
        *,
        choice: Choice,
        fixed: Lever | None,
        next_lever: Callable[[Sequence[PowerPoint]], Lever | None],
    ) -> None:
        self._holder, self._gpus, self._slowest, self._warn = holder, gpus, slowest, warn
        self._trial, self._original = choice.trial.trial, power_lever(choice.limit_w)
        self._fixed, self._next_lever = fixed, next_lever
        self.held: Lever | None = None  # ``None``: the original limit
        # Somebody else may have set a limit in an earlier attempt, which has warned of it.
        self._warned_of = None if holder is None else holder.taken
        self._failed, self._released = self._warned_of is not None, False
        self._retry_t = 0.0
        self._measures = bool(gpus and slowest)
        own_runs = [run for run in choice.runs if run.arm == choice.trial.global_batch_size]
        self._profiling = Profiling(
            choice.problem, merged_profile(own_runs), self._original, self._ask, self._is_in_force
        )

    def restore(self) -> None:
        """Restore the original limits; what fails is tried again at the end of the submit."""
        self._profiling.finish()  # while the limit that it measures is still in force
        if self._holder is not None:
            with contextlib.suppress(DeviceError):
                self._holder.restore()
                self.held = None
            self._check_taken()

    def begin(self) -> None:
        """Hold the fixed limit, if there is one, before anything starts; raises ``DeviceError``."""
        if self._holder is not None and self._fixed is not None:
            self._holder.hold(self._fixed, self._trial)
            self.held = self._fixed

    def advance(self, now_t: float, energy_between: EnergyBetween, *, wait: bool) -> None:
        """Read the step clocks, and hold the limit that is wanted now; see ``Profiling``."""
        self._keep_guarded(now_t)
        count = self._slowest() if self._slowest and self._measures else None
        if count is None:
            return
        failure = self._profiling.failure
        wanted = self._profiling.advance(count, now_t, energy_between, wait=wait)
        if self._profiling.failure != failure:
            self._warn(str(self._profiling.failure))
        if self._hold(wanted):
            self._profiling.settle(time.monotonic())

    def wind_down(self, *, at_once: bool) -> None:
        """Try no more limits, because the training is to end; ``at_once``: restore them now."""
        if self._released:
            return
        if at_once:
            self._released = True
            self.restore()
            return
        self._keep_guarded(time.monotonic())
        if self.probing:
            self._profiling.finish()
            self._hold(None)

    def report(self, checked: PowerPoint | None) -> LimitsReport:
        """Return what probes have shown, else what the speed check has (``checked``)."""
        if not self._measures:
            return LimitsReport(() if checked is None else (checked,))
        rough = () if checked is None else (checked._replace(power_limit_w=None),)
        profile = tuple(self._profiling.points.values()) or rough
        return LimitsReport(profile, self._profiling.extra_cost_j())

    @property
    def stepped_under(self) -> frozenset[Lever | None]:
        """The limits under which steps were taken so far."""
        if not self._measures:
            return frozenset([self.held or self._original])
        return frozenset(self._profiling.stepped_under)

    @property
    def probing(self) -> bool:
        """Whether a limit is held only to be measured."""
        return self._profiling.probing

    def _ask(self, profile: Sequence[PowerPoint]) -> Lever | None:
        return self._next_lever(profile) if self._fixed is None else None

    def _is_in_force(self, lever: Lever) -> bool | None:
        """Whether every GPU that has a limit has this one now; ``None`` if one does not answer."""
        asked = [read for gpu in self._gpus if (read := getattr(gpu, "power_limit_w", None))]
        try:
            read_w = [read() for read in asked]
        except DeviceError:
            return None  # the meter gets the same error, and warns
        return all(read is None or is_same_limit(read, lever.value) for read in read_w)

    def _hold(self, wanted: Lever | None) -> bool:
        """Hold a limit, or restore the original one for ``None``; return whether it has changed."""
        holder = self._holder
        if holder is None or holder.refused is not None or self._failed:
            return False
        if self._fixed is not None or wanted == self.held:
            return False
        try:
            if wanted is None:
                holder.restore()
            else:
                holder.hold(wanted, self._trial)
            self.held = wanted
        except DeviceError as error:
            self._leave_alone(str(error))
        self._check_taken()
        return not self._failed

    def _keep_guarded(self, now_t: float) -> None:
        """Keep a guard running; after a failure, try every 5 s to restore the limits."""
        if self._holder is None or now_t < self._retry_t:
            return
        if self._failed:
            self._retry_t = now_t + _RETRY_AFTER_S
        try:
            self._holder.keep_guarded()
            if self._failed:
                self._holder.restore()
        except DeviceError as error:
            if not self._failed:
                self._leave_alone(str(error))
        self._check_taken()

    def _check_taken(self) -> None:
        """Leave limits alone once somebody else has set one."""
        if self._holder is not None and self._holder.taken not in (None, self._warned_of):
            self._leave_alone(str(self._holder.taken))

    def _leave_alone(self, why: str) -> None:
        self._failed, self.held, self._warned_of = True, None, why
        why = f"zeusrun changes no power limit from now on: {why}"
        self._profiling.give_up(why, released=True)
        self._warn(why)

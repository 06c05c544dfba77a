"""Steers the GPUs' power limit while a trial runs, and says what came of it."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import merged_profile
from zeusrun.energy.device import LimitableDevice, is_same_limit
from zeusrun.errors import DeviceError
from zeusrun.files.home import limits_directory
from zeusrun.gpu.nvml import gpu_by_uuid
from zeusrun.gpu.power_limits.holder import LimitHolder
from zeusrun.gpu.power_limits.lock import is_held
from zeusrun.gpu.power_limits.original_limits import read_record
from zeusrun.gpu.power_limits.restore import repair_limits
from zeusrun.gpu.zeusd import named_zeusd, naming_zeusd
from zeusrun.launcher.power.profiler import LimitsReport, Profiling
from zeusrun.launcher.processes.guard import GuardProcess
from zeusrun.sidecar.step_clock import read_step_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from zeusrun.energy.device import Device
    from zeusrun.gpu.power_limits.original_limits import LimitRecord
    from zeusrun.gpu.power_limits.restore import Restored
    from zeusrun.launcher.choose import Choice
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import PowerPoint, Trial


def open_limits(
    mode: str, devices: Sequence[Device], home: Path, environment: Mapping[str, str]
) -> LimitHolder | None:
    """Return what may change the limits of a job's GPUs; ``None`` where they are to be left alone.

    It is a context manager that has not been entered yet.

    Args:
        mode: ``power_limit.mode`` of the job file.
        devices: The job's.
        home: Where the records are kept.
        environment: The job's, and the guard's.
    """
    if mode == "observe" or not any(isinstance(device, LimitableDevice) for device in devices):
        return None
    directory = limits_directory(home)
    start_guard = functools.partial(GuardProcess, directory, environment)
    return LimitHolder(devices, directory, start_guard, named_zeusd(environment))


def restore_limits(
    home: Path, *, dry_run: bool = False
) -> tuple[list[Restored], list[str], list[str]]:
    """Put back the power limits that dead launchers have left; see ``repair_limits``.

    Args:
        home: Zeusrun's.
        dry_run: Change nothing; only look what would become of them.
    """
    try:
        return repair_limits(limits_directory(home), _open_recorded, dry_run=dry_run)
    except DeviceError as error:
        return [], [str(error)], []


def _open_recorded(record: LimitRecord) -> LimitableDevice:
    return gpu_by_uuid(record.uuid, {**os.environ, **naming_zeusd(record.zeusd)})


def held_by(home: Path, uuid: str) -> str | None:
    """Return which trial holds the power limit of a GPU; ``None`` if it is as found."""
    try:
        record = read_record(limits_directory(home), uuid)
    except DeviceError:
        return None  # doctor names a record that cannot be read
    if record is None:
        return None
    held = record.is_elsewhere or is_held(uuid, limits_directory(home))
    return record.trial if held else f"{record.trial}, dead: `zeusrun repair`"


_AGAIN_S = 5.0


class LimitControl:
    """The power limits of one trial, by the step clocks of its ranks.

    Without a holder, or without permission, it only measures.
    """

    def __init__(
        self,
        submission: Submission,
        trial: Trial,
        paths: RunPaths,
        choice: Choice,
        warn: Callable[[str], None],
    ) -> None:
        """Prepare; nothing is changed yet.

        Args:
            submission: The job and all it needs.
            trial: As dispatched.
            paths: Its files.
            choice: The decision that it carries out.
            warn: Takes a sentence that a user should act on.
        """
        self._holder, self._gpus = submission.limits, submission.gpus
        self._trial, self._paths, self._warn = trial, paths, warn
        self._fixed_w = submission.spec.power_limit.watts
        self._policy, self._choice = submission.policy, choice
        self._held_w: float | None = None
        # Somebody else may have set a limit in an earlier attempt, whose user was told.
        self._told = None if self._holder is None else self._holder.taken
        self._failed, self._wound_down = self._told is not None, False
        self._tend_t = 0.0
        known = [run for run in choice.runs if run.arm == trial.global_batch_size]
        profiled = bool(submission.gpus) and submission.spec.instrument
        # The trial itself says what was in force before it was preempted.
        self._found_w = choice.limit_w
        self._profiling = (
            Profiling(
                choice.problem, merged_profile(known), self._found_w, self._ask, self._is_in_force
            )
            if profiled
            else None
        )

    def __enter__(self) -> Self:
        """Hold nothing yet; see ``begin``."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of the limits."""
        self.let_go()

    def begin(self) -> None:
        """Hold the job file's own limit, if it names one, before anything starts.

        Raises:
            DeviceError: If it cannot be held.
        """
        if self._holder is not None and self._fixed_w is not None:
            self._holder.hold(self._fixed_w, self._trial.trial)
            self._held_w = self._fixed_w

    def let_go(self) -> None:
        """Put the limits back as they were found; what fails is tried again at the submit's end."""
        if self._profiling is not None:
            self._profiling.finish()  # while the limit that it measures is still in force
        if self._holder is not None:
            with contextlib.suppress(DeviceError):
                self._holder.restore()
                self._held_w = None
            self._see_taken()

    def decided(self, choice: Choice) -> None:
        """Take the decision that follows a look."""
        self._choice = choice

    def advance(self, now_t: float, energy_between: EnergyBetween, *, wait: bool) -> None:
        """Look at the step clocks, and hold the limit that is wanted now.

        Args:
            now_t: Monotonic seconds.
            energy_between: Joules between two monotonic seconds, ``None`` if unknown.
            wait: Whether to turn to no other limit yet.
        """
        self._tend(now_t)
        if self._profiling is None:
            return
        count = slowest(self._paths, self._trial.world_size)
        if count is None:
            return
        failure = self._profiling.failure
        wanted_w = self._profiling.advance(count, now_t, energy_between, wait=wait)
        if self._profiling.failure != failure:
            self._warn(str(self._profiling.failure))
        if self._hold(wanted_w):
            self._profiling.settle(time.monotonic())

    def wind_down(self, *, at_once: bool) -> None:
        """Take in that the training is to end: nothing more is tried.

        Args:
            at_once: Whether it is told to end now; who sent the signal may not wait for it.
        """
        if at_once and not self._wound_down:
            self._wound_down = True
            self.let_go()
        elif not self._wound_down:
            self._tend(time.monotonic())
            if self._profiling is not None and self.probing:
                self._profiling.finish()
                self._hold(None)

    def report(self, looked: PowerPoint | None) -> LimitsReport:
        """Return what came of it.

        Args:
            looked: What a look at the trial has shown; a probe of its own says it better.
        """
        profiling = self._profiling
        # A mean from the first step on is no probe: the next walk is to measure that limit itself.
        points = {} if looked is None else {None: looked._replace(power_limit_w=None)}
        if profiling is None:
            return LimitsReport(() if looked is None else (looked,))
        profile = tuple((profiling.points or points).values())
        return LimitsReport(profile, profiling.extra_cost_j())

    @property
    def stepped_under(self) -> frozenset[float | None]:
        """The limits, in watts per GPU, under which steps were taken so far."""
        if self._profiling is None:
            return frozenset([self._held_w or self._found_w])
        return self._profiling.stepped_under

    @property
    def held_w(self) -> float | None:
        """Watts per GPU that are held now; ``None`` while the limit is as found."""
        return self._held_w

    @property
    def probing(self) -> bool:
        """Whether a limit is held only to be measured."""
        return self._profiling is not None and self._profiling.probing

    def _ask(self, profile: Sequence[PowerPoint]) -> float | None:
        if self._fixed_w is not None:
            return None
        choice = self._choice
        return self._policy.next_limit_w(choice.problem, choice.decision, profile)

    def _is_in_force(self, limit_w: float) -> bool | None:
        """Whether every GPU that has a limit has this one now; ``None`` if one does not answer."""
        gpus = [gpu for gpu in self._gpus if isinstance(gpu, LimitableDevice)]
        try:
            read_w = [gpu.power_limit_w() for gpu in gpus]
        except DeviceError:
            return None  # the monitor's thread hears the same, and tells the user
        return all(read is None or is_same_limit(read, limit_w) for read in read_w)

    def _hold(self, wanted_w: float | None) -> bool:
        """Hold a limit, or the one found; return whether another one is in force since now."""
        holder = self._holder
        if holder is None or holder.refused is not None or self._failed:
            return False
        if self._fixed_w is not None or wanted_w == self._held_w:
            return False
        try:
            if wanted_w is None:
                holder.restore()
            else:
                holder.hold(wanted_w, self._trial.trial)
            self._held_w = wanted_w
        except DeviceError as error:
            self._leave_alone(str(error))
        self._see_taken()
        return not self._failed

    def _tend(self, now_t: float) -> None:
        """See to it that a guard watches, and that what could not be put back is tried again."""
        if self._holder is None or now_t < self._tend_t:
            return
        if self._failed:
            self._tend_t = now_t + _AGAIN_S
        try:
            self._holder.keep_guarded()
            if self._failed:
                self._holder.restore()
        except DeviceError as error:
            if not self._failed:
                self._leave_alone(str(error))
        self._see_taken()

    def _see_taken(self) -> None:
        """Leave limits alone once somebody else has set one."""
        if self._holder is not None and self._holder.taken not in (None, self._told):
            self._leave_alone(str(self._holder.taken))

    def _leave_alone(self, why: str) -> None:
        self._failed, self._held_w, self._told = True, None, why
        why = f"power limits are left alone from now on: {why}"
        if self._profiling is not None:
            self._profiling.give_up(why, released=True)
        self._warn(why)


def slowest(paths: RunPaths, world_size: int) -> StepCount | None:
    """Return the step clock of the rank that is furthest behind; ``None`` before all took one."""
    counts = [read_step_clock(paths.rank_clock(rank)) for rank in range(world_size)]
    known = [count for count in counts if count is not None]
    if len(known) < world_size:
        return None
    return min(known, key=lambda count: (count.steps, -count.last_step_t))

"""Steers the GPUs' power limit while a trial runs, and says what came of it."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING

from zeusrun.bandit.run import merged_profile
from zeusrun.errors import DeviceError
from zeusrun.gpu.device import LimitableDevice
from zeusrun.gpu.guard import open_gpu
from zeusrun.gpu.limit_lock import is_held
from zeusrun.gpu.limit_record import read_record
from zeusrun.gpu.power_limit import LimitHolder, repair_limits
from zeusrun.gpu.zeusd import SOCKET_VARIABLE
from zeusrun.launcher.paths import limits_directory
from zeusrun.launcher.process import GuardProcess
from zeusrun.launcher.profiling import LimitsReport, Profiling
from zeusrun.sidecar import read_step_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.gpu.device import Device
    from zeusrun.gpu.limit_record import LimitRecord
    from zeusrun.launcher.choice import Choice, Submission
    from zeusrun.launcher.paths import RunPaths
    from zeusrun.launcher.progress import EnergyBetween
    from zeusrun.sidecar import StepCount
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
    return LimitHolder(devices, directory, start_guard, environment.get(SOCKET_VARIABLE))


def repair(home: Path) -> tuple[list[str], list[str]]:
    """Put back the power limits that dead launchers have left.

    Returns:
        A sentence for each limit that was restored, and one for each that could not be.
    """
    restored, problems = repair_limits(limits_directory(home), _open_recorded)
    sentences = [
        f"the power limit of {record.uuid} is {record.found_w:g} W again, as {record.trial} "
        "had found it"
        for record in restored
    ]
    return sentences, problems


def _open_recorded(record: LimitRecord) -> LimitableDevice:
    job_says = {} if record.zeusd is None else {SOCKET_VARIABLE: record.zeusd}
    return open_gpu(record.uuid, {**os.environ, **job_says})


def held_by(home: Path, uuid: str) -> str | None:
    """Return which trial holds the power limit of a GPU; ``None`` if it is as found."""
    try:
        record = read_record(limits_directory(home), uuid)
    except DeviceError:
        return None  # doctor names a record that cannot be read
    if record is None:
        return None
    return record.trial if is_held(uuid) else f"{record.trial}, dead: `zeusrun repair`"


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
        self._holder = submission.limits
        self._trial, self._paths, self._warn = trial, paths, warn
        self._fixed_w = submission.spec.power_limit.watts
        self._policy, self._choice = submission.policy, choice
        self._held_w: float | None = None
        self._failed = False
        known = [run for run in choice.runs if run.arm == trial.global_batch_size]
        profiled = bool(submission.gpus) and submission.spec.instrument
        found_w = trial.power_limit_w
        self._profiling = (
            Profiling(choice.problem, merged_profile(known), found_w, self._ask)
            if profiled
            else None
        )

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
        if self._holder is not None:
            with contextlib.suppress(DeviceError):
                self._holder.restore()

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
        self._keep_guarded()
        if self._profiling is None:
            return
        count = slowest(self._paths, self._trial.world_size)
        if count is None:
            return
        failure = self._profiling.failure
        wanted_w = self._profiling.advance(count, now_t, energy_between, wait=wait)
        if self._profiling.failure != failure:
            self._warn(str(self._profiling.failure))
        self._hold(wanted_w)

    def report(self, looked: PowerPoint | None) -> LimitsReport:
        """Return what came of it.

        Args:
            looked: What a look at the trial has shown; a probe of its own says it better.
        """
        profiling = self._profiling
        points = {} if looked is None else {looked.power_limit_w: looked}
        held_w = self._held_w
        if self._failed and self._holder is not None:
            held_w = self._holder.found_w
        if profiling is None:
            return LimitsReport(tuple(points.values()), held_w)
        profiling.finish()
        profile = tuple((points | profiling.points).values())
        in_force_w = held_w if profiling.chosen_w is None else profiling.chosen_w
        return LimitsReport(profile, in_force_w, profiling.extra_cost_j())

    @property
    def stepped_under(self) -> frozenset[float | None]:
        """The limits, in watts per GPU, under which steps were taken so far."""
        if self._profiling is None:
            return frozenset([self._held_w or self._trial.power_limit_w])
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

    def _hold(self, wanted_w: float | None) -> None:
        holder = self._holder
        if holder is None or holder.refused is not None or self._failed:
            return
        if self._fixed_w is not None or wanted_w == self._held_w:
            return
        try:
            if wanted_w is None:
                holder.restore()
            else:
                holder.hold(wanted_w, self._trial.trial)
            self._held_w = wanted_w
        except DeviceError as error:
            self._leave_alone(error)

    def _keep_guarded(self) -> None:
        if self._holder is None or self._failed:
            return
        try:
            self._holder.keep_guarded()
        except DeviceError as error:
            self._leave_alone(error)

    def _leave_alone(self, error: DeviceError) -> None:
        self._failed, self._held_w = True, None
        why = f"power limits are left alone from now on: {error}"
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

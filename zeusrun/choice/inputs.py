"""What a trial is chosen from, besides the history: all measured and read beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from zeusrun.bandit.registry import Policy
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.lever import Lever
    from zeusrun.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices that a job trains on. ``None`` is unknown."""

    host: str | None = None
    world_size: int
    gpu_model: str | None = None
    gpu_count: int = 0
    energy_measured: bool | None = None  # ``False``: a model estimates it; ``None``: there is none
    max_power_w: float | None = None  # summed over the devices
    levers: tuple[Lever, ...] = ()  # to choose from, ascending; empty: nothing may be set
    power_limit_w: float | None = None  # in force on each GPU; ``None`` without a common one


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What holds at the moment of a choice: time, id, and what the files of the job show."""

    now: str  # RFC 3339
    uuid: str  # of a new trial
    runs: Path  # contains the run directories of the job
    fingerprint: Mapping[str, str]  # of the training as it would start now
    script: str = "the script"  # what people call its part ``script``
    unrecorded: tuple[tuple[int, str], ...] = ()  # begun runs newer than the history, newest first
    preempted: Trial | None = None  # the oldest one that this machine could continue
    has_files: bool = False  # whether the files of that are here


@dataclass(frozen=True)
class Forced:
    """The user's own choice."""

    batch_size: int
    why: str  # a sentence


@dataclass(frozen=True)
class Chooser:
    """Who chooses for a job: the user, where the user gave a choice, else the policy."""

    spec: JobSpec
    policy: Policy
    forced: Forced | None = None

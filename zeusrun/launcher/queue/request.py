"""What a user wants of one submit, beside the job file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.choice.problem import Forced

if TYPE_CHECKING:
    from zeusrun.jobfile.validators import Overlap


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a submit; one that is queued in Slurm keeps them as JSON."""

    overrides: tuple[str, ...] = ()  # of the job file
    batch_size: int | None = None  # the user's own choice; ``None`` to ask the policy
    why: str = "chosen by --batch-size"
    overlap: Overlap = "allow"
    until: float | None = None  # Unix seconds: it gives up if it cannot begin by then
    wait: bool = False  # for GPUs of other jobs
    quiet: bool = False
    job_file: str = ""  # of a queued one, as the next two
    ticket: int = 0  # its number
    allocation: str = ""  # its job, such as slurm:1234, once it is known

    @property
    def forced(self) -> Forced | None:
        """The user's own choice."""
        return None if self.batch_size is None else Forced(self.batch_size, self.why)

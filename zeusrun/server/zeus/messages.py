"""The JSON that Zeus's clients send and expect: the messages of Zeus 0.16.

https://ml.energy/zeus/reference/optimizer/batch_size/common/ describes the fields. As in Zeus,
fields that are not listed here are ignored.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, model_validator

from zeusrun.record_json import MAX_COUNT

_MAX_SIZES = 256  # a policy inverts a matrix of this size
_MAX_RUNS = 10**15
_LONGEST_ID = 200


def is_id(text: str) -> bool:
    """Whether a job can have this id: no database and no terminal takes every character."""
    return text.isprintable() and text == text.strip() and len(text) <= _LONGEST_ID


def _check_id(text: str) -> str:
    if not is_id(text):
        raise ValueError(
            f"must be at most {_LONGEST_ID} printable characters, without spaces at both ends"
        )
    return text


Name = Annotated[str, AfterValidator(_check_id)]
Count = Annotated[int, Field(gt=0, le=MAX_COUNT)]


class ZeusSettings(BaseModel):
    """A job as a client describes it: its search space, its goal, and its GPUs.

    What only Zeus's own bandit uses (``num_pruning_rounds`` and ``mab_*``) is stored and returned.
    """

    job_id: Name | None = None  # ``None``: the server makes one
    job_id_prefix: Name
    batch_sizes: list[Count] = Field(min_length=1, max_length=_MAX_SIZES)
    default_batch_size: Count
    eta_knob: float = Field(0.5, ge=0, le=1)
    beta_knob: FiniteFloat | None = Field(2.0, gt=0)
    target_metric: FiniteFloat = 0.5
    higher_is_better_metric: bool = True
    max_epochs: Count = 100
    num_pruning_rounds: int = Field(2, ge=0, le=MAX_COUNT)
    window_size: int = Field(0, le=MAX_COUNT)  # up to 0: all runs count
    mab_prior_mean: FiniteFloat = 0.0
    mab_prior_precision: FiniteFloat = 0.0
    mab_num_explorations: int = Field(2, ge=0, le=MAX_COUNT)
    mab_seed: int | None = Field(None, ge=-MAX_COUNT, le=MAX_COUNT)
    max_power: FiniteFloat = Field(gt=0)  # watts, summed over the GPUs
    number_of_gpus: Count
    gpu_model: Name = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> ZeusSettings:
        self.batch_sizes = sorted(set(self.batch_sizes))
        if self.default_batch_size not in self.batch_sizes:
            raise ValueError(
                f"default_batch_size: {self.default_batch_size} is not among batch_sizes "
                f"({', '.join(map(str, self.batch_sizes))})"
            )
        if self.job_id is not None and not self.job_id.startswith(self.job_id_prefix):
            raise ValueError(
                f"job_id: {self.job_id!r} does not start with job_id_prefix "
                f"({self.job_id_prefix!r})"
            )
        if self.job_id == "":
            raise ValueError("job_id is empty; leave it out, and the server makes one")
        return self

    def differences(self, other: ZeusSettings) -> list[str]:
        """Describe what ``other`` has instead of this job's values, one clause a field."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [
            f"{name} is {theirs[name]}, not {value}"
            for name, value in mine.items()
            if theirs[name] != value
        ]


class TrialId(BaseModel):
    """What names a trial: the job, its batch size, and its number within the job, from 1."""

    job_id: str
    batch_size: int
    trial_number: int = Field(ge=1, le=_MAX_RUNS)


class Report(TrialId):
    """What a training has taken since it began, and its metric after an epoch."""

    time: FiniteFloat = Field(ge=0)  # seconds
    energy: FiniteFloat = Field(ge=0)  # joules
    metric: float  # NaN if the training diverged
    current_epoch: int = Field(ge=0, le=MAX_COUNT)


class ReportResponse(BaseModel):
    """Whether a training goes on. Once it stops, ``converged`` says if it reached the target."""

    stop_train: bool
    converged: bool
    message: str

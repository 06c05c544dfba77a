"""The section ``loader`` of a job file: the worker processes of the training's data loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from zeusrun.jobfile.plugged import PartSection

if TYPE_CHECKING:
    from zeusrun.jobfile.plugged import Chosen
    from zeusrun.trial import Hardware, Trial
    from zeusrun.trial.values import WorkersChange

_MOST = 1024


def _check_workers(workers: object) -> object:
    is_number = type(workers) is int and 1 <= workers <= _MOST
    if not is_number and workers not in ("script", "tune"):
        raise ValueError(f"must be script, tune or a number from 1 to {_MOST}, not {workers!r}")
    return workers


class Loader(PartSection):
    """How many worker processes the data loader of the training has."""

    key: ClassVar[str] = "loader"
    summary: ClassVar[str] = "How many worker processes the data loader of the training has."
    excludes: ClassVar[tuple[str, ...]] = ("adapt", "elastic")  # steps take another time, too

    workers: Annotated[str | int, BeforeValidator(_check_workers)] = Field(
        "script",
        description="script: as many as the script says; tune: find a number by measuring; or a "
        "number.",
    )
    max_workers: int | None = Field(
        None,
        ge=1,
        le=_MOST,
        description="With tune: the most workers of a rank; null: the cores of the machine "
        "divided by its ranks.",
    )
    from_zero: bool = Field(
        False,
        description="Also a loader without workers gets some; only if a copy of the data set can "
        "be read in another process.",
    )

    @property
    def speed_variant(self) -> str | None:
        """How the number of workers is found; ``None``: by the script."""
        return None if self.workers == "script" else str(self.workers)

    def tell(self, chosen: Chosen) -> dict[str, Mapping[str, Any]]:
        """Return how the ranks find the number of workers; nothing if the script says it."""
        if self.workers == "script":
            return {}
        trial = chosen.trial
        here = [each for each in chosen.earlier if each.host == trial.host]
        first, measured, never = self._find_known(here, trial.hardware, trial.global_batch_size)
        start = None if first is None else [first.workers, first.stays, first.wait, first.settled]
        found = {"start": start, "measured": measured, "never": never}
        return {self.key: {**self.model_dump(), **found}}

    def explain(self, earlier: Sequence[Trial], hardware: Hardware) -> str | None:
        """Return with how many workers the next run starts."""
        if self.workers != "tune":
            return None
        tuned = [each for each in earlier if each.speed_variant and each.hardware == hardware]
        if tuned and not tuned[-1].workers and tuned[-1].data_wait_s is not None:
            return "the newest run has left the loader workers as they are; its log says why"
        size = tuned[-1].global_batch_size if tuned else None
        first, *_ = self._find_known(earlier, hardware, size)
        if first is None:
            return "the next run begins with the loader workers of the script, and tries others"
        stay = " that stay" if first.stays else ""
        many = f"{first.workers} loader worker{'s' * (first.workers != 1)}{stay}"
        text = f"a run of batch size {size} begins with {many}"
        if first.settled is None:
            return f"{text}, and tries other numbers"
        return (
            f"{text}, the best number: {100 * (first.wait or 0.0):.0f} % of the time waits for data"
        )

    def _find_known(
        self, earlier: Sequence[Trial], hardware: Hardware, size: int | None
    ) -> tuple[WorkersChange | None, list[list[Any]], list[int]]:
        """Return what runs found since a search ended, and numbers of which a worker died.

        That is the number to begin with, and of each one measured: workers, whether they stay,
        seconds a step, share that waits. A step of another batch size, or on a machine with other
        work, takes another time, so what was best there is only a number to begin with.
        """
        trials = [each for each in earlier if each.hardware == hardware and each.workers]
        died = {each.workers for trial in trials for each in trial.workers if each.died}
        least = min(died, default=_MOST + 1)
        tuned = [each for each in trials if each.speed_variant == self.speed_variant]
        alike = [e for e in tuned if e.global_batch_size == size and not e.shared]
        measured: dict[tuple[int, bool], WorkersChange] = {}
        rows: list[WorkersChange] = []  # of the newest run
        for trial in reversed(alike):
            fit = [each for each in trial.workers if each.workers < least]
            known = [each for each in fit if each.step_s]
            rows = rows or fit
            for each in reversed(known):
                measured.setdefault((each.workers, each.stays), each)
            if any(each.settled for each in known):
                break
        found = tuple(measured.values())
        begun = [each for each in rows[-1:] if (each.workers, each.stays) not in measured]
        settled = {(each.workers, each.stays): each.settled for each in rows if each.settled}
        ended = [measured[key]._replace(settled=settled[key]) for key in measured if key in settled]
        others = [best for each in reversed(tuned) if (best := each.best_workers) is not None]
        elsewhere = [e._replace(wait=None, settled=None) for e in others if e.workers < least]
        best = min(found, key=lambda each: each.step_s or 0.0, default=None)
        first = next(iter([*ended, *begun, *filter(None, [best]), *elsewhere]), None)
        return first, [[*each[1:5]] for each in found], sorted(died)


SECTION = Loader

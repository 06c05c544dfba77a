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
        here = [each for each in chosen.earlier if each.host == chosen.trial.host]
        best, measured, never = self._find_known(here, chosen.trial.hardware)
        start = None if best is None else [best.workers, best.stays, best.wait, best.settled]
        found = {"start": start, "measured": measured, "never": never}
        return {self.key: {**self.model_dump(), **found}}

    def explain(self, earlier: Sequence[Trial], hardware: Hardware) -> str | None:
        """Return with how many workers the next run starts."""
        if self.workers != "tune":
            return None
        best, *_ = self._find_known(earlier, hardware)
        if best is None:
            return "the next run begins with the loader workers of the script, and tries others"
        stay = " that stay" if best.stays else ""
        waited = f"{100 * (best.wait or 0.0):.0f} % of the time waited for data"
        if best.settled is None:
            return (
                f"the next run tries other numbers of loader workers; the best so far is "
                f"{best.workers}{stay}: {waited}"
            )
        return f"the next run has {best.workers} loader workers{stay}, the best number: {waited}"

    def _find_known(
        self, earlier: Sequence[Trial], hardware: Hardware
    ) -> tuple[WorkersChange | None, list[list[Any]], list[int]]:
        """Return what runs found since a search ended, and numbers of which a worker died.

        That is the best, and of each: workers, whether they stay, seconds a step, share that waits.
        """
        trials = [each for each in earlier if each.hardware == hardware]
        died = {each.workers for trial in trials for each in trial.workers if each.died}
        measured: dict[tuple[int, bool], WorkersChange] = {}
        for trial in reversed(trials):
            fit = [each for each in trial.workers if each.workers < min(died, default=_MOST + 1)]
            known = [
                each for each in fit if each.step_s and trial.speed_variant == self.speed_variant
            ]
            for each in reversed(known):
                measured.setdefault((each.workers, each.stays), each)
            if any(each.settled for each in known):
                break
        found = tuple(measured.values())
        newest = next((trial.workers for trial in reversed(trials) if trial.workers), ())
        ended = next((each for each in newest if each.settled and each in found), None)
        best = ended or min(found, key=lambda each: each.step_s or 0.0, default=None)
        return best, [[*each[1:5]] for each in found], sorted(died)


SECTION = Loader

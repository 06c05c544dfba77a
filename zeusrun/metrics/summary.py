"""The summary of a training that ``show`` and ``metrics`` print."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.metrics.seen import Seen, describe_steps, find_batch_size

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Applied


@dataclass(frozen=True)
class TrainingSummary:
    """The summary of a training that ``show`` and ``metrics`` print."""

    source: str | None  # whose values of the job's metric count; ``None`` before the first one
    metrics: tuple[tuple[str, str, Seen], ...]  # name, source, values
    libraries: tuple[tuple[str, str, str | None], ...]  # name, version, why the hook does not fit
    batch_size: int | None  # samples per optimizer step; ``None`` if not observed
    steps: str | None  # what they are made of, such as ``2 ranks x 16``
    learning_rates: tuple[float, ...]  # of the parameter groups of rank 0's optimizer
    applied: tuple[str, ...]  # what hooks replaced, one sentence each

    @classmethod
    def of(cls, progress: Progress) -> TrainingSummary:
        """Summarise the progress of a training."""
        observed = [progress.observed[rank] for rank in sorted(progress.observed)]
        size = find_batch_size(progress.observed, progress.ranks.trained_by)
        return cls(
            progress.source,
            # The metric of an earlier part has no times, and no values.
            tuple((*key, seen) for key, seen in sorted(progress.seen.items()) if seen.times),
            tuple((hook.library, hook.version, hook.problem) for hook in progress.hooks),
            size,
            describe_steps(observed) if size is not None else None,
            observed[0].learning_rates if observed else (),
            tuple(map(describe_applied, progress.applied)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        rows = [[name, source, *seen] for name, source, seen in self.metrics]
        return {**asdict(self), "metrics": rows}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TrainingSummary:
        """Read the fields from JSON.

        A script can write anything into the file: raises ``TypeError``, ``LookupError``,
        ``ValueError`` or ``OverflowError`` for another content.
        """
        size = record["batch_size"]
        return cls(
            _text(record["source"]),
            tuple(
                (str(name), str(source), _read_seen(*values))
                for name, source, *values in record["metrics"]
            ),
            tuple(
                (str(name), str(version), _text(problem))
                for name, version, problem in record["libraries"]
            ),
            None if size is None else int(size),
            _text(record["steps"]),
            tuple(map(float, record["learning_rates"])),
            tuple(map(str, record["applied"])),
        )


def _read_seen(*values: float) -> Seen:
    first, last, times, low, high, parts, each_step = values
    ends = float(low), float(high)
    return Seen(float(first), float(last), int(times), *ends, int(parts), bool(each_step))


def describe_applied(applied: Applied) -> str:
    """Return what a hook replaced: ``train.py:4: learning rate changed from 0.1 to 0.2``."""
    name = "batch size of each rank" if applied.choice == "batch_size" else "learning rate"
    if applied.given == applied.chosen:
        return f"{applied.where}: {name} {applied.given:g}, as in the script"
    return f"{applied.where}: {name} changed from {applied.given:g} to {applied.chosen:g}"


def _text(value: object) -> str | None:
    return None if value is None else str(value)

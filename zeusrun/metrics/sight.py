"""What was seen of a training, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.metrics.seen import describe_steps, find_batch_size

if TYPE_CHECKING:
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.events import Applied


@dataclass(frozen=True)
class Sight:
    """What was seen of a training, for people and programs.

    Attributes:
        source: Whose values of the job's metric count; ``None`` before the first one.
        metrics: Name, source, first and last value of each metric, and how often it came.
        libraries: Name and version of each library with a hook, and why the hook does not fit.
        batch_size: Samples per optimizer step; ``None`` if they were not observed.
        steps: How they come about, such as ``2 ranks x 16``.
        learning_rates: Of the parameter groups of rank 0's optimizer.
        applied: What hooks replaced, one sentence each.
    """

    source: str | None
    metrics: tuple[tuple[str, str, float, float, int], ...]
    libraries: tuple[tuple[str, str, str | None], ...]
    batch_size: int | None
    steps: str | None
    learning_rates: tuple[float, ...]
    applied: tuple[str, ...]

    @classmethod
    def of(cls, progress: Progress) -> Sight:
        """Return what was seen of a training so far."""
        observed = [progress.observed[rank] for rank in sorted(progress.observed)]
        size = find_batch_size(progress.observed, progress.ranks.world_size)
        return cls(
            progress.source,
            # The metric of an earlier part has no times, and no values.
            tuple((*key, *seen) for key, seen in sorted(progress.seen.items()) if seen.times),
            tuple((hook.library, hook.version, hook.problem) for hook in progress.hooks),
            size,
            describe_steps(observed) if size is not None else None,
            observed[0].learning_rates if observed else (),
            tuple(map(describe_applied, progress.applied)),
        )

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Sight:
        """Read the fields from JSON; later versions may have more.

        A script may put anything there: ``TypeError``, ``LookupError``, ``ValueError`` or
        ``OverflowError`` if it is no such record.
        """
        size = record["batch_size"]
        return cls(
            _text(record["source"]),
            tuple(
                (str(name), str(source), float(first), float(last), int(times))
                for name, source, first, last, times in record["metrics"]
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


def describe_applied(applied: Applied) -> str:
    """Return what a hook replaced, such as ``train.py:4: batch size 16 of each rank is 32 now``."""
    name = {"batch_size": "batch size", "learning_rate": "learning rate"}.get(applied.choice, "?")
    each = " of each rank" if applied.choice == "batch_size" else ""
    if applied.given == applied.chosen:
        return f"{applied.where}: {name} {applied.given:g}{each}, as in the script"
    return f"{applied.where}: {name} {applied.given:g}{each} is {applied.chosen:g} now"


def _text(value: object) -> str | None:
    return None if value is None else str(value)

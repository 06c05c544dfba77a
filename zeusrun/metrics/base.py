"""The contract of a metric source, and the table of sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from zeusrun.errors import UsageError
from zeusrun.metrics.csv import open_csv
from zeusrun.metrics.hf import TrainerStates
from zeusrun.metrics.jsonl import open_jsonl
from zeusrun.metrics.mlflow import TrackedRun
from zeusrun.metrics.sidecar import open_sidecar
from zeusrun.metrics.stdout import PrintedLines
from zeusrun.metrics.tensorboard import EventFile
from zeusrun.plugins import load_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.metrics.rows import Run
    from zeusrun.sidecar.events import Event


@runtime_checkable
class MetricSource(Protocol):
    """Where the launcher reads what a run reports. The suite is ``tests/contracts/source.py``."""

    @property
    def warnings(self) -> Sequence[str]:
        """What could not be read so far, one sentence each; a source says it once."""

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events that came since the last call, in order. Never waits.

        ``final``: all writers have ended, so that an incomplete last record counts too. Raises
        ``OSError`` if the source exists and cannot be read; the next call may succeed.
        """


SOURCES: dict[str, Callable[[Run], MetricSource]] = {
    "auto": PrintedLines,
    "stdout": PrintedLines,
    "csv": open_csv,
    "jsonl": open_jsonl,
    "hf": TrainerStates,
    "tensorboard": EventFile,
    "mlflow": TrackedRun,
}
"""By ``metrics.source`` of the job file: how to open what is read beside the sidecar."""


def open_sources(run: Run) -> tuple[MetricSource, ...]:
    """Open the sidecar, which names the ranks' processes, and the source that the job file names.

    Call it before the training begins: what exists by then is not of this run. Raises
    ``UsageError`` if no source has the name, or a placeholder has no value.
    """
    name = run.section.source
    if name == "sidecar":
        return (open_sidecar(run.run_dir),)
    if name in SOURCES:
        # A hook may see the same values at other times.
        return open_sidecar(run.run_dir, without=name), SOURCES[name](run)
    create: Any = load_plugin("zeusrun.metric_sources", name)
    source = create(run.run_dir) if callable(create) else None
    if not isinstance(source, MetricSource):
        raise UsageError(
            f"metrics.source {name!r}: no installed plugin makes such a metric source, which has "
            "the method read and the property warnings; docs/python-api.md describes it"
        )
    return open_sidecar(run.run_dir), source

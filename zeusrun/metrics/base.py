"""The contract of a metric source, the sidecar of the ranks, and the table of sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from zeusrun.errors import UsageError
from zeusrun.files.tail import LineTail
from zeusrun.metrics.csv import open_csv
from zeusrun.metrics.hf import TrainerStates
from zeusrun.metrics.jsonl import open_jsonl
from zeusrun.metrics.mlflow import TrackedRun
from zeusrun.metrics.stdout import PrintedLines
from zeusrun.metrics.tensorboard import EventFile
from zeusrun.plugins import load_plugin
from zeusrun.sidecar.events import SIDECAR_NAME, Reported, decode_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zeusrun.metrics.rows import Run
    from zeusrun.sidecar.events import Event


MAX_WARNINGS = 5


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


@dataclass
class SidecarReader:
    """Reads the events that ranks append to the sidecar; bad lines become warnings.

    ``without``: a source whose reports are left out, since the job file names its files.
    """

    path: Path
    without: str | None = None
    warnings: list[str] = field(default_factory=list)
    bad_lines: int = 0
    _line_number: int = 0
    _tail: LineTail | None = None

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; raises ``OSError`` if a file cannot be read."""
        if self._tail is None:
            self._tail = LineTail(self.path)
        events: list[Event] = []
        while lines := self._tail.read_lines(final=final):
            for raw in lines:
                self._line_number += 1
                line = raw.replace(b"\0", b"").strip()  # a crash can leave holes that read as NUL
                try:
                    event = decode_event(line) if line else None
                except ValueError as error:
                    self._warn(str(error))
                    continue
                if isinstance(event, Reported) and event.source == self.without:
                    continue
                if event is not None:
                    events.append(event)
        return events

    def _warn(self, reason: str) -> None:
        self.bad_lines += 1
        if self.bad_lines <= MAX_WARNINGS:
            self.warnings.append(f"{self.path.name}:{self._line_number}: {reason}; line ignored")
        elif self.bad_lines == MAX_WARNINGS + 1:
            self.warnings.append(f"{self.path.name}: more lines are not events; all were ignored")


def open_sidecar(run_dir: Path, *, without: str | None = None) -> SidecarReader:
    """Open the sidecar, in which every rank reports its start, its end and its metrics.

    ``without`` leaves out the reports of a source.
    """
    return SidecarReader(run_dir / SIDECAR_NAME, without)


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

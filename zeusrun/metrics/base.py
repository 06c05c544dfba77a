"""The contract of a metric source, the table of sources, and the source that every run has."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeusrun.errors import UsageError
from zeusrun.files.tail import LineTail
from zeusrun.plugins import blame, create_plugin
from zeusrun.sidecar.decode import decode_event
from zeusrun.sidecar.events import REPORT, SIDECAR_NAME, Asked, Ended, Reported, Started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from zeusrun.metrics.rows import SourceContext
    from zeusrun.sidecar.events import Event


@runtime_checkable
class MetricSource(Protocol):
    """Where the launcher reads what a run reports. The suite is ``tests/contracts/source.py``."""

    @property
    def warnings(self) -> Sequence[str]:
        """One sentence for each thing that could not be read so far."""

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call, in order. Does not wait.

        ``final``: all writers have ended, so an incomplete last record counts, too. Raises
        ``OSError`` if the source exists and cannot be read; the next call may succeed.
        """


SOURCES = {"auto": "stdout", "stdout": "stdout", "csv": "lines", "jsonl": "lines"}
"""By ``metrics.source`` of the job file: the module that reads it; loaded only where it is used."""


class PluginSource:
    """A plugin's source; its errors, except ``OSError`` in ``read``, are ``UsageError``s."""

    def __init__(self, name: str, source: MetricSource) -> None:
        self._name, self._source = name, source

    @property
    def warnings(self) -> Sequence[str]:
        """The plugin's warnings."""
        with blame("metric source", self._name, "warnings"):
            return [str(warning) for warning in self._source.warnings]

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the plugin's events, with numbers of Python's own types."""
        with blame("metric source", self._name, "read", OSError):
            return [_plain_event(event, self._name) for event in self._source.read(final=final)]


def _plain_event(event: Event, name: str) -> Event:
    if isinstance(event, Reported):
        metrics = {str(name): float(value) for name, value in event.metrics.items()}
        source = name if event.source == REPORT else event.source
        return Reported(float(event.t), int(event.epoch), metrics, source)
    if not isinstance(event, (Started, Asked, Ended)):
        raise TypeError(f"it returned {event!r}, which is not an event")
    return event


def open_sources(run: SourceContext) -> Mapping[str, MetricSource]:
    """Open the sidecar, which every run has, and the source that the job file names.

    The keys name the sources in messages. Call it before the training begins: sources ignore what
    exists by then. Raises ``UsageError`` if no source has the name, if the plugin fails, or if
    a placeholder has no value.
    """
    name, sidecar = run.section.source, run.run_dir / SIDECAR_NAME
    if name == "sidecar":
        return {str(sidecar): SidecarReader(sidecar)}
    key = f"the metric source {name!r}"
    if name in SOURCES:
        module = importlib.import_module(f"zeusrun.metrics.{SOURCES[name]}")
        return {str(sidecar): SidecarReader(sidecar), key: module.open_source(run)}
    source = create_plugin("zeusrun.metric_sources", name, MetricSource, run.run_dir)
    if source is None:
        raise UsageError(
            f"metrics.source {name!r}: no installed plugin has that name; install it, or use "
            "'sidecar' (docs/python-api.md describes plugins)"
        )
    return {str(sidecar): SidecarReader(sidecar), key: PluginSource(name, source)}


MAX_WARNINGS = 5


class SidecarReader:
    """Reads the events that ranks append to the sidecar; bad lines become warnings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._tail = LineTail(path)
        self._line_number = self._bad_lines = 0

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; raises ``OSError`` if a file cannot be read."""
        return [event for events in self.read_parts(final=final) for event in events]

    def read_parts(self, *, final: bool = False) -> Iterator[list[Event]]:
        """Yield what ``read`` returns, in parts of about 2,000 events."""
        while lines := self._tail.read_lines(final=final):
            events: list[Event] = []
            for raw in lines:
                self._line_number += 1
                line = raw.replace(b"\0", b"").strip()  # a crash can leave holes that read as NUL
                try:
                    event = decode_event(line) if line else None
                except ValueError as error:
                    self._warn(str(error))
                    continue
                if event is not None:
                    events.append(event)
            yield events

    def _warn(self, reason: str) -> None:
        self._bad_lines += 1
        if self._bad_lines <= MAX_WARNINGS:
            self.warnings.append(f"{self.path.name}:{self._line_number}: {reason}; line ignored")
        elif self._bad_lines == MAX_WARNINGS + 1:
            self.warnings.append(f"{self.path.name}: more lines are not events; all were ignored")

"""The contract of a metric source, the sidecar of the ranks, and the table of sources."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from zeusrun.errors import UsageError
from zeusrun.files.tail import LineTail
from zeusrun.plugins import create_plugin
from zeusrun.sidecar.events import (
    REPORT,
    SIDECAR_NAME,
    Asked,
    Ended,
    Reported,
    Started,
    decode_event,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from zeusrun.metrics.rows import Run
    from zeusrun.sidecar.events import Event

MAX_WARNINGS = 5


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


class SidecarReader:
    """Reads the events that ranks append to the sidecar; bad lines become warnings.

    ``without``: a source whose reports are left out, since the job file names its files.
    """

    def __init__(self, path: Path, without: str | None = None) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._without = without
        self._tail = LineTail(path)
        self._line_number = self._bad_lines = 0

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the events since the last call; raises ``OSError`` if a file cannot be read."""
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
                if isinstance(event, Reported) and event.source == self._without:
                    continue
                if event is not None:
                    events.append(event)
        return events

    def _warn(self, reason: str) -> None:
        self._bad_lines += 1
        if self._bad_lines <= MAX_WARNINGS:
            self.warnings.append(f"{self.path.name}:{self._line_number}: {reason}; line ignored")
        elif self._bad_lines == MAX_WARNINGS + 1:
            self.warnings.append(f"{self.path.name}: more lines are not events; all were ignored")


def open_sidecar(run_dir: Path, *, without: str | None = None) -> SidecarReader:
    """Open the sidecar, in which every rank reports its start, its end and its metrics.

    ``without`` leaves out the reports of a source.
    """
    return SidecarReader(run_dir / SIDECAR_NAME, without)


SOURCES = {"auto": "stdout"} | {
    name: name for name in ("stdout", "csv", "jsonl", "hf", "tensorboard", "mlflow")
}
"""By ``metrics.source`` of the job file: the module that reads it; loaded only where it is used."""


def open_source(run: Run) -> MetricSource:
    """Open what the job file names to be read beside the sidecar, one of ``SOURCES``."""
    module = importlib.import_module(f"zeusrun.metrics.{SOURCES[run.section.source]}")
    source: MetricSource = module.open_source(run)
    return source


class PluginSource:
    """A plugin's source; its errors, except ``OSError`` in ``read``, are ``UsageError``s."""

    def __init__(self, name: str, source: MetricSource) -> None:
        self._name, self._source = name, source

    @property
    def warnings(self) -> Sequence[str]:
        """The plugin's warnings."""
        try:
            return [str(warning) for warning in self._source.warnings]
        except Exception as error:
            raise _plugin_failed(self._name, "warnings", error) from error

    def read(self, *, final: bool = False) -> list[Event]:
        """Return the plugin's events, with numbers of Python's own types."""
        try:
            return [_plain_event(event, self._name) for event in self._source.read(final=final)]
        except OSError:
            raise
        except Exception as error:
            raise _plugin_failed(self._name, "read", error) from error


def _plain_event(event: Event, name: str) -> Event:
    if isinstance(event, Reported):
        metrics = {str(name): float(value) for name, value in event.metrics.items()}
        source = name if event.source == REPORT else event.source
        return Reported(float(event.t), int(event.epoch), metrics, source)
    if not isinstance(event, (Started, Asked, Ended)):
        raise TypeError(f"it returned {event!r}, which is no event")
    return event


def _plugin_failed(name: str, where: str, error: Exception) -> UsageError:
    return UsageError(
        f"the metric source {name!r} (a plugin) failed in {where}: {type(error).__name__}: "
        f"{error}; repair the plugin, or write  metrics: {{source: sidecar}}"
    )


def open_sources(run: Run) -> Mapping[str, MetricSource]:
    """Open the sidecar, which names the ranks' processes, and the source that the job file names.

    The keys name the sources in messages. Call it before the training begins: what exists by then
    is not of this run. Raises ``UsageError`` if no source has the name, if the plugin fails, or if
    a placeholder has no value.
    """
    name, place = run.section.source, str(run.run_dir / SIDECAR_NAME)
    if name == "sidecar":
        return {place: open_sidecar(run.run_dir)}
    key = f"the metric source {name!r}"
    if name in SOURCES:
        # A hook may see the same values at other times.
        return {place: open_sidecar(run.run_dir, without=name), key: open_source(run)}
    source = create_plugin("zeusrun.metric_sources", name, MetricSource, run.run_dir)
    if source is None:
        raise UsageError(
            f"metrics.source {name!r}: no installed plugin has that name; install it, or use "
            "'sidecar' (docs/python-api.md describes plugins)"
        )
    return {place: open_sidecar(run.run_dir), key: PluginSource(name, source)}

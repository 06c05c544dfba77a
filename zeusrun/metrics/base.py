"""The contract of a metric source, the table of sources, and the sidecar, which every run has."""

from __future__ import annotations

import contextlib
import json
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Protocol, get_args, runtime_checkable

from zeusrun.clock import is_moment
from zeusrun.errors import UsageError
from zeusrun.files.tail import LineTail
from zeusrun.plugins import BUILT_IN, blame, create_plugin, load_built_in
from zeusrun.sidecar.events import REPORT, SIDECAR_NAME, Asked, Ended, Event, Reported, Started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from zeusrun.metrics.rows import SourceContext


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
        return Reported(float(event.t), max(0, int(event.epoch)), metrics, source)
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
    if name in BUILT_IN["zeusrun.metric_sources"]:
        source = load_built_in("zeusrun.metric_sources", name)(run)
        return {str(sidecar): SidecarReader(sidecar), key: source}
    source = create_plugin("zeusrun.metric_sources", name, MetricSource, run.run_dir)
    if source is None:
        raise UsageError(
            f"metrics.source {name!r}: no installed plugin has that name; install it, or use "
            "'sidecar' (docs/python-api.md describes plugins)"
        )
    return {str(sidecar): SidecarReader(sidecar), key: PluginSource(name, source)}


_MAX_TEXT = 1000
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


def decode_event(line: bytes) -> Event | None:
    """Return the event of a line of the sidecar; ``None`` if this version does not know its kind.

    A script can write anything into the file.

    Raises:
        ValueError: If the line is not an event; the message says why.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("not JSON") from error
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error type for bad lines
    kind = record.get("event")
    if not isinstance(kind, str):
        raise ValueError("no 'event' in it")  # noqa: TRY004
    cls = _KINDS.get(kind)
    if cls is None:
        return None
    event: Event = cls(**{name: _value(name, *how, record) for name, how in _FIELDS[kind].items()})
    return event


def _value(name: str, kind: str, default: object, record: dict[str, Any]) -> object:
    """Return the value of a field of an event; its default if the record does not have it."""
    value = record.get(name)
    if name not in record and default is not MISSING:
        return default
    if kind == "bool":
        return value if isinstance(value, bool) else default
    if value is None and kind.endswith(" | None"):
        return None
    return _read(repr(name), kind.removesuffix(" | None"), value)


def _read(label: str, kind: str, value: Any) -> object:  # noqa: ANN401 - JSON is any
    """Return a value by its type; ``label`` names it in an error."""
    if kind == "str":
        return str(value)[:_MAX_TEXT]
    if kind == "Mapping[str, float]" and isinstance(value, dict):
        return {key: _read(f"metric {key!r}", "float", each) for key, each in value.items()}
    if kind.startswith("tuple") and isinstance(value, list) and (value or "float" in kind):
        return tuple(_read(label, kind[6:].partition(",")[0], each) for each in value)
    if kind == "int" and type(value) is int and 0 <= value < 1 << 53:
        return value
    if kind in {"float", "moment"} and isinstance(value, (int, float, str)):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
            if kind == "float" or is_moment(number):
                return number
    raise ValueError(f"{label} is not {_WANTED.get(kind, 'a list of numbers')}")


_WANTED = {
    "int": "a whole number from 0",
    "float": "a number",
    "moment": "a finite number",
    "Mapping[str, float]": "an object",
}

_FLOATS = dict.fromkeys(("t", "since_t", "paused_s"), "moment")  # by name: times that are recorded
_KINDS: dict[str, Any] = {cls.__name__.lower(): cls for cls in get_args(Event)}

# By kind of event and name of field: its type and its default.
_FIELDS = {
    kind: {
        each.name: (str(each.type).replace("float", _FLOATS.get(each.name, "float")), each.default)
        for each in fields(cls)
    }
    for kind, cls in _KINDS.items()
}

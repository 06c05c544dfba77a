"""Reads the ``power.csv`` of a run as a trace that is short enough to draw."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.files.private import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

_WHOLE_BYTES = 256 << 10  # a longer file is read in pieces, one for each point
_PIECE_BYTES = 6 << 10  # about 60 rows: seven readings of eight GPUs
_MOST_W = 1e6  # of a device; more comes from a damaged file
_MOST_SUM = 1e9  # over all devices, and of seconds
_MOST_SPANS, _MOST_REASONS = 1000, 20
_CELLS = 10
# NVML's names that do not mean that a limit or a fault slows the clocks.
_HARMLESS = frozenset({b"none", b"gpu_idle", b"applications_clocks_setting", b""})


class PowerSpan(NamedTuple):
    """Readings that follow each other, summed over all devices; ``None`` is unknown."""

    time_s: float  # in the middle, after the run began
    low_w: float
    mean_w: float
    high_w: float
    limit_w: float | None
    throttled: bool  # whether a device's clocks were slowed in one of them


@dataclass(frozen=True)
class PowerTrace:
    """The power of a run over time."""

    spans: tuple[PowerSpan, ...]
    devices: int
    whole: bool  # whether every reading was read
    throttled: Mapping[str, float] = field(default_factory=dict)  # share of readings, by NVML name

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; a span becomes a list."""
        return {**vars(self), "spans": [list(span) for span in self.spans]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> PowerTrace:
        """Read what ``to_json`` wrote; raises ``ValueError`` for anything else."""
        try:
            spans = tuple(_read_span(row) for row in record["spans"][:_MOST_SPANS])
            shares = {
                str(name): min(1.0, max(0.0, float(share)))
                for name, share in [*record["throttled"].items()][:_MOST_REASONS]
            }
            trace = cls(spans, int(record["devices"]), record["whole"] is True, shares)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a power trace: {error}") from error
        if not spans:
            raise ValueError("not a power trace: it is empty")
        return trace


def _read_span(row: Sequence[Any]) -> PowerSpan:
    *numbers, limit_w, slow = row
    time_s, low_w, mean_w, high_w = map(float, numbers)
    limit = None if limit_w is None else float(limit_w)
    if not all(0 <= each < _MOST_SUM for each in (time_s, low_w, mean_w, high_w, limit or 0.0)):
        raise ValueError("a value is out of range")
    return PowerSpan(time_s, low_w, mean_w, high_w, limit, slow is True)


class _Sample(NamedTuple):
    time_s: float
    power_w: float
    limit_w: float | None
    reasons: tuple[bytes, ...]


def read_power(path: Path, points: int) -> PowerTrace | None:
    """Return the trace of a run; ``None`` if there are no readings.

    ``points`` is the number of spans at most, at least 2. A long file is read in pieces: an hour
    of eight GPUs takes 30 MB. Rows that are no readings are skipped, because a training script may
    put anything in the place of the file.
    """
    try:
        descriptor = open_for_reading(path)
    except (OSError, ValueError):  # there is none, or it cannot have this name
        return None
    try:
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
            size = os.fstat(file.fileno()).st_size
            whole = size <= _WHOLE_BYTES
            pieces = _read_whole(file, points) if whole else _read_pieces(file, size, points)
    except OSError:
        return None
    devices = max((len(uuids) for _, uuids in pieces), default=0)
    samples = [piece for piece, _ in pieces if piece]
    spans = tuple(_shorten(piece) for piece in samples)
    if not spans:
        return None
    count = sum(len(piece) for piece in samples)
    reasons = Counter(
        reason for piece in samples for sample in piece for reason in set(sample.reasons)
    )
    named = {name.decode("ascii", "replace"): seen / count for name, seen in reasons.items()}
    return PowerTrace(spans, devices, whole, named)


_Piece = tuple[list[_Sample], set[bytes]]


def _read_whole(file: BinaryIO, points: int) -> list[_Piece]:
    samples, uuids = _read_samples(file.read(_WHOLE_BYTES).split(b"\n"))
    length = max(1, math.ceil(len(samples) / points))
    return [(samples[at : at + length], uuids) for at in range(0, len(samples), length)]


def _read_pieces(file: BinaryIO, size: int, points: int) -> list[_Piece]:
    pieces = []
    for at in range(points):
        file.seek(at * (size - _PIECE_BYTES) // (points - 1))
        lines = file.read(_PIECE_BYTES).split(b"\n")[1:-1]  # the first and the last may be cut
        pieces.append(_read_samples(lines, cut=True))
    return pieces


def _read_samples(lines: Sequence[bytes], *, cut: bool = False) -> _Piece:
    """Sum rows over the devices; a device that comes again begins the next sample."""
    groups: list[dict[bytes, _Sample]] = [{}]
    for uuid, row in _read_rows(lines):
        if uuid in groups[-1]:
            groups.append({})
        groups[-1][uuid] = row
    known = {uuid for group in groups for uuid in group}
    if cut:  # the devices of the first and of the last one may be missing
        groups = groups[1:-1] if len(groups) > 2 else groups[-1:]
    whole = [[*group.values()] for group in groups if group and len(group) == len(known)]
    return [_add_up(rows) for rows in whole], known


def _add_up(rows: Sequence[_Sample]) -> _Sample:
    limits = [row.limit_w for row in rows]
    return _Sample(
        rows[0].time_s,
        sum(row.power_w for row in rows),
        None if None in limits else sum(limit or 0.0 for limit in limits),
        tuple({reason for row in rows for reason in row.reasons}),
    )


def _read_rows(lines: Sequence[bytes]) -> Iterator[tuple[bytes, _Sample]]:
    for line in lines:
        cells = line.split(b",")
        if len(cells) != _CELLS:
            continue
        try:
            time_s, power_w = float(cells[0]), float(cells[2])
            limit_w = float(cells[3]) if cells[3] else None
        except ValueError:  # the header, or no reading
            continue
        if 0 <= power_w < _MOST_W and 0 <= time_s < math.inf and 0 <= (limit_w or 0) < _MOST_W:
            throttled = cells[9]
            found = () if throttled in _HARMLESS else tuple({*throttled.split(b"+")} - _HARMLESS)
            yield cells[1], _Sample(time_s, power_w, limit_w, found)


def _shorten(samples: Sequence[_Sample]) -> PowerSpan:
    powers = [sample.power_w for sample in samples]
    limits = [sample.limit_w for sample in samples]
    return PowerSpan(
        (samples[0].time_s + samples[-1].time_s) / 2,
        min(powers),
        sum(powers) / len(powers),
        max(powers),
        limits[-1],
        any(sample.reasons for sample in samples),
    )

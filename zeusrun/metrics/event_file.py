"""Reads the scalars of TensorBoard's event files: TFRecords, each a small protobuf message.

The fields are those of ``event.proto``, ``summary.proto`` and ``tensor.proto``. Checksums are not
compared: they would take most of the time.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER = struct.Struct("<QI")  # length of the record, and its checksum
_FOOTER_BYTES = 4
_MAX_BYTES = 64 << 10  # longer records are images, histograms, text
_CHUNK_BYTES = 1 << 20
_TYPES = {1: "<f", 2: "<d"}  # of a tensor, in struct's notation
_SIZES = {1: 8, 5: 4}  # of the fields that are neither whole numbers nor bytes


class Scalar(NamedTuple):
    """One value; ``None`` if it is not a number."""

    tag: str
    step: int
    wall_time_s: float
    value: float | None


def read_records(descriptor: int, offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the next complete records with the offset of each one's end, and the next offset.

    Raises:
        ValueError: If there is no record at the offset.
    """
    data = os.pread(descriptor, _CHUNK_BYTES, offset)
    size = os.fstat(descriptor).st_size
    records: list[tuple[int, bytes]] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, _ = _HEADER.unpack_from(data, at)
        if length >= 1 << 40:
            raise ValueError("is not an event file, or is damaged")
        if not length:  # a hole: the file is longer than what was written
            break
        begin, end = at + _HEADER.size, at + _HEADER.size + length
        if offset + end + _FOOTER_BYTES > size:
            break  # not written yet
        if length <= _MAX_BYTES:
            if end + _FOOTER_BYTES > len(data):
                break  # in the next chunk
            records.append((offset + end + _FOOTER_BYTES, data[begin:end]))
        at = end + _FOOTER_BYTES
    return records, offset + at


def read_scalars(record: bytes) -> list[Scalar]:
    """Return the scalars of a record; raises ``ValueError`` if it is no event."""
    wall_time_s, step, summary = 0.0, 0, b""
    try:
        for field, number, content in _fields(record):
            if field == 1:
                (wall_time_s,) = struct.unpack("<d", content)
            elif field == 2:
                step = number - (1 << 64) if number >> 63 else number
            elif field == 5:
                summary = content
        values = [_read_value(content) for field, _, content in _fields(summary) if field == 1]
    except (LookupError, OverflowError, struct.error) as error:
        raise ValueError("has a record that is not an event") from error
    return [Scalar(tag, step, wall_time_s, value) for tag, value in values]


def _read_value(data: bytes) -> tuple[str, float | None]:
    tag, value = "", None
    for field, _, content in _fields(data):
        if field == 1:
            tag = content.decode(errors="replace")
        elif field == 2:
            (value,) = struct.unpack("<f", content)
        elif field == 8:
            value = _read_tensor(content)
    return tag, value


def _read_tensor(data: bytes) -> float | None:
    """Return the one float of a tensor; ``None`` if it has another content."""
    kind, raw = None, b""
    for field, number, content in _fields(data):
        if field == 1:
            kind = _TYPES.get(number)
        elif field in (4, 5, 6):  # its bytes, its floats, its doubles
            raw += content
    if kind is None or len(raw) != struct.calcsize(kind):
        return None
    return float(struct.unpack(kind, raw)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the fields of a message, each with its whole number or its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        size = number = 0
        if key & 7 == 0:
            number, at = _varint(data, at)
        elif key & 7 == 2:
            size, at = _varint(data, at)
        else:
            size = _SIZES[key & 7]
        yield key >> 3, number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the whole number at a place, and the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at

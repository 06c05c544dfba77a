"""The tables of a history's file, as another program than zeusrun reads and writes them."""

from __future__ import annotations

import json


def without_sums(tables):
    """Return tables without the checksums of their records."""
    return {
        name: {n: without_sum(row) for n, row in table.items()} for name, table in tables.items()
    }


def without_sum(record):
    return {key: value for key, value in record.items() if key != "crc"}


def read_plain(path):
    return without_sums(json.loads(path.read_bytes()))


def write_plain(path, tables):
    """Write tables in a form that is not zeusrun's: it has no lines to check."""
    path.write_text(json.dumps(tables, separators=(",", ":")))

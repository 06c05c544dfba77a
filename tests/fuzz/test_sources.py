"""Whatever a training writes, reading it loses neither the run nor the time it takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metrics.reading import open_source

SECTIONS = {
    "stdout": {"pattern": ["(?P<accuracy>.+)", "nanogpt"]},
    "csv": {"path": "log"},
    "jsonl": {"path": "log"},
}
WORDS = (
    b"epoch,accuracy\n",
    b"1,nan\n",
    b'{"accuracy": 1e999, "epoch": -1}\n',
    b"\x00",
    b'"\n',
    b"\r",
)
contents = st.binary(max_size=300) | st.lists(
    st.sampled_from(WORDS) | st.binary(max_size=8), max_size=12
).map(b"".join)


@pytest.mark.parametrize("name", SECTIONS)
@given(first=contents, second=contents)
def test_any_content_is_read_again_and_again(name, first, second):
    with tempfile.TemporaryDirectory() as folder:
        source = open_source(Path(folder), source=name, **SECTIONS[name])
        path = Path(folder) / SECTIONS[name].get("path", "run/logs/rank0.log")
        events = []
        for content, final in ((first, False), (second, False), (first + second, True)):
            path.write_bytes(content)
            events += source.read(final=final)
        assert all(event.epoch >= 0 and event.t <= time.monotonic() for event in events)
        assert len(set(source.warnings)) == len(source.warnings) <= 5

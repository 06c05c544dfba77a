"""The metric sources, each against the contract."""

from __future__ import annotations

import os
import time
from contextlib import closing

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import open_source
from zeusrun.jobfile.metrics_section import Metrics
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.metrics.base import SidecarReader, open_sources
from zeusrun.metrics.rows import SourceContext
from zeusrun.sidecar.events import SIDECAR_NAME, EventWriter, Reported, encode_event
from zeusrun.sidecar.step_clock import StepClock


class TestSidecar(MetricSourceContract):
    @pytest.fixture
    def source(self, tmp_path):
        return SidecarReader(tmp_path / "metrics.jsonl")

    @pytest.fixture
    def report(self, tmp_path):
        with closing(EventWriter(tmp_path / SIDECAR_NAME)) as writer:
            yield lambda epoch, **metrics: writer.write(Reported(float(epoch), epoch, metrics))

    @pytest.fixture
    def begin_report(self, tmp_path):
        def begin(epoch, **metrics):
            line = encode_event(Reported(float(epoch), epoch, metrics))
            self.append(tmp_path, line[:20])
            return lambda: self.append(tmp_path, line[20:])

        return begin

    @pytest.fixture
    def spoil(self, tmp_path):
        return lambda: self.append(tmp_path, b"no event\n")

    @staticmethod
    def append(run_dir, content):
        with (run_dir / SIDECAR_NAME).open("ab") as file:
            file.write(content)


def test_the_sidecar_is_read_once_where_it_is_the_source(tmp_path):
    run = SourceContext(tmp_path, tmp_path, Metrics(source="sidecar"))
    assert len(open_sources(run)) == 1


def test_a_source_looks_for_logs_and_clocks_where_the_launcher_puts_them(tmp_path):
    run, paths = SourceContext(tmp_path, tmp_path), RunPaths(tmp_path)
    assert run.log == paths.rank_log(0)
    assert not run.has_trained_a_minute(1000.0)
    paths.clocks.mkdir()
    StepClock(paths.rank_clock(0)).tick()
    now_t = time.monotonic()
    assert (run.has_trained_a_minute(now_t), run.has_trained_a_minute(now_t + 61)) == (False, True)


@pytest.mark.parametrize("source", ["csv", "jsonl"])
def test_a_pipe_in_the_place_of_a_file_blocks_nobody(tmp_path, source):
    os.mkfifo(tmp_path / "log")
    opened = open_source(tmp_path, source=source, path="log")
    assert opened.read() == opened.read(final=True) == []
    assert "wrote no file" in opened.warnings[0]


def test_a_hole_of_many_gigabytes_is_not_read_to_its_end(tmp_path):
    opened = open_source(tmp_path, source="jsonl", path="log")
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1 << 42)
    assert opened.read() == opened.read(final=True) == []

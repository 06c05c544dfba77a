"""The metric sources, each against the contract."""

from __future__ import annotations

import pytest

from tests.contracts.source import MetricSourceContract
from zeusrun.metrics.base import SOURCES, open_sidecar, open_sources
from zeusrun.sidecar.events import SIDECAR_NAME, EventWriter, Reported, encode_event


class TestSidecar(MetricSourceContract):
    @pytest.fixture
    def source(self, tmp_path):
        return open_sidecar(tmp_path)

    @pytest.fixture
    def report(self, tmp_path):
        writer = EventWriter(tmp_path / SIDECAR_NAME)
        return lambda epoch, **metrics: writer.write(Reported(float(epoch), epoch, metrics))

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
    assert len(open_sources("sidecar", tmp_path)) == 1


def test_another_source_is_read_beside_the_sidecar(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "other", lambda run_dir: open_sidecar(run_dir / "other"))
    sidecar, other = open_sources("other", tmp_path)
    assert sidecar.path == tmp_path / SIDECAR_NAME
    assert other.path == tmp_path / "other" / SIDECAR_NAME

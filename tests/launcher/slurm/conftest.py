"""The stand-in for Slurm, for tests of this folder."""

from __future__ import annotations

import pytest

from tests.fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The stand-in, whose commands are found first."""
    fake = FakeSlurm(tmp_path / "slurm-commands")
    monkeypatch.setenv("PATH", fake.path)
    monkeypatch.setattr("zeusrun.launcher.slurm.client._states", {})
    return fake

"""The commands of Slurm as zeusrun calls them, and what it reads of their answers."""

from __future__ import annotations

import pytest

from tests.contracts.slurm import SlurmContract
from tests.slurm import SlurmCluster


class TestStandIn(SlurmContract):
    @pytest.fixture
    def slurm_is_there(self, slurm):
        pass


@pytest.mark.long
class TestSlurm(SlurmContract):
    @pytest.fixture(scope="class")
    def cluster(self, tmp_path_factory):
        with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
            yield cluster

    @pytest.fixture
    def slurm_is_there(self, cluster, monkeypatch):
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("zeusrun.launcher.slurm.client._states", {})
        yield
        cluster.clear()

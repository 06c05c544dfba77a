"""A real Slurm, for the tests of the long tier."""

from __future__ import annotations

import pytest

from tests.slurm import SlurmCluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory):
    """Two nodes, without accounting."""
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster

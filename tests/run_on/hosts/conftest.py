"""The fixtures of the tests of several hosts."""

from __future__ import annotations

import pytest

from tests.run_on.hosts.ends import open_hosts
from zeusrun.launcher.rundir.layout import create_run


@pytest.fixture
def hosts():
    with open_hosts() as hosts:
        yield hosts


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path / "home", "job", "job-1-1")

"""Torchrun, and the fake that most tests launch in its place, keep the same promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contracts.agent import AgentContract, own_environment
from tests.factories import with_fake_torchrun


class TestTorchrun(AgentContract):
    pass


class TestFakeTorchrun(AgentContract):
    @pytest.fixture
    def environment(self):
        return with_fake_torchrun(own_environment())

    @pytest.mark.long
    def test_ddp_trains_with_data_loader_workers_and_goes_on_after_a_restart(self, start):
        super().test_ddp_trains_with_data_loader_workers_and_goes_on_after_a_restart(start)

    def test_zeusrun_finds_it_and_its_options(self, environment):
        program = "from zeusrun.launcher.processes.command import find_torchrun; print(*find_torchrun().flags)"
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        assert b"--shutdown-timeout" in done.stdout.split()
        assert b"--standalone" not in done.stdout.split()  # as the real one has

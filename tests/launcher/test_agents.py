"""Torchrun, and the fake that most tests launch in its place, keep the same promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.contracts.agent import AgentContract, launch_process, own_environment
from tests.factories import with_fake_torchrun
from tests.forks import torch_forks
from zeusrun.launcher.processes.command import find_torchrun


class TestTorchrun(AgentContract):
    @pytest.fixture(scope="class")
    @classmethod
    def launch(cls):
        """Start torchrun as a fork that has imported torch, which takes it 1.6 s of CPU."""
        python = list(find_torchrun().argv)  # and its -c with a code

        def fork(argv, env, cwd, log):
            if argv[:3] != python:  # it has a parent of its own
                return launch_process(argv, env, cwd, log)
            return torch_forks().start(argv[2], argv[3:], dict(env), cwd, log)

        return fork


class TestElasticAgent(AgentContract):
    threads_alone = "1"  # it may get more ranks

    @pytest.fixture(scope="class")
    @classmethod
    def sections(cls):
        return {"elastic": {"min": 1, "max": 4, "losses": 0}}


class TestFakeTorchrun(AgentContract):
    @pytest.fixture(scope="class")
    @classmethod
    def environment(cls):
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

"""Torchrun, and the fake that most tests launch in its place, keep the same promises."""

from __future__ import annotations

import pytest

from tests.contracts.agent import AgentContract, own_environment
from tests.factories import with_fake_torchrun
from zeusrun.launcher.torchrun import find_torchrun


class TestTorchrun(AgentContract):
    @pytest.fixture
    def torchrun(self):
        return find_torchrun()


class TestFakeTorchrun(AgentContract):
    @pytest.fixture
    def torchrun(self):
        return find_torchrun()

    @pytest.fixture
    def environment(self):
        return with_fake_torchrun(own_environment())

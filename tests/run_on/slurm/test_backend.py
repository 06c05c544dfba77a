"""Slurm as a backend, over a stand-in for its commands."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.contracts.backend import BackendContract

WORDS = {"queued": "PENDING", "running": "RUNNING", "ended": "COMPLETED"}


class TestSlurm(BackendContract):
    BACKEND = "slurm"
    SECTION: ClassVar = {"partition": "main"}

    @pytest.fixture
    def variables(self, slurm):
        return {}

    @pytest.fixture
    def put(self, slurm):
        numbers = iter(range(1, 100))

        def make(state):
            number = str(next(numbers))
            return slurm.put(number, WORDS[state]) if state in WORDS else f"slurm:{number}"

        return make

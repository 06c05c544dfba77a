"""Kubernetes as a backend, over a stand-in whose pods are real processes."""

from __future__ import annotations

import itertools
from typing import ClassVar

import pytest

from tests.contracts.backend import BackendContract
from tests.fake_kubernetes import IMAGE
from tests.kubernetes import SECRETS, SECTION, build_job, forget_cluster
from tests.runs import wait_for
from zeusrun.run_on.kubernetes.client import create_job, read_job

RUNS, ENDS = "trap 'exit 0' TERM; while :; do sleep 0.02; done", "true"


@pytest.mark.usefixtures("hasty")
class TestKubernetes(BackendContract):
    BACKEND = "kubernetes"
    SECTION: ClassVar = {**SECTION, **SECRETS}

    @pytest.fixture
    def variables(self, used_cluster):
        used_cluster.secrets["ml"] = {"zeusrun": {"history": "x"}}
        used_cluster.schedulable = False  # no pod needs an image with zeusrun
        yield {}
        forget_cluster()

    @pytest.fixture
    def put(self, used_cluster):
        numbers = itertools.count(1)
        wanted = {"queued": "QUEUED", "running": "RUNNING", "ended": "Complete"}

        def make(state):
            name = f"job-{next(numbers)}"
            if state == "gone":
                return f"kubernetes:ml/{name}"
            used_cluster.schedulable = state != "queued"
            made = create_job(build_job(ENDS if state == "ended" else RUNS, name, IMAGE))
            wait_for(lambda: read_job(made).state == wanted[state])
            return made

        return make

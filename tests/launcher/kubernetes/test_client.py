"""What zeusrun reads of the answers of Kubernetes, and what it says if there is none."""

from __future__ import annotations

import importlib.util
import os
import socket

import pytest

from tests.contracts.kubernetes import KubernetesContract, library
from tests.fake_kubernetes import IMAGE
from tests.kubernetes import build_job, check_strictly
from zeusrun.errors import UsageError
from zeusrun.launcher.kubernetes.client import (
    GONE,
    ApiError,
    KubernetesJob,
    NoClusterError,
    cancel_job,
    create_job,
    describe_job,
    how_to_see,
    read_job,
    read_jobs,
    replace_cron_job,
    watch_pod,
)

NAME = "kubernetes:ml/digits-1a2b3"
JOB, TRAIN_JOB = "/jobs/digits-1a2b3", "/trainjobs/digits-1a2b3"
PODS = "/namespaces/ml/pods"
REAL, REAL_IMAGE = "ZEUSRUN_TEST_KUBECONFIG", "ZEUSRUN_TEST_IMAGE"


class TestStandIn(KubernetesContract):
    @pytest.fixture
    def image(self, used_cluster):
        used_cluster.validate = check_strictly
        return IMAGE

    @pytest.fixture
    def evict(self, used_cluster):
        return used_cluster.evict


@pytest.mark.long
class TestCluster(KubernetesContract):
    @pytest.fixture
    def image(self, kubeconfig):
        if REAL not in os.environ:
            pytest.skip(f"set {REAL} to a kubeconfig; the tests create jobs in its current namespace")
        kubeconfig(os.path.abspath(os.environ[REAL]))
        return os.environ.get(REAL_IMAGE, "busybox")

    @pytest.fixture
    def evict(self, core):
        context = library.config.list_kube_config_contexts(os.environ["KUBECONFIG"])[1]["context"]
        namespace = context.get("namespace") or "default"

        def evict(pod):
            body = {"metadata": {"name": pod, "namespace": namespace}}
            core.create_namespaced_pod_eviction(pod, namespace, body)

        return evict

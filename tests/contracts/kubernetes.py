"""What a cluster does for ``run_on/kubernetes/client.py``, and its stand-in as well.

A test inherits the class. It has a fixture ``image``, which makes the client use the cluster, and
returns the name of an image with ``sh``; and a fixture ``evict``, which evicts a pod by its name.
"""

from __future__ import annotations

import contextlib
import os
import uuid

import pytest

from tests.kubernetes import build_job
from tests.lazily import Lazily
from tests.runs import wait_for
from zeusrun.run_on.kubernetes.client import (
    GONE,
    ApiError,
    cancel_job,
    create_job,
    follow_log,
    read_job,
    watch_pod,
)

library = Lazily("kubernetes")

ENDS, RUNS = "echo one; echo two", "echo ready; exec sleep 600"
ON_TERM = "trap '{}' TERM; echo ready; while :; do sleep 0.05; done"
POLITE = ON_TERM.format("echo bye; exit 75")
WAIT_S = 120  # an image may have to be pulled


class KubernetesContract:
    @pytest.fixture
    def core(self, image):
        with self.connect() as client:
            yield library.client.CoreV1Api(client)

    @pytest.fixture
    def objects(self, image):
        with self.connect() as client:
            yield library.client.CustomObjectsApi(client)

    @staticmethod
    def connect():
        return library.config.new_client_from_config(os.environ["KUBECONFIG"])

    @pytest.fixture
    def submit(self, image):
        """Create a job of a script; return its name."""
        begun = []

        def create(script=RUNS, *, name=None, **spec):
            own = name or f"contract-{uuid.uuid4().hex[:8]}"
            begun.append(create_job(build_job(script, own, image, **spec)))
            return begun[-1]

        yield create
        for name in begun:
            cancel_job(name)

    @staticmethod
    def until(name, condition):
        """Wait until ``condition`` is true of a job; return the job."""
        return wait_for(lambda: condition(job := read_job(name)) and job, WAIT_S, name)

    def until_ended(self, name):
        return self.until(name, lambda job: job.has_ended)

    def until_ready(self, name, besides=()):
        """Wait until a pod of a job has printed ``ready``; return the pod."""

        def look():
            pod = read_job(name).pod
            if pod is None or pod.name in besides or not pod.begun:
                return None
            return ("ready" in self.lines(name, pod, since_s=60)) and pod

        return wait_for(look, WAIT_S, name)

    @staticmethod
    def lines(name, pod, *, since_s=None, follow=False):
        return [text for _, text in follow_log(name, pod, since_s, follow=follow)]

    @staticmethod
    def pods_of(core, name):
        namespace, own = name.removeprefix("kubernetes:").split("/")
        label = f"batch.kubernetes.io/job-name={own}"
        return core.list_namespaced_pod(namespace, label_selector=label).items

    @staticmethod
    def place_of(name):
        namespace, own = name.removeprefix("kubernetes:").split("/")
        return ("batch", "v1", namespace, "jobs", own)

    def test_a_job_is_created_once_and_has_a_pod(self, submit):
        name = submit()
        own = name.rpartition("/")[2]
        with pytest.raises(ApiError) as refused:
            submit(name=own)
        assert refused.value.code == 409
        job = self.until(name, lambda job: job.state == "RUNNING")
        assert (job.kind, job.has_ended, job.pod.exit_code) == ("Job", False, None)
        assert job.pod.name.startswith(f"{own}-")
        assert job.pod.node

    def test_a_job_that_nobody_has_created_is_gone(self, submit):
        name = submit(suspend=True)
        assert read_job(f"{name}-not").state == GONE
        cancel_job(f"{name}-not")

    def test_a_suspended_job_waits_and_has_no_pod(self, submit):
        name = submit(suspend=True)
        job = self.until(name, lambda job: job.cause is not None)
        assert (job.state, job.pod) == ("QUEUED", None)

    def test_pods_are_listed_and_watched_by_their_job(self, submit):
        first, second = submit(RUNS), submit(ENDS)
        seen = []
        for pod in watch_pod(first, "Job", WAIT_S):
            seen.append(pod)
            if pod.begun:
                break
        assert {pod.name for pod in seen} == {read_job(first).pod.name}
        assert seen[-1].node
        assert self.until_ended(second).pod.name != seen[0].name

    @pytest.mark.long
    def test_a_watch_ends_in_time(self, submit):
        name = submit(suspend=True)
        assert list(watch_pod(name, "Job", 1)) == []

    def test_a_watch_ends_with_its_pod(self, submit):
        name = submit(POLITE)
        self.until_ready(name)
        watched = watch_pod(name, "Job", WAIT_S)
        next(watched)
        cancel_job(name)
        with contextlib.closing(watched):
            assert all(pod.begun for pod in watched)
        self.until(name, lambda job: job.state == GONE)

    def test_a_job_that_has_ended_keeps_its_pod_and_its_log(self, submit):
        name = submit(ENDS)
        job = self.until_ended(name)
        assert (job.state, job.pod.exit_code) == ("Complete", 0)
        for follow in (False, True):
            assert self.lines(name, job.pod, follow=follow) == ["one", "two"]

    def test_a_log_is_followed_to_the_end_of_its_pod_and_has_times_in_order(self, submit):
        name = submit("echo ready; sleep 0.3; echo more; printf end")
        found = list(follow_log(name, self.until_ready(name), None, follow=True))
        assert [text for _, text in found] == ["ready", "more", "end"]
        times = [at for at, _ in found]
        assert times == sorted(times)
        assert times[0][:2] == "20"
        assert times[0][10] == "T"

    @pytest.mark.long
    def test_old_lines_of_a_log_are_left_out(self, submit):
        name = submit("echo ready; sleep 1.2; echo new; exec sleep 600")
        pod = self.until_ready(name)
        wait_for(lambda: "new" in self.lines(name, pod), WAIT_S)
        assert self.lines(name, pod, since_s=1) == ["new"]
        assert self.lines(name, pod, since_s=600) == ["ready", "new"]

    def test_a_deleted_job_goes_on_until_its_pod_has_ended(self, submit):
        name = submit(ON_TERM.format("sleep 0.3; echo bye; exit 75"))
        pod = self.until_ready(name)
        log = follow_log(name, pod, None, follow=True)
        assert next(log)[1] == "ready"
        cancel_job(name)
        assert not read_job(name).has_ended
        assert [text for _, text in log] == ["bye"]
        assert self.until_ended(name).state == GONE
        cancel_job(name)

    @pytest.mark.long
    def test_a_pod_that_ignores_the_signal_is_killed_after_its_grace(self, submit):
        name = submit(ON_TERM.format(""), grace_s=1)
        self.until_ready(name)
        cancel_job(name)
        assert self.until_ended(name).state == GONE

    def test_exit_code_3_fails_the_job_at_once(self, submit, core):
        name = submit("exit 3", backoffLimit=3)
        job = self.until_ended(name)
        assert (job.state, job.pod.exit_code) == ("Failed", 3)
        assert "failed with exit code 3 matching FailJob rule at index 1" in job.cause
        assert len(self.pods_of(core, name)) == 1

    def test_exit_code_75_is_tried_again_and_counts(self, submit, core):
        name = submit("exit 75", backoffLimit=1)
        job = self.until_ended(name)
        assert (job.state, job.pod.exit_code) == ("Failed", 75)
        assert "backoff limit" in job.cause
        assert len(self.pods_of(core, name)) == 2

    def test_an_evicted_pod_is_replaced_and_does_not_count(self, submit, evict, objects):
        name = submit(POLITE)
        pod = self.until_ready(name)
        evict(pod.name)
        assert self.until_ready(name, besides=[pod.name]).uid != pod.uid
        status = objects.get_namespaced_custom_object(*self.place_of(name))["status"]
        assert status.get("failed", 0) == 0

    def test_an_unknown_field_is_refused_by_its_name(self, submit):
        with pytest.raises(ApiError, match="unknown field") as refused:
            submit(ENDS, backofLimit=3)
        assert refused.value.code == 400
        assert "backofLimit" in str(refused.value)

"""The cluster of the tests behaves as Kubernetes does; it is asked by the official client."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import urllib3
import yaml
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from tests.factories import PYTHON, ROOT
from tests.fake_kubernetes import IMAGE, Image, condition
from tests.fake_kubernetes.kubelet import expand

pytestmark = pytest.mark.long

JOBS = ("batch", "v1", "ml", "jobs")
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
NO_RIGHTS = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
FINAL = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 75]}}
POLICY = {"rules": [DISRUPTED, FINAL]}


@pytest.fixture
def api(cluster, tmp_path):
    path = cluster.kubeconfig(tmp_path / "kubeconfig")
    with config.new_client_from_config(str(path)) as api:
        yield api
        api.rest_client.pool_manager.clear()


@pytest.fixture
def objects(api):
    return client.CustomObjectsApi(api)


@pytest.fixture
def core(api):
    return client.CoreV1Api(api)


def job(command, *, name="j", pod=None, container=None, **spec):
    command = ["sh", "-c", command] if isinstance(command, str) else command
    node = {"name": "node", "image": IMAGE, "command": command, **(container or {})}
    usual = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 20}
    template = {"spec": {**usual, "containers": [node], **(pod or {})}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template, **spec},
    }


@pytest.fixture
def submit(objects):
    def create(*arguments, **values):
        return objects.create_namespaced_custom_object(*JOBS, job(*arguments, **values))

    return create


@pytest.fixture
def run(cluster, submit):
    """Run a job to its end; return its last pod and what that has written."""

    def create(*arguments, ends="Complete", **values):
        submit(*arguments, **values)
        cluster.wait_for("jobs", "j", ends)
        pod = cluster.pods()[-1]
        return pod, cluster.log(pod["metadata"]["name"])

    return create


@pytest.fixture
def running(cluster, submit):
    """Start a job whose pod says ``ready``; return the pod's name."""

    def create(*arguments, **values):
        submit(*arguments, **values)
        return cluster.wait(lambda: ready(cluster))

    return create


def ready(cluster, said="ready\n"):
    for pod in cluster.pods():
        name = pod["metadata"]["name"]
        if pod["status"]["phase"] == "Running" and said in cluster.log(name):
            return name
    return None


def state(pod):
    (status,) = pod["status"]["containerStatuses"]
    return status["state"]


def refusal(call, *arguments, **options):
    with pytest.raises(ApiException) as refused:
        call(*arguments, **options)
    status = json.loads(refused.value.body)
    assert (status["kind"], status["code"]) == ("Status", refused.value.status)
    return status["code"], status["reason"], status["message"]


class TestPods:
    def test_pod_has_the_environment_of_its_manifest(self, cluster, run):
        cluster.secrets = {"ml": {"zeusrun": {"token": "s3cret"}}}
        field = {"fieldRef": {"fieldPath": "metadata.labels['job-name']"}}
        variables = [
            {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "NAME", "valueFrom": field},
            {"name": "ALL", "value": "$(NAMESPACE)/$(NAME) $(LATER) $$(NAME) $x"},
            {"name": "LATER", "value": "two\nlines"},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "zeusrun", "key": "token"}}},
        ]
        _, log = run(["env"], container={"env": variables})
        own = {f"{name}={value}" for name, value in cluster.image[IMAGE].environment.items()}
        assert set(log.splitlines()) - own == {
            *("NAMESPACE=ml", "NAME=j", "ALL=ml/j $(LATER) $(NAME) $x"),
            *("LATER=two", "lines", "T=s3cret"),
        }

    @pytest.mark.parametrize(
        ("text", "expanded"),
        [
            ("$(A)$(B)", "1$(B)"),
            ("$$(A) $$$(A) $$$$", "$(A) $1 $$"),
            ("$(A $A $ $", "$(A $A $ $"),
            ("$() $(A)", "$() 1"),
        ],
    )
    def test_expansion_of_variables(self, text, expanded):
        assert expand(text, {"A": "1"}) == expanded

    def test_restricted_pod_has_the_rights_of_its_security_context(self, run):
        script = (
            "id -u; id -g; id -G; echo $$$$; umask; whoami 2>&1; grep -E 'Cap|NoNew' /proc/self/status; pwd\n"
            "touch /x /tmp/x /usr/x 2>&1; ls -A /tmp | grep -v ^v$; hostname; ps ax | wc -l"
        )
        security = {"securityContext": RESTRICTED}
        pod, log = run(script, pod=security, container={"securityContext": NO_RIGHTS})
        lines = log.splitlines()
        assert lines[:5] == ["1000", "1000", "1000", "1", "0022"]
        assert lines.pop(5).startswith("whoami: cannot find name")
        assert lines[5:11] == [
            *(f"Cap{name}:\t0000000000000000" for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
            "NoNewPrivs:\t1",
        ]
        assert lines[11] == "/"
        assert [line.rpartition(": ")[2] for line in lines[12:15]] == ["Read-only file system"] * 3
        shown = [
            line for line in lines[15:] if line not in ROOT.parts
        ]  # this checkout may be there
        assert shown == [pod["metadata"]["name"], "4"]

    def test_user_of_a_pod_can_import_what_the_tests_can(self, run):
        command = [sys.executable, "-c", "import tests.size, pytest, os; print(os.getuid())"]
        container = {"workingDir": str(ROOT), "securityContext": NO_RIGHTS}
        empty = {"name": "tmp", "emptyDir": {}}
        pod = {"securityContext": RESTRICTED, "volumes": [empty]}
        container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
        assert run(command, pod=pod, container=container)[1] == "1000\n"

    def test_volumes(self, cluster, run, tmp_path):
        cluster.claims["data"] = tmp_path / "data"
        volumes = [
            {"name": "home", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ]
        places = {"home": "/zeusrun/home", "memory": "/dev/shm", "data": "/some/where"}
        mounts = [{"name": name, "mountPath": path} for name, path in places.items()]
        script = "for i in /zeusrun/home /dev/shm /some/where; do stat -c '%a %u:%g' $i; echo 1 >$i/a; done"
        pod = {"securityContext": RESTRICTED, "volumes": volumes}
        container = {"securityContext": NO_RIGHTS, "volumeMounts": mounts}
        _, log = run(script, pod=pod, container=container)
        assert log.splitlines() == ["2777 0:1000", "2777 0:1000", "2775 0:1000"]
        assert (tmp_path / "data" / "a").stat().st_gid == 1000
        assert not Path("/zeusrun").exists()

    def test_image_has_files_and_a_folder(self, cluster, run, tmp_path):
        (tmp_path / "jobs").mkdir()
        (tmp_path / "jobs" / "job.yaml").write_text("x: 1\n")
        mounts = {"/app/jobs": tmp_path / "jobs", "/usr/bin/tool": tmp_path / "jobs/job.yaml"}
        path = {"PATH": "/usr/bin:/bin"}
        cluster.image[IMAGE] = Image(path, "/app/jobs", ["sh", "-c"], 1000, mounts)
        _, log = run(
            None, container={"command": None, "args": ["cat job.yaml /usr/bin/tool; id -u"]}
        )
        assert log == "x: 1\nx: 1\n1000\n"

    def test_processes_of_a_pod_die_with_its_command(self, cluster, running):
        name = running("sleep 100 & setsid sleep 100 & echo ready; exec sleep 100")
        inside = Path(f"/proc/{cluster.container(name).pid}/ns/pid").readlink()
        assert len(in_namespace(inside)) == 3
        cluster.delete_pod(name, grace=0)
        cluster.wait(lambda: not in_namespace(inside))

    def test_sigterm_does_not_end_process_1_without_a_handler(self, cluster, running):
        name = running(
            "echo ready; exec sleep 100",
            pod={"terminationGracePeriodSeconds": 1},
            podFailurePolicy=POLICY,
        )
        started = time.monotonic()
        cluster.delete_pod(name)
        cluster.wait_for("jobs", "j", "Failed")
        assert time.monotonic() - started > 0.9

    def test_pods_die_with_the_test(self, tmp_path):
        script = f"""
import time
from tests.fake_kubernetes import FakeCluster
from tests.fake_kubernetes.controllers import prepare
with FakeCluster({str(tmp_path / "cluster")!r}) as cluster:
    made = {job("exec sleep 100")}
    made["metadata"]["namespace"] = "ml"
    cluster.store.add("jobs", prepare(cluster, "jobs", made))
    cluster.wait(lambda: [p for p in cluster.pods() if p["status"]["phase"] == "Running"])
    print(cluster.container(cluster.pods()[0]["metadata"]["name"]).pid, flush=True)
    time.sleep(100)
"""
        test = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
        pid = int(test.stdout.readline())
        ended = os.pidfd_open(pid)
        try:
            test.kill()
            test.communicate()
            assert wait_for_end(ended)
        finally:
            os.close(ended)


def in_namespace(wanted):
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{name}/ns/pid").readlink() == wanted:
                found.append(int(name))
    return found


def wait_for_end(pidfd, seconds=10):
    return bool(select.select([pidfd], [], [], seconds)[0])


class TestWhyAPodDoesNotRun:
    def waits(self, cluster, reason):
        def look():
            (pod,) = cluster.wait(cluster.pods)
            waiting = pod["status"].get("containerStatuses") and state(pod).get("waiting")
            return waiting and waiting["reason"] == reason and (waiting, pod)

        return cluster.wait(look)

    def test_image(self, cluster, submit):
        submit("true", container={"image": "nowhere/nothing:1"})
        waiting, pod = self.waits(cluster, "ImagePullBackOff")
        assert waiting["message"] == 'Back-off pulling image "nowhere/nothing:1"'
        assert pod["status"]["phase"] == "Pending"

    def test_secret_until_it_is_there(self, cluster, submit):
        source = {"secretKeyRef": {"name": "zeusrun", "key": "token"}}
        submit("true", container={"env": [{"name": "T", "valueFrom": source}]})
        waiting, _ = self.waits(cluster, "CreateContainerConfigError")
        assert waiting["message"] == 'secret "zeusrun" not found'
        cluster.secrets["ml"] = {"zeusrun": {"other": "x"}}
        cluster.wait(lambda: "find key token in Secret ml/zeusrun" in str(cluster.pods()))
        cluster.secrets["ml"] = {"zeusrun": {"token": "x"}}
        cluster.wait_for("jobs", "j", "Complete")

    def test_root(self, cluster, submit):
        submit("true", pod={"securityContext": {"runAsNonRoot": True}})
        self.waits(cluster, "CreateContainerConfigError")

    def test_claim_and_no_room(self, cluster, submit, tmp_path):
        cluster.schedulable = False
        volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
        submit("true", pod={"volumes": [volume]})

        def says(text):
            (pod,) = cluster.wait(cluster.pods)
            conditions = {each["type"]: each for each in pod["status"]["conditions"]}
            scheduled = conditions.get("PodScheduled", {})
            return scheduled.get("reason") == "Unschedulable" and text in scheduled["message"]

        cluster.wait(lambda: says('persistentvolumeclaim "data" not found'))
        cluster.claims["data"] = tmp_path / "data"
        cluster.wait(lambda: says("Insufficient nvidia.com/gpu"))
        cluster.schedulable = True
        cluster.wait_for("jobs", "j", "Complete")

    def test_command_that_is_not_there(self, run):
        pod, _ = run(["no-such-program"], ends="Failed")
        terminated = state(pod)["terminated"]
        assert (terminated["exitCode"], terminated["reason"]) == (128, "StartError")
        assert '"no-such-program": executable file not found in $PATH' in terminated["message"]


class TestJobs:
    @pytest.mark.parametrize(
        ("script", "code", "reason"),
        [("exit 3", 3, "Error"), ("true", 0, "Completed"), ("kill -9 $$; sleep 9", 0, None)],
    )
    def test_end_of_a_pod(self, cluster, submit, script, code, reason):
        if reason is None:  # process 1 cannot kill itself
            script, code, reason = "(exit 0) & wait $!; exit 137", 137, "Error"
        submit(script)
        cluster.wait_for("jobs", "j", "Failed" if code else "Complete")
        (pod,) = cluster.pods()
        assert state(pod)["terminated"]["exitCode"] == code
        assert state(pod)["terminated"]["reason"] == reason
        assert pod["status"]["phase"] == ("Failed" if code else "Succeeded")

    def test_backoff_limit(self, cluster, run):
        run("exit 1", backoffLimit=2, ends="Failed")
        job = cluster.get("jobs", "j")
        assert condition(job, "Failed")["reason"] == "BackoffLimitExceeded"
        assert (len(cluster.pods()), job["status"]["failed"], job["status"]["active"]) == (3, 3, 0)

    @pytest.mark.parametrize(("code", "pods"), [(3, 1), (75, 4)])
    def test_policy_for_exit_codes(self, cluster, run, code, pods):
        run(f"exit {code}", backoffLimit=3, podFailurePolicy=POLICY, ends="Failed")
        failed = condition(cluster.get("jobs", "j"), "Failed")
        assert len(cluster.pods()) == pods
        if code == 3:
            assert failed["reason"] == "PodFailurePolicy"
            assert "failed with exit code 3 matching FailJob rule at index 1" in failed["message"]
        else:
            assert failed["reason"] == "BackoffLimitExceeded"

    @pytest.mark.parametrize("how", ["evict", "kill"])
    def test_disrupted_pods_are_replaced_and_not_counted(self, cluster, running, how):
        script = "trap 'echo bye; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
        first = running(script, backoffLimit=0, podFailurePolicy=POLICY)
        for _ in range(2):
            getattr(cluster, how)(first)
            first = cluster.wait(
                lambda old=first: ready(cluster) not in {None, old} and ready(cluster)
            )
        assert [pod["metadata"]["name"] for pod in cluster.pods()] == [first]
        assert "failed" not in cluster.get("jobs", "j")["status"]
        assert len(cluster.ran()) == 3
        said_goodbye = [cluster.log(name) == "ready\nbye\n" for name in cluster.ran()]
        assert said_goodbye == [how == "evict"] * 2 + [False]

    def test_memory(self, cluster, running):
        cluster.kill_for_memory(running("echo ready; exec sleep 100"))
        cluster.wait_for("jobs", "j", "Failed")
        (pod,) = cluster.pods()
        assert state(pod)["terminated"]["reason"] == "OOMKilled"
        assert state(pod)["terminated"]["exitCode"] == 137

    def test_suspended(self, cluster, objects, submit):
        made = submit("true", suspend=True)
        job = cluster.wait_for("jobs", "j", "Suspended")
        assert (cluster.pods(), job["status"]["active"]) == ([], 0)
        made = objects.get_namespaced_custom_object(*JOBS, "j")
        made["spec"]["suspend"] = False
        objects.replace_namespaced_custom_object(*JOBS, "j", made)
        cluster.wait_for("jobs", "j", "Complete")

    def test_deleted_in_the_foreground(self, cluster, objects, running):
        running("trap 'sleep 0.3; exit 75' TERM; echo ready; while :; do sleep 0.05; done")
        objects.delete_namespaced_custom_object(*JOBS, "j", propagation_policy="Foreground")
        going = cluster.get("jobs", "j")["metadata"]
        assert (going["finalizers"], "deletionTimestamp" in going) == (["foregroundDeletion"], True)
        cluster.wait(lambda: not cluster.store.all("jobs"))
        assert cluster.pods() == []

    @pytest.mark.parametrize(("policy", "left"), [("Background", 0), (None, 1)])
    def test_deleted_otherwise(self, cluster, objects, run, policy, left):
        run("true")
        options = {"propagation_policy": policy} if policy else {}
        objects.delete_namespaced_custom_object(*JOBS, "j", **options)
        assert cluster.store.all("jobs") == []
        cluster.wait(lambda: len(cluster.pods()) == left)


class TestApi:
    def test_objects(self, cluster, objects, submit):
        cluster.schedulable = False
        submit("true")
        with pytest.raises(ApiException) as refused:
            submit("true")
        assert (refused.value.status, json.loads(refused.value.body)["reason"]) == (
            409,
            "AlreadyExists",
        )
        made = objects.get_namespaced_custom_object(*JOBS, "j")
        made["metadata"]["labels"] = {"a": "b"}
        objects.replace_namespaced_custom_object(*JOBS, "j", made)
        made["metadata"]["labels"] = {"a": "c"}
        assert refusal(objects.replace_namespaced_custom_object, *JOBS, "j", made)[:2] == (
            409,
            "Conflict",
        )
        del made["metadata"]["resourceVersion"]
        objects.replace_namespaced_custom_object(*JOBS, "j", made)
        assert cluster.get("jobs", "j")["metadata"]["labels"] == {"a": "c"}
        assert refusal(objects.get_namespaced_custom_object, *JOBS, "k") == (
            *(404, "NotFound"),
            'jobs "k" not found',
        )
        nowhere = ("batch", "v1", "nowhere", "jobs", job("true"))
        assert refusal(objects.create_namespaced_custom_object, *nowhere)[1] == "NotFound"
        made["spec"]["template"]["spec"]["containers"][0]["image"] = "x"
        assert refusal(objects.replace_namespaced_custom_object, *JOBS, "j", made)[0] == 422

    def test_user(self, cluster, objects, submit, core):
        cluster.rules = [
            {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        ]
        submit("true")
        core.list_namespaced_pod("ml")
        code, reason, text = refusal(objects.delete_namespaced_custom_object, *JOBS, "j")
        assert (code, reason) == (403, "Forbidden")
        assert 'cannot delete resource "jobs" in API group "batch"' in text
        assert refusal(core.list_namespaced_pod, "ml", watch=True)[0] == 403
        assert refusal(core.read_namespaced_pod_log, "p", "ml")[0] == 403
        assert {("batch", "jobs", "create"), ("", "pods/log", "get")} <= cluster.used
        cluster.token = "another"
        assert refusal(core.list_namespaced_pod, "ml")[:2] == (401, "Unauthorized")

    def test_validation(self, cluster, objects):
        cluster.validate = lambda thing: ['unknown field "spec.x"'] if "x" in thing["spec"] else []
        bad = (*JOBS, job("true", x=1))
        code, _, text = refusal(
            objects.create_namespaced_custom_object, *bad, field_validation="Strict"
        )
        assert code == 400
        assert text.endswith('handled as a Job: strict decoding error: unknown field "spec.x"')
        objects.create_namespaced_custom_object(*bad)
        cluster.validate = lambda _: ["spec.y: Required value"]
        code, reason, text = refusal(
            objects.create_namespaced_custom_object, *JOBS, job("true", name="k")
        )
        assert (code, reason, text) == (
            422,
            "Invalid",
            'Job "k" is invalid: spec.y: Required value',
        )

    def test_group_that_is_not_installed(self, cluster, objects):
        cluster.absent.add("trainer.kubeflow.org")
        with pytest.raises(ApiException) as refused:
            objects.get_namespaced_custom_object(
                "trainer.kubeflow.org", "v1alpha1", "ml", "trainjobs", "t"
            )
        assert (refused.value.status, refused.value.body) == (404, "404 page not found\n")

    def test_watch(self, cluster, core, submit):
        version = core.list_namespaced_pod("ml").metadata.resource_version
        submit("sleep 0.1; exit 3")
        submit("true", name="other")
        options = {
            "label_selector": "batch.kubernetes.io/job-name=j,job-name=j",
            "timeout_seconds": 5,
        }
        seen = []
        stream = watch.Watch()
        for event in stream.stream(
            core.list_namespaced_pod, "ml", resource_version=version, **options
        ):
            pod = event["object"]
            assert pod.metadata.name.startswith("j-")
            seen.append((event["type"], pod.status.phase))
            if pod.status.phase == "Failed":
                assert pod.status.container_statuses[0].state.terminated.exit_code == 3
                stream.stop()
        assert list(dict.fromkeys(seen)) == [
            *(("ADDED", "Pending"), ("MODIFIED", "Pending")),
            *(("MODIFIED", "Running"), ("MODIFIED", "Failed")),
        ]
        cluster.compact()
        with pytest.raises(ApiException) as gone:
            list(watch.Watch().stream(core.list_namespaced_pod, "ml", resource_version=version))
        assert gone.value.status == 410
        started = time.monotonic()
        events = list(watch.Watch().stream(core.list_namespaced_pod, "ml", timeout_seconds=1))
        assert events[0]["type"] == "ADDED"
        assert {event["type"] for event in events} <= {"ADDED", "MODIFIED"}  # the job goes on
        assert time.monotonic() - started > 0.9


class TestLog:
    def test_lines_have_times(self, cluster, core, run):
        pod, _ = run("echo one; sleep 1.1; echo two; printf three")
        where = (pod["metadata"]["name"], "ml")
        lines = core.read_namespaced_pod_log(*where, timestamps=True).splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == ["one", "two", "three"]
        stamp = lines[1].split(" ", 1)[0]
        assert len(stamp) == len("2025-06-01T12:00:00.123456789Z")
        url = f"{cluster.url}/api/v1/namespaces/ml/pods/{where[0]}/log?sinceTime={stamp[:19]}Z"
        asker = {"Authorization": f"Bearer {cluster.token}"}
        with urllib3.PoolManager(headers=asker) as pool:
            answer = pool.request("GET", url)
        assert answer.data == b"two\nthree\n"
        assert core.read_namespaced_pod_log(*where, since_seconds=1) == "two\nthree\n"
        assert core.read_namespaced_pod_log(*where, tail_lines=1) == "three\n"

    def test_it_is_followed(self, cluster, core, running):
        name = running("echo ready; read x < /go/fifo; echo $x; printf end", **self.door(cluster))
        answer = core.read_namespaced_pod_log(name, "ml", follow=True, _preload_content=False)
        assert answer.readline() == b"ready\n"
        self.open(cluster)
        assert answer.read() == b"opened\nend\n"

    def door(self, cluster):
        folder = cluster.folder / "door"
        folder.mkdir()
        os.mkfifo(folder / "fifo")
        cluster.claims["door"] = folder
        volume = {"name": "door", "persistentVolumeClaim": {"claimName": "door"}}
        mounts = [{"name": "door", "mountPath": "/go"}]
        return {"pod": {"volumes": [volume]}, "container": {"volumeMounts": mounts}}

    def open(self, cluster):
        (cluster.folder / "door" / "fifo").write_text("opened\n")

    def test_before_the_container_has_started(self, cluster, core, submit):
        cluster.schedulable = False
        submit("true")
        name = cluster.wait(cluster.pods)[0]["metadata"]["name"]
        answer = core.read_namespaced_pod_log(name, "ml", _preload_content=False)
        assert answer.status == 204
        cluster.starting.clear()
        cluster.schedulable = True
        cluster.wait(lambda: "ContainerCreating" in str(cluster.pods()))
        code, reason, text = refusal(core.read_namespaced_pod_log, name, "ml")
        assert (code, reason) == (400, "BadRequest")
        assert text == f'container "node" in pod "{name}" is waiting to start: ContainerCreating'
        assert refusal(core.read_namespaced_pod_log, "no", "ml")[:2] == (404, "NotFound")

    def test_of_a_lost_node_it_breaks_off(self, cluster, core, running):
        name = running("echo ready; exec sleep 100")
        answer = core.read_namespaced_pod_log(name, "ml", follow=True, _preload_content=False)
        assert answer.readline() == b"ready\n"
        cluster.kill(name)
        with pytest.raises(urllib3.exceptions.ProtocolError):
            answer.read()


class TestFaults:
    def test_errors(self, cluster, core):
        cluster.fails("GET .*/pods$", 500)
        assert refusal(core.list_namespaced_pod, "ml")[0] == 500
        core.list_namespaced_pod("ml")

    def test_answer_that_is_lost(self, cluster, objects):
        cluster.fails("POST", after=True)
        with pytest.raises(urllib3.exceptions.HTTPError):
            objects.create_namespaced_custom_object(*JOBS, job("true"))
        cluster.wait_for("jobs", "j", "Complete")

    def test_server_that_stops_hangs_and_drops_connections(self, cluster, core):
        core.list_namespaced_pod("ml")
        cluster.stop()
        with pytest.raises(urllib3.exceptions.HTTPError):
            core.list_namespaced_pod("ml")
        cluster.start()
        core.list_namespaced_pod("ml")
        cluster.hang()
        with pytest.raises(urllib3.exceptions.HTTPError):
            core.list_namespaced_pod("ml", _request_timeout=0.2)
        later = threading.Timer(0.2, cluster.resume)
        later.start()
        core.list_namespaced_pod("ml")
        stream = core.list_namespaced_pod("ml", watch=True, _preload_content=False)
        cluster.drop_connections()
        with pytest.raises(urllib3.exceptions.ProtocolError):
            stream.read()


RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: zeusrun}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      failurePolicy:
        maxRestarts: 1
        rules: [{name: final, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}]
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            podFailurePolicy:
              rules: [{action: FailJob, onExitCodes: {operator: NotIn, values: [0, 75]}}]
            template:
              spec:
                restartPolicy: Never
                containers:
                - name: node
                  image: nothing
                  env: [{name: OF_RUNTIME, value: "1"}]
"""
TRAINJOBS = ("trainer.kubeflow.org", "v1alpha1", "ml", "trainjobs")


def trainjob(script, *, name="t", nodes=2, pod=None, env=()):
    spec = {
        "replicatedJobs": [
            {"name": "node", "template": {"spec": {"template": {"spec": pod or {}}}}}
        ]
    }
    patch = {"manager": "zeusrun.io/submit", "trainingRuntimeSpec": {"template": {"spec": spec}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "runtimeRef": {"apiGroup": TRAINJOBS[0], "kind": "TrainingRuntime", "name": "zeusrun"},
            "trainer": {
                "image": IMAGE,
                "command": ["sh", "-c", script],
                "env": list(env),
                "numNodes": nodes,
                "resourcesPerNode": {"limits": {"cpu": "2500m"}},
            },
            "runtimePatches": [patch],
        },
    }


class TestTrainJobs:
    @pytest.fixture(autouse=True)
    def runtime(self, cluster):
        cluster.runtimes["ml"] = {"zeusrun": yaml.safe_load(RUNTIME)}

    @pytest.fixture
    def train(self, objects):
        def create(*arguments, **values):
            made = trainjob(*arguments, **values)
            return objects.create_namespaced_custom_object(*TRAINJOBS, made)

        return create

    def test_nodes_have_names_ranks_and_addresses(self, cluster, train):
        script = "hostname; env | sort | grep -E 'PET|JOB_|OF_'; hostname -I; cat /sys/class/net/eth0/type"
        train(script, env=[{"name": "OF_JOB", "value": "2"}])
        trainjob = cluster.wait_for("trainjobs", "t", "Complete")
        first, second = sorted(cluster.pods(), key=lambda pod: pod["metadata"]["name"])
        lines = cluster.log(second["metadata"]["name"]).splitlines()
        assert lines == [
            *("t-node-0-1", "JOB_COMPLETION_INDEX=1", "OF_JOB=2", "OF_RUNTIME=1"),
            *("PET_MASTER_ADDR=t-node-0-0.t", "PET_MASTER_PORT=29500", "PET_NNODES=2"),
            *("PET_NODE_RANK=1", "PET_NPROC_PER_NODE=3", second["status"]["podIP"] + " ", "1"),
        ]
        assert first["status"]["podIP"] != second["status"]["podIP"]
        assert first["metadata"]["name"].startswith("t-node-0-0-")
        assert (
            first["metadata"]["labels"].items()
            >= {
                "batch.kubernetes.io/job-name": "t-node-0",
                "batch.kubernetes.io/job-completion-index": "0",
                "jobset.sigs.k8s.io/jobset-name": "t",
                "jobset.sigs.k8s.io/replicatedjob-name": "node",
            }.items()
        )
        assert condition(trainjob, "Complete")["reason"] == "AllJobsCompleted"
        assert trainjob["status"]["jobsStatus"][0]["succeeded"] == 1

    def test_a_name_resolves_once_its_pod_has_started(self, cluster, train):
        script = (
            'if [ "$JOB_COMPLETION_INDEX" = 0 ]; then\n'
            "  getent hosts nowhere.t || echo ready $?\n"
            "  until getent hosts t-node-0-1.t; do sleep 0.05; done; sleep 0.05\n"
            f"  {PYTHON} -c \"import socket; socket.create_connection(('t-node-0-1.t', 29400)).send(b'hello')\"\n"
            "else\n"
            "  until getent hosts t-node-0-0.t; do sleep 0.05; done\n"
            f"  {PYTHON} -c \"import socket; print(socket.create_server(('', 29400)).accept()[0].recv(9))\"\n"
            "fi"
        )
        train(script)
        cluster.wait_for("trainjobs", "t", "Complete")
        first, second = sorted(cluster.pods(), key=lambda pod: pod["metadata"]["name"])
        assert "ready 2\n" in cluster.log(first["metadata"]["name"])
        assert "b'hello'\n" in cluster.log(second["metadata"]["name"])

    def test_pods_reach_servers_of_the_test(self, cluster, train):
        url = cluster.network.forward(int(cluster.url.rpartition(":")[2]))
        assert url.startswith(f"http://{cluster.host_address}:")
        train(
            f"{PYTHON} -c \"import urllib.request as u; u.urlopen('{url}')\"; exit 0",
            nodes=1,
        )
        cluster.wait_for("trainjobs", "t", "Complete")
        assert "401: Unauthorized" in cluster.log(cluster.pods()[0]["metadata"]["name"])

    @pytest.mark.parametrize(
        ("code", "attempt", "reason"),
        [(3, "0", "FailJobSetFailurePolicyAction"), (75, "1", "ReachedMaxRestarts")],
    )
    def test_failures(self, cluster, train, code, attempt, reason):
        train(
            f"[ $JOB_COMPLETION_INDEX = 0 ] && exit {code}; trap 'exit 75' TERM; while :; do sleep 0.02; done",
            pod={"terminationGracePeriodSeconds": 1},
        )
        failed = cluster.wait_for("trainjobs", "t", "Failed")
        assert condition(failed, "Failed")["reason"] == reason
        (made,) = cluster.store.all("jobs")
        assert made["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == attempt
        assert {pod["status"]["phase"] for pod in cluster.pods()} <= {"Failed"}

    def test_patches_of_the_runtime(self, cluster, train, tmp_path):
        cluster.claims["data"] = tmp_path / "data"
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        node = {"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        node["securityContext"] = NO_RIGHTS
        pod = {"volumes": [volume], "containers": [node], "securityContext": RESTRICTED}
        train("id -u > /data/$JOB_COMPLETION_INDEX", pod=pod)
        cluster.wait_for("trainjobs", "t", "Complete")
        assert {path.name: path.read_text() for path in (tmp_path / "data").iterdir()} == {
            "0": "1000\n",
            "1": "1000\n",
        }

    def test_what_the_webhook_refuses(self, cluster, objects):
        create = objects.create_namespaced_custom_object
        pod = {"containers": [{"name": "node", "env": [{"name": "A", "value": "1"}]}]}
        code, reason, text = refusal(create, *TRAINJOBS, trainjob("true", pod=pod))
        assert (code, reason) == (403, "Forbidden")
        assert "denied the request: must not have envs for the node" in text
        cluster.runtimes.clear()
        assert (
            'trainingruntimes.trainer.kubeflow.org "zeusrun" not found'
            in (refusal(create, *TRAINJOBS, trainjob("true"))[2])
        )

    def test_deleted_in_the_foreground(self, cluster, objects, train):
        train("echo ready; exec sleep 100", pod={"terminationGracePeriodSeconds": 0})
        cluster.wait(
            lambda: len([p for p in cluster.pods() if p["status"]["phase"] == "Running"]) == 2
        )
        objects.delete_namespaced_custom_object(*TRAINJOBS, "t", propagation_policy="Foreground")
        cluster.wait(lambda: not cluster.store.all("trainjobs"))
        assert (cluster.store.all("jobs"), cluster.pods()) == ([], [])

    def test_suspended(self, cluster, objects, train):
        train("echo ready; exec sleep 100", pod={"terminationGracePeriodSeconds": 0})
        cluster.wait(lambda: ready(cluster))

        def suspend():  # until nobody has changed its status meanwhile
            made = objects.get_namespaced_custom_object(*TRAINJOBS, "t")
            made["spec"]["suspend"] = True
            with suppress(ApiException):
                objects.replace_namespaced_custom_object(*TRAINJOBS, "t", made)
                return made
            return None

        made = cluster.wait(suspend)
        cluster.wait_for("trainjobs", "t", "Suspended")
        cluster.wait(lambda: not cluster.pods())
        del made["metadata"]["resourceVersion"]
        refused = refusal(objects.replace_namespaced_custom_object, *TRAINJOBS, "t", made)
        assert refused[:2] == (422, "Invalid")

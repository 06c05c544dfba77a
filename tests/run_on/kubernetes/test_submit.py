"""What the verbs do with jobs of Kubernetes, whose pods run a script of sh for ``zeusrun``."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import yaml

from tests.factories import DONE, PREEMPTED
from tests.fake_kubernetes import IMAGE
from tests.fake_kubernetes.store import set_condition
from tests.kubernetes import SECRETS, SECTION, check_strictly
from tests.runs import wait_for
from zeusrun.history.registry import remember_choice
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.kubernetes import submit as verbs
from zeusrun.trial import TrialStatus

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "zeusrun.yaml"
NAME = re.compile(r"kubernetes:ml/job-[0-9a-f]{8}")
JOIN = {"secrets": {**SECRETS["secrets"], "ZEUSRUN_JOIN_TOKEN": "zeusrun/join-token"}}
POLITE = "trap 'echo bye; exit 75' TERM; echo ready; while :; do sleep 0.02; done"


@pytest.fixture
def job(zeusrun):
    """Write a job file for Kubernetes."""

    def write(section=None, *, nodes=1, **changes):
        section = {**SECTION, **(SECRETS if nodes == 1 else JOIN), **(section or {})}
        return zeusrun.job(
            run_on={"kubernetes": section},
            launch={"nnodes": nodes, **changes.pop("launch", {})},
            **changes,
        )

    return write


@pytest.fixture
def submit(cli, job):
    """Submit such a job; return ``(exit code, stdout, stderr)``."""
    return lambda *options, **changes: cli("submit", *options, job(**changes))


@pytest.fixture
def inside(used_cluster, tmp_path, hasty):
    """Say what ``zeusrun`` does in the pods; return the cluster."""
    folder = tmp_path / "image"
    folder.mkdir()
    image = used_cluster.image[IMAGE]
    image.mounts["/opt/train"] = folder
    image.environment["PATH"] = "/opt/train:/usr/bin:/bin"
    keys = ("history", "join-token")
    used_cluster.secrets["ml"] = {"zeusrun": dict.fromkeys(keys, "x")}

    def put(script="echo ready"):
        (folder / "zeusrun").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "zeusrun").chmod(0o755)
        return used_cluster

    put()
    return put


@pytest.fixture
def crowded(inside):
    """A cluster that has no room."""
    fake = inside()
    fake.schedulable = False
    return fake


@pytest.fixture
def then(monkeypatch):
    """Say what happens right after a job is created; it gets the name."""

    def put(act):
        def create(manifest):
            name = real(manifest)
            act(name)
            return name

        real = verbs.create_job
        monkeypatch.setattr(verbs, "create_job", create)

    return put


@pytest.fixture
def then_record(then, record):
    """Record a run right after a job is created."""
    return lambda outcome=DONE: then(lambda name: record(1, outcome, allocation=name))


@pytest.fixture
def history(zeusrun):
    return TinyDBHistory(zeusrun.home / "history")


@pytest.fixture
def later():
    """Act in a thread, once a condition is true."""
    threads = []

    def start(condition, act):
        def run():
            act(wait_for(condition))

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    for each in threads:
        each.join()


@pytest.fixture
def tickets(zeusrun):
    """Return the job and the state of each ticket."""
    return lambda: [(each.allocation, each.state) for each in Tickets(zeusrun.home).present()]


def until_ready(fake, nodes=1, besides=()):
    """Return a pod once so many have printed ``ready``: a signal before that would be ignored."""
    names = {each["metadata"]["name"] for each in fake.pods()} - {*besides}
    ready = [name for name in names if "ready" in fake.log(name)]
    return ready[0] if len(ready) == nodes else None


class TestDryRun:
    @pytest.fixture(autouse=True)
    def nowhere(self, kubeconfig, tmp_path):
        kubeconfig(tmp_path / "none")

    @pytest.mark.parametrize("nodes", [1, 2])
    def test_it_shows_the_manifest_and_asks_no_cluster(self, submit, tickets, nodes):
        code, out, errors = submit("--dry-run", "--set", "objective.target=0.75", nodes=nodes)
        assert (code, errors) == (0, "")
        shown = yaml.safe_load(out)
        assert check_strictly(shown) == []
        assert shown["metadata"]["name"] == "job-00000000"
        assert shown["kind"] == ("Job" if nodes == 1 else "TrainJob")
        assert "objective.target=0.75" in out
        again = submit("--dry-run", "--json", "--set", "objective.target=0.75", nodes=nodes)
        assert json.loads(again[1]) == shown
        assert tickets() == []

    def test_what_is_wrong_with_it_is_told(self, submit):
        code, _, errors = submit("--dry-run", section={"secrets": {}})
        assert (code, "pods need a history that they can reach" in errors) == (2, True)

    def test_a_submit_without_a_cluster_says_what_to_do(self, submit, tickets):
        code, _, errors = submit()
        assert (code, "kubectl has no cluster here" in errors) == (5, True)
        assert "--set run_on=local" in " ".join(errors.split())
        assert tickets() == []


def test_a_detached_submit_has_a_ticket(submit, crowded, tickets):
    code, out, errors = submit("--detach")
    name = NAME.search(out)[0]
    assert (code, errors) == (0, "")
    assert out == f"queued as {name}; `zeusrun logs -f {name}` follows it\n"
    assert tickets() == [(name, "queued")]
    second = json.loads(submit("--detach", "--json")[1])["queued"]
    assert submit("--detach", "--quiet")[:2] == (0, "")
    assert [each for each, _ in tickets()][:2] == [name, second]
    assert len(crowded.store.all("jobs")) == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--detach", "--overlap", "queue"],
        ["--detach", "--wait"],
        ["--batch-size", "17"],
    ],
)
def test_what_no_pod_can_do_is_refused_before_anything_is_created(
    submit, crowded, tickets, options
):
    assert submit(*options)[0] == 2
    assert (tickets(), crowded.used) == ([], set())


@pytest.mark.parametrize(
    "case",
    [
        (401, 1, "Log in to the cluster; then `kubectl get pods` works, too"),
        (403, 1, "deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace"),
        (403, 2, "deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace"),
        (404, 1, "Correct run_on.kubernetes; --dry-run shows the manifest"),
        (404, 2, "Several nodes need Kubeflow Trainer 2.2 or later"),
        (422, 1, "Correct run_on.kubernetes; --dry-run shows the manifest"),
        (500, 2, "Correct run_on.kubernetes; --dry-run shows the manifest"),
        (None, 1, "`kubectl get pods` tells whether that is so"),
    ],
)
def test_a_refusal_is_explained_and_leaves_no_ticket(submit, crowded, tickets, case):
    code, nodes, advice = case
    crowded.fails("POST", code)
    found, _, errors = submit(nodes=nodes)
    assert found == 5
    errors = " ".join(errors.split())
    assert "Kubernetes did not take the job: " in errors
    assert ("fault of a test" if code else "does not respond") in errors
    assert errors.endswith(advice)
    assert tickets() == []


def test_a_manifest_that_is_invalid_is_told_in_the_words_of_kubernetes(submit, crowded, tmp_path):
    crowded.validate = check_strictly
    template = tmp_path / "pod.yaml"
    template.write_text("spec: {tolerations: [{key: gpu, operater: Exists}]}")
    code, _, errors = submit(section={"template": str(template)})
    assert (code, "strict decoding error: unknown field" in errors) == (5, True)
    assert "tolerations[0].operater" in errors
    assert crowded.store.all("jobs") == []


def test_a_job_whose_creation_was_not_answered_is_known_or_gone(submit, crowded, tickets):
    crowded.fails("POST", after=True)
    submit("--detach")
    jobs = [f"kubernetes:ml/{each['metadata']['name']}" for each in crowded.store.all("jobs")]
    assert jobs == [name for name, _ in tickets()]


@pytest.mark.parametrize(
    "case",  # what the pod does, its run, the exit code, and what is told
    [
        ("exit 0", DONE, 0, None),
        ("exit 4", replace(DONE, status=TrialStatus.MISSED), 4, None),
        ("exit 0", None, 0, None),
        ("exit 3", None, 3, r"is Failed \(Container node .* exit code 3 .*\), and began no run"),
        ("exit 137", "dead", 137, r"job-1-1 did not record its end \(Error\): if it does not with"),
    ],
)
def test_a_follower_relays_what_is_printed_and_ends_as_the_pod_did(
    submit, inside, then_record, tickets, case
):
    script, outcome, code, words = case
    inside(f"printf 'one \\033[31mred\\033[0m\\ntwo\\n'; {script}")
    if outcome is not None:
        then_record(None if outcome == "dead" else outcome)
    found, out, errors = submit()
    assert found == code
    lines = out.splitlines()
    shown = [line for line in lines if not line.startswith("·")]
    assert shown[:2] == ["one red", "two"]
    assert errors == "" if words is None else re.search(words, " ".join(errors.split()))
    assert tickets() == []


def test_with_json_the_result_is_all_that_is_on_stdout(submit, inside, then_record):
    inside("echo one")
    then_record()
    code, out, errors = submit("--json")
    result = json.loads(out)
    assert (code, result["exit_code"], result["recurrence"]) == (0, 0, 1)
    assert [each["trial"] for each in result["trials"]] == ["job-1-1"]
    assert "one\n" in errors


def test_quietly_only_the_output_is_shown(submit, inside, then_record):
    inside("echo one")
    then_record()
    assert submit("--quiet") == (0, "one\n", "")


def test_how_a_job_waits_is_shown(submit, crowded, later):
    later(lambda: condition_of(crowded), lambda _: setattr(crowded, "schedulable", True))
    _, out, _ = submit()
    assert re.search(r"· kubernetes:ml/job-\w+ is queued \(Unschedulable: 0/1 nodes are avail", out)
    assert out.count("Insufficient nvidia.com/gpu") == 1
    assert "\nready\n" in out


def condition_of(fake):
    """Return why a pod is not scheduled, once that has been said for some time."""
    return [each for each in fake.pods() if "Unschedulable" in str(each["status"])] and sum(
        rule == ("", "pods", "list") for rule in fake.used
    )


CANCELLED = replace(DONE, status=TrialStatus.CANCELLED, reason_code=ReasonCode.CANCELLED_LATER)


@pytest.mark.parametrize(
    "case",  # its run, the exit code, and what is told
    [
        (None, 143, "does not exist, and began no run"),
        (PREEMPTED, 75, None),
        (CANCELLED, 143, None),
    ],
)
def test_a_job_that_somebody_deletes_ends_as_its_run(submit, crowded, then, record, case):
    outcome, code, words = case

    def act(name):
        if outcome is not None:
            record(1, outcome, allocation=name)
        crowded.store.delete("jobs", crowded.get("jobs", name.rpartition("/")[2]))

    then(act)
    found, _, errors = submit()
    assert found == code
    assert errors == "" if words is None else words in errors


def test_a_job_that_fails_before_a_container_begins_did_not_launch(submit, crowded, then, tickets):
    """At its deadline, or because an init container fails."""

    def act(name):
        with crowded.store.edit("jobs", crowded.get("jobs", name.rpartition("/")[2])) as job:
            text = "Job was active longer than specified deadline"
            set_condition(job, "Failed", "DeadlineExceeded", text)

    then(act)
    code, _, errors = submit()
    assert code == 5
    assert "is Failed (Job was active longer than specified deadline), and began no run" in errors
    assert tickets() == []


def interrupt():
    """Send Ctrl-C to the submit that runs in this process, and not to the test."""

    def is_caught():
        owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        return isinstance(owner, CaughtSignals)

    wait_for(is_caught)
    os.kill(os.getpid(), signal.SIGINT)


# What a pod prints while its log is opened again after a silence, as it is deleted, is lost.
@mock.patch("zeusrun.run_on.kubernetes.client._SILENT_S", (5.0, 300.0))
def test_ctrl_c_deletes_the_job_and_shows_how_it_ends(submit, inside, history, record, later):
    fake = inside(POLITE)

    def preempt(_):
        (found,) = fake.store.all("jobs")
        record(1, PREEMPTED, allocation=f"kubernetes:ml/{found['metadata']['name']}")
        interrupt()

    later(lambda: {until_ready(fake)} & fake.followed, preempt)
    code, out, errors = submit()
    assert code == 130
    assert errors.startswith("zeusrun: job-1-1 is CANCELLED: ")
    assert "is asked to stop; press Ctrl-C again to wait no longer\n" in out
    assert "\nbye\n" in out
    assert (fake.store.all("jobs"), fake.pods()) == ([], [])
    assert history.find("job-1-1").status is TrialStatus.CANCELLED


def test_ctrl_c_twice_waits_for_nothing(submit, inside, later):
    fake = inside("trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done")

    def again(pod):
        interrupt()
        wait_for(lambda: "asked" in fake.log(pod))
        interrupt()

    later(lambda: until_ready(fake), again)
    code, out, errors = submit()
    assert code == 130
    assert "is asked to stop; press Ctrl-C again" in out
    assert "is deleted; its pods end within their grace period" in " ".join(errors.split())
    (going,) = fake.store.all("jobs")
    assert "deletionTimestamp" in going["metadata"]


def test_ctrl_c_twice_at_once_deletes_the_job_too(submit, crowded, then):
    then(lambda _: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    code, _, errors = submit()
    assert (code, "is deleted" in errors) == (130, True)
    assert all("deletionTimestamp" in each["metadata"] for each in crowded.store.all("jobs"))


@pytest.mark.parametrize("case", [(signal.SIGTERM, 75), (signal.SIGHUP, 129)])
def test_the_job_goes_on_without_its_follower(submit, crowded, then, tickets, case):
    number, code = case
    then(lambda _: signal.raise_signal(number))
    found, _, errors = submit()
    assert (found, "continues without this process" in errors) == (code, True)
    (going,) = crowded.store.all("jobs")
    assert "deletionTimestamp" not in going["metadata"]
    assert len(tickets()) == 1


class TestWords:
    """What ``status``, ``logs`` and ``cancel`` say of a job in each state."""

    @pytest.fixture
    def queued(self, submit, inside):
        def start(script=POLITE):
            fake = inside(script)
            return fake, json.loads(submit("--detach", "--json")[1])["queued"]

        return start

    def status(self, cli, monkeypatch):
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.setattr("zeusrun.run_on.registry._states", {})
        code, out, errors = cli("status")
        assert (code, errors) == (0, "")
        return out

    def test_of_one_that_waits(self, cli, queued, crowded, monkeypatch):
        fake, name = queued()
        wait_for(lambda: condition_of_pod(fake))
        why = f"{name} is queued (Unschedulable: {crowded.unschedulable_message})"
        assert why in self.status(cli, monkeypatch)
        (record,) = json.loads(cli("status", "--json")[1])
        assert (record["allocation"], record["state"]) == (name, "queued")
        code, out, errors = cli("logs", name)
        assert (code, out, " ".join(errors.split())) == (0, "", f"zeusrun: {why}")
        assert cli("logs", "job") == (code, out, errors)
        assert cli("cancel", name)[:2] == (0, f"{name} is cancelled\n")
        assert self.status(cli, monkeypatch).startswith("nothing runs now")

    @pytest.mark.parametrize("verb", ["cancel", "logs", "show"])
    def test_of_a_job_whose_only_submit_was_cancelled(self, cli, queued, crowded, verb):
        queued()
        remember_choice(Path(os.environ["ZEUSRUN_HOME"]), "job", "tinydb")  # of its job file
        assert cli("cancel", "job")[0] == 0
        assert cli(verb, "job") == (
            2,
            "",
            "zeusrun: no run of job is recorded; `zeusrun status` shows what runs or waits\n",
        )

    def test_of_one_that_runs(self, cli, queued, monkeypatch):
        fake, name = queued()
        wait_for(lambda: until_ready(fake))
        assert f"{name} runs on node-1" in self.status(cli, monkeypatch)
        assert cli("logs", name) == (0, "ready\n", f"zeusrun: {name} runs on node-1\n")
        code, _, errors = cli("show", name)
        assert (code, f"no run has begun in {name}; `zeusrun logs {name}` shows" in errors) == (
            2,
            True,
        )
        assert json.loads(cli("cancel", "--json", "job")[1]) == {"cancelled": name}
        assert (fake.store.all("jobs"), fake.pods()) == ([], [])

    def test_of_one_that_has_ended(self, cli, queued, monkeypatch, tickets):
        fake, name = queued("echo one; printf 'two \\033[2J'; exit 3")
        fake.wait_for("jobs", name.rpartition("/")[2], "Failed")
        assert self.status(cli, monkeypatch).startswith("nothing runs now")
        for options in ([], ["-f"]):
            code, out, errors = cli("logs", *options, name)
            assert (code, out) == (0, "one\ntwo \n")
            assert errors.startswith(f"zeusrun: {name} is Failed (Container node ")
        assert cli("cancel", name)[0] == 2
        assert tickets() == []

    def test_of_one_that_has_succeeded(self, cli, queued):
        fake, name = queued("echo one")
        fake.wait_for("jobs", name.rpartition("/")[2], "Complete")
        assert cli("logs", name) == (0, "one\n", "")

    def test_of_one_that_is_gone(self, cli, queued, monkeypatch):
        fake, name = queued()
        fake.store.delete("jobs", fake.get("jobs", name.rpartition("/")[2]))
        # One status may list what it knew a moment ago, and describe what is so now.
        wait_for(lambda: self.status(cli, monkeypatch).startswith("nothing runs now"))
        code, out, errors = cli("logs", "-f", name)
        assert (code, out) == (2, "")
        missing = f"zeusrun: {name} does not exist in this cluster; `zeusrun history` lists runs\n"
        assert errors == missing
        for verb in ("show", "cancel"):
            assert cli(verb, name) == (2, "", missing)

    def test_of_a_cluster_that_does_not_respond(self, cli, queued, monkeypatch):
        fake, name = queued()
        fake.stop()
        assert f"{name}: Kubernetes does not respond" in self.status(cli, monkeypatch)
        code, out, errors = cli("logs", name)
        assert (code, out) == (5, "")
        assert f"{fake.url} does not respond" in " ".join(errors.split())
        code, _, errors = cli("cancel", name)
        assert (code, "does not respond" in errors) == (5, True)
        fake.start()

    def test_of_a_run_that_goes_on_and_of_one_that_was_preempted(self, cli, queued, record):
        fake, name = queued()
        wait_for(lambda: until_ready(fake))
        record(1, PREEMPTED, allocation=name)
        code, out, _ = cli("cancel", "job")
        assert (code, out.startswith("job-1-1 is CANCELLED: cancelled by")) == (0, True)
        assert fake.store.all("jobs") == []


def condition_of_pod(fake):
    return [each for each in fake.pods() if "Unschedulable" in str(each["status"])]


class TestOverlap:
    """Two submits of a job from this machine."""

    def test_forbid_skips_the_second_one(self, submit, crowded):
        submit("--detach")
        code, _, errors = submit("--detach", "--overlap", "forbid")
        assert (code, "job is already running (kubernetes:ml/job-" in errors) == (75, True)
        assert len(crowded.store.all("jobs")) == 1

    def test_replace_deletes_the_first_one_and_waits_for_its_end(
        self, submit, crowded, tickets, monkeypatch
    ):
        monkeypatch.setattr("zeusrun.run_on.registry._KEPT_S", 0.0)
        first = NAME.search(submit("--detach")[1])[0]
        second = NAME.search(submit("--detach", "--overlap", "replace")[1])[0]
        assert [name for name, _ in tickets()] == [second]
        assert [each["metadata"]["name"] for each in crowded.store.all("jobs")] == [
            second.rpartition("/")[2]
        ]
        assert first != second


class TestPod:
    """``zeusrun inside kubernetes``, as the manifest calls it."""

    @pytest.fixture
    def start(self, cli, submit, crowded, monkeypatch):
        """Return what runs the command with the variables of a submit, and the name of its job."""
        name = json.loads(submit("--detach", "--json")[1])["queued"]
        manifest = crowded.get("jobs", name.rpartition("/")[2])
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        for each in container["env"]:
            if each["name"] in {"ZEUSRUN_JOB", "ZEUSRUN_REQUEST"}:
                monkeypatch.setenv(each["name"], each["value"].replace("$$", "$"))
        monkeypatch.setenv("ZEUSRUN_ALLOCATION", name)
        monkeypatch.setattr(verbs, "_DELIVERED_S", 0.0)
        return lambda: cli("inside", "kubernetes"), name

    @pytest.fixture
    def runs(self, monkeypatch):
        """Run no training; note what would run."""
        seen = []

        def run(spec, request, *, allocation):
            seen.append((spec.name, request.allocation, allocation.hosts))
            return {"exit_code": 4}

        monkeypatch.setattr(verbs, "run_recurrence", run)
        return seen

    def test_outside_of_a_pod_it_says_what_it_is_for(self, cli):
        code, _, errors = cli("inside", "kubernetes")
        assert (code, "is for a pod that `zeusrun submit` has made" in errors) == (2, True)

    def test_it_ends_as_the_recurrence_does(self, start, runs):
        start, name = start
        assert start()[0] == 4
        assert [(job, allocation) for job, allocation, _ in runs] == [("job", name)]

    def test_a_job_that_has_reached_its_target_does_not_train_again(self, start, runs, record):
        start, name = start
        record(1, DONE, allocation=name)
        code, out, _ = start()
        assert (code, out, runs) == (0, "job-1-1 has reached the target already\n", [])

    def test_a_run_that_was_preempted_goes_on_after_the_deadline(
        self, start, runs, record, monkeypatch
    ):
        start, name = start
        request = json.loads(os.environ["ZEUSRUN_REQUEST"])
        monkeypatch.setenv("ZEUSRUN_REQUEST", json.dumps({**request, "until": 1.0}))
        code, _, errors = start()
        assert (code, "its deadline has passed; this run is skipped" in errors) == (75, True)
        record(1, PREEMPTED, allocation=name)
        assert start()[0] == 4
        assert len(runs) == 1


def test_the_role_has_all_that_is_used_and_nothing_else(cli, submit, job, inside, later):
    """Whole flows with one pod and with two, by a user who has that role alone."""
    fake = inside(POLITE)
    documents = {each["kind"]: each for each in yaml.safe_load_all(DEPLOY.read_text())}
    fake.rules = documents["Role"]["rules"]
    fake.runtimes["ml"] = {"zeusrun": documents["TrainingRuntime"]}
    fake.validate = check_strictly
    for nodes in (1, 2):
        runs = functools.partial(until_ready, fake, nodes, besides=fake.ran())
        later(runs, lambda _: interrupt())
        assert submit(nodes=nodes)[0] == 130
        fake.schedulable = False
        name = json.loads(submit("--detach", "--json", nodes=nodes)[1])["queued"]
        assert cli("status")[2] == ""
        assert cli("logs", "-f", f"{name}-not")[0] == 2
        assert cli("cancel", "job")[0] == 0
        fake.schedulable = True
    given = {
        (group, resource, verb)
        for rule in fake.rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert fake.used == given

"""What the verbs do with jobs of Kubernetes, whose pods run a script of sh for ``zeusrun``."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.factories import DONE, PREEMPTED
from tests.fake_kubernetes import IMAGE, condition
from tests.kubernetes import SECRETS, SECTION, check_strictly
from tests.runs import wait_for
from zeusrun.commands import kubernetes as verbs
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.trial import TrialStatus

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "zeusrun.yaml"
NAME = re.compile(r"kubernetes:ml/job-[0-9a-f]{5}")
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
def cluster_(inside):
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
def later():
    """Act in a thread, once a condition is true."""
    threads = []

    def start(condition, act):
        def run():
            act(wait_for(condition, 20))

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    for each in threads:
        each.join()


def tickets(zeusrun):
    return [(each.allocation, each.state) for each in Tickets(zeusrun.home).present()]


def until_ready(fake):
    """Return the pod that has printed ``ready``, if one has."""
    names = [each["metadata"]["name"] for each in fake.pods()]
    return next((name for name in names if "ready" in fake.log(name)), None)


class TestDryRun:
    @pytest.fixture(autouse=True)
    def nowhere(self, kubeconfig, tmp_path):
        kubeconfig(tmp_path / "none")

    @pytest.mark.parametrize("nodes", [1, 2])
    def test_it_shows_the_manifest_and_asks_no_cluster(self, cli, job, zeusrun, nodes):
        code, out, errors = cli(
            "submit", "--dry-run", "--set", "objective.target=0.75", job(nodes=nodes)
        )
        assert (code, errors) == (0, "")
        shown = yaml.safe_load(out)
        assert check_strictly(shown) == []
        assert shown["metadata"]["name"] == "job-00000"
        assert shown["kind"] == ("Job" if nodes == 1 else "TrainJob")
        assert "objective.target=0.75" in out
        again = cli(
            "submit", "--dry-run", "--json", "--set", "objective.target=0.75", job(nodes=nodes)
        )
        assert json.loads(again[1]) == shown
        assert tickets(zeusrun) == []

    def test_what_is_wrong_with_it_is_told(self, cli, job):
        code, _, errors = cli("submit", "--dry-run", job({"secrets": {}}))
        assert (code, "pods need a history that they can reach" in errors) == (2, True)

    def test_it_shows_a_cron_job(self, cli, job):
        path = job(schedule={"tz": "Europe/Paris", "overlap": "replace", "deadline": "2h"})
        code, out, _ = cli("schedule", "add", path, "@daily", "--in-cluster", "--dry-run")
        shown = yaml.safe_load(out)
        assert (code, check_strictly(shown)) == (0, [])
        spec = shown["spec"]
        assert (spec["schedule"], spec["timeZone"]) == ("0 0 * * *", "Europe/Paris")
        assert (spec["concurrencyPolicy"], spec["startingDeadlineSeconds"]) == ("Replace", 7200)

    def test_a_submit_without_a_cluster_says_what_to_do(self, cli, job, zeusrun):
        code, _, errors = cli("submit", job())
        assert (code, "kubectl has no cluster here" in errors) == (5, True)
        assert "--set run_on=local" in " ".join(errors.split())
        assert tickets(zeusrun) == []


def test_a_detached_submit_has_a_ticket(cli, job, cluster_, zeusrun):
    code, out, errors = cli("submit", "--detach", job())
    name = NAME.search(out)[0]
    assert (code, errors) == (0, "")
    assert out == f"queued as {name}; `zeusrun logs -f {name}` follows it\n"
    assert tickets(zeusrun) == [(name, "queued")]
    second = json.loads(cli("submit", "--detach", "--json", job())[1])["queued"]
    assert cli("submit", "--detach", "--quiet", job())[:2] == (0, "")
    assert [each for each, _ in tickets(zeusrun)][:2] == [name, second]
    assert len(cluster_.store.all("jobs")) == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--detach", "--overlap", "queue"],
        ["--metrics-port", "9400"],
        ["--batch-size", "17"],
    ],
)
def test_what_no_pod_can_do_is_refused_before_anything_is_created(
    cli, job, cluster_, zeusrun, options
):
    assert cli("submit", *options, job())[0] == 2
    assert (tickets(zeusrun), cluster_.used) == ([], set())


@pytest.mark.parametrize("taken", [2, 100])
def test_a_name_that_is_taken_is_no_error_unless_all_are(
    cli, job, cluster_, zeusrun, monkeypatch, taken
):
    assert cli("submit", "--detach", job())[0] == 0
    (known,) = cluster_.store.all("jobs")
    names = iter(["job-check", *[known["metadata"]["name"]] * taken, "job-free0"])
    monkeypatch.setattr(verbs, "new_name", lambda _: next(names))
    code, out, errors = cli("submit", "--detach", job())
    assert len(tickets(zeusrun)) == len(cluster_.store.all("jobs"))
    if taken == 2:
        assert (code, "queued as kubernetes:ml/job-free0" in out) == (0, True)
    else:
        assert (code, "already exists" in errors) == (5, True)


@pytest.mark.parametrize(
    ("code", "nodes", "advice"),
    [
        (401, 1, "deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace"),
        (403, 1, "deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace"),
        (403, 2, "deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace"),
        (404, 1, "Correct run_on.kubernetes; --dry-run shows the manifest"),
        (404, 2, "Several nodes need Kubeflow Trainer 2.2 or later"),
        (422, 1, "Correct run_on.kubernetes; --dry-run shows the manifest"),
        (500, 2, "Correct run_on.kubernetes; --dry-run shows the manifest"),
        (None, 1, "`kubectl get pods` tells whether that is so"),
    ],
)
def test_a_refusal_is_explained_and_leaves_no_ticket(
    cli, job, cluster_, zeusrun, code, nodes, advice
):
    cluster_.fails("POST", code)
    found, _, errors = cli("submit", job(nodes=nodes))
    assert found == 5
    errors = " ".join(errors.split())
    assert "Kubernetes did not take the job: " in errors
    assert ("fault of a test" if code else "does not respond") in errors
    assert errors.endswith(advice)
    assert tickets(zeusrun) == []


def test_a_manifest_that_is_invalid_is_told_in_the_words_of_kubernetes(cli, job, cluster_):
    cluster_.validate = check_strictly
    section = {"pod": {"tolerations": [{"key": "gpu", "operater": "Exists"}]}}
    code, _, errors = cli("submit", job(section))
    assert (code, "strict decoding error: unknown field" in errors) == (5, True)
    assert "tolerations[0].operater" in errors
    assert cluster_.store.all("jobs") == []


@pytest.mark.xfail(
    strict=True,
    reason="if the answer to a creation is lost, the job runs without a ticket, and the user reads "
    "that Kubernetes did not take it",
)
def test_a_job_whose_creation_was_not_answered_is_known_or_gone(cli, job, cluster_, zeusrun):
    cluster_.fails("POST", after=True)
    cli("submit", "--detach", job())
    jobs = [f"kubernetes:ml/{each['metadata']['name']}" for each in cluster_.store.all("jobs")]
    assert jobs == [name for name, _ in tickets(zeusrun)]


@pytest.mark.parametrize(
    ("script", "outcome", "code", "words"),
    [
        ("exit 0", DONE, 0, None),
        ("exit 4", replace(DONE, status=TrialStatus.MISSED), 4, None),
        ("exit 0", None, 0, None),
        ("exit 3", None, 3, r"is Failed \(Container node .* exit code 3 .*\), and began no run"),
        ("exit 124", replace(DONE, status=TrialStatus.STOPPED), 124, None),
        ("exit 137", "dead", 137, r"job-1-1 did not record its end \(Error\): if it does not with"),
        ("no-such-command", None, 127, "began no run"),
    ],
)
def test_a_follower_relays_what_is_printed_and_ends_as_the_pod_did(
    cli, job, inside, then, record, zeusrun, script, outcome, code, words
):
    inside(f"printf 'one \\033[31mred\\033[0m\\ntwo\\n'; {script}")
    if outcome is not None:
        then(lambda name: record(1, None if outcome == "dead" else outcome, allocation=name))
    found, out, errors = cli("submit", job())
    assert found == code
    lines = out.splitlines()
    shown = [line for line in lines if not line.startswith("·")]
    assert shown[:2] == ["one red", "two"]
    assert errors == "" if words is None else re.search(words, " ".join(errors.split()))
    assert tickets(zeusrun) == []


def test_with_json_the_result_is_all_that_is_on_stdout(cli, job, inside, then, record):
    inside("echo one")
    then(lambda name: record(1, allocation=name))
    code, out, errors = cli("submit", "--json", job())
    result = json.loads(out)
    assert (code, result["exit_code"], result["recurrence"]) == (0, 0, 1)
    assert [each["trial"] for each in result["trials"]] == ["job-1-1"]
    assert "one\n" in errors


def test_quietly_only_the_output_is_shown(cli, job, inside, then, record):
    inside("echo one")
    then(lambda name: record(1, allocation=name))
    assert cli("submit", "--quiet", job()) == (0, "one\n", "")


def test_how_a_job_waits_is_shown(cli, job, cluster_, later):
    later(lambda: condition_of(cluster_), lambda _: setattr(cluster_, "schedulable", True))
    _, out, _ = cli("submit", job())
    assert re.search(r"· kubernetes:ml/job-\w+ is queued \(Unschedulable: 0/1 nodes are avail", out)
    assert out.count("Insufficient nvidia.com/gpu") == 1
    assert out.endswith("ready\n")


def condition_of(fake):
    """Return why a pod is not scheduled, once that has been said for some time."""
    return [each for each in fake.pods() if "Unschedulable" in str(each["status"])] and sum(
        rule == ("", "pods", "watch") for rule in fake.used
    )


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (None, 143, "does not exist, and began no run"),
        (PREEMPTED, 75, None),
        (replace(DONE, status=TrialStatus.CANCELLED), 130, None),
    ],
)
def test_a_job_that_somebody_deletes_ends_as_its_run(
    cli, job, cluster_, then, record, outcome, code, words
):
    def act(name):
        if outcome is not None:
            record(1, outcome, allocation=name)
        cluster_.store.delete("jobs", cluster_.get("jobs", name.rpartition("/")[2]))

    then(act)
    found, _, errors = cli("submit", job())
    assert found == code
    assert errors == "" if words is None else words in errors


def send(number):
    os.kill(os.getpid(), number)


def test_ctrl_c_deletes_the_job_and_shows_how_it_ends(cli, job, inside, zeusrun, record, later):
    fake = inside(POLITE)

    def interrupt(_):
        (found,) = tickets(zeusrun)
        record(1, PREEMPTED, allocation=found[0])
        send(signal.SIGINT)

    later(lambda: until_ready(fake), interrupt)
    code, out, errors = cli("submit", job())
    assert (code, errors) == (130, "")
    assert "is asked to stop; press Ctrl-C again to end it at once\n" in out
    assert "\nbye\n" in out
    assert (fake.store.all("jobs"), fake.pods()) == ([], [])
    trial = TinyDBHistory(zeusrun.home / "history").find("job-1-1")
    assert trial.status is TrialStatus.CANCELLED


def test_ctrl_c_twice_waits_for_nothing(cli, job, inside, later):
    fake = inside("trap 'echo asked' TERM; echo ready; while :; do sleep 0.02; done")

    def again(pod):
        send(signal.SIGINT)
        wait_for(lambda: "asked" in fake.log(pod), 20)
        send(signal.SIGINT)

    later(lambda: until_ready(fake), again)
    code, out, errors = cli("submit", job())
    assert code == 130
    assert "is asked to stop; press Ctrl-C again" in out
    assert "is deleted; its pods end within their grace period" in " ".join(errors.split())
    (going,) = fake.store.all("jobs")
    assert "deletionTimestamp" in going["metadata"]


@pytest.mark.xfail(
    strict=True,
    reason="two signals between two looks count as the second Ctrl-C: nothing is deleted, and the "
    "user reads that the job is",
)
def test_ctrl_c_twice_at_once_deletes_the_job_too(cli, job, cluster_, then):
    then(lambda _: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    code, _, errors = cli("submit", job())
    assert (code, "is deleted" in errors) == (130, True)
    assert all("deletionTimestamp" in each["metadata"] for each in cluster_.store.all("jobs"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 129)])
def test_the_job_goes_on_without_its_follower(cli, job, cluster_, then, zeusrun, number, code):
    then(lambda _: signal.raise_signal(number))
    found, _, errors = cli("submit", job())
    assert (found, "goes on without this process" in errors) == (code, True)
    (going,) = cluster_.store.all("jobs")
    assert "deletionTimestamp" not in going["metadata"]
    assert len(tickets(zeusrun)) == 1


class TestWords:
    """What ``status``, ``logs`` and ``cancel`` say of a job in each state."""

    @pytest.fixture
    def queued(self, cli, job, inside):
        def submit(script=POLITE):
            fake = inside(script)
            return fake, json.loads(cli("submit", "--detach", "--json", job())[1])["queued"]

        return submit

    def status(self, cli, monkeypatch):
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.setattr("zeusrun.launcher.schedulers._states", {})
        code, out, errors = cli("status")
        assert (code, errors) == (0, "")
        return out

    def test_of_one_that_waits(self, cli, queued, cluster_, monkeypatch):
        fake, name = queued()
        wait_for(lambda: condition_of_pod(fake), 20)
        why = f"{name} is queued (Unschedulable: {cluster_.unschedulable_message})"
        assert why in self.status(cli, monkeypatch)
        (record,) = json.loads(cli("status", "--json")[1])
        assert (record["allocation"], record["state"]) == (name, "queued")
        code, out, errors = cli("logs", name)
        assert (code, out, " ".join(errors.split())) == (0, "", f"zeusrun: {why}")
        assert cli("cancel", name)[:2] == (0, f"{name} is cancelled\n")
        assert self.status(cli, monkeypatch).startswith("nothing runs now")

    def test_of_one_that_runs(self, cli, queued, monkeypatch):
        fake, name = queued()
        wait_for(lambda: until_ready(fake), 20)
        assert f"{name} runs on node-1" in self.status(cli, monkeypatch)
        assert cli("logs", name) == (0, "ready\n", f"zeusrun: {name} runs on node-1\n")
        code, _, errors = cli("show", name)
        assert (code, f"no run has begun in {name}; `zeusrun logs {name}` shows" in errors) == (
            2,
            True,
        )
        assert json.loads(cli("cancel", "--json", "job")[1]) == {"cancelled": name}
        assert (fake.store.all("jobs"), fake.pods()) == ([], [])

    def test_of_one_that_has_ended(self, cli, queued, monkeypatch, zeusrun):
        fake, name = queued("echo one; printf 'two \\033[2J'; exit 3")
        fake.wait_for("jobs", name.rpartition("/")[2], "Failed")
        assert self.status(cli, monkeypatch).startswith("nothing runs now")
        for options in ([], ["-f"]):
            code, out, errors = cli("logs", *options, name)
            assert (code, out) == (0, "one\ntwo \n")
            assert errors.startswith(f"zeusrun: {name} is Failed (Container node ")
        assert cli("cancel", name)[0] == 2
        assert tickets(zeusrun) == []

    def test_of_one_that_is_gone(self, cli, queued, monkeypatch):
        fake, name = queued()
        fake.store.delete("jobs", fake.get("jobs", name.rpartition("/")[2]))
        assert self.status(cli, monkeypatch).startswith("nothing runs now")
        assert cli("logs", "-f", name) == (0, "", f"zeusrun: {name} does not exist\n")

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
        wait_for(lambda: until_ready(fake), 20)
        record(1, PREEMPTED, allocation=name)
        code, out, _ = cli("cancel", "job")
        assert (code, out.startswith("job-1-1 is CANCELLED: cancelled by")) == (0, True)
        assert fake.store.all("jobs") == []


def condition_of_pod(fake):
    return [each for each in fake.pods() if "Unschedulable" in str(each["status"])]


class TestOverlap:
    """Two submits of a job from this machine."""

    def test_forbid_skips_the_second_one(self, cli, job, cluster_):
        cli("submit", "--detach", job())
        code, _, errors = cli("submit", "--detach", "--overlap", "forbid", job())
        assert (code, "job is already running (kubernetes:ml/job-" in errors) == (75, True)
        assert len(cluster_.store.all("jobs")) == 1

    def test_replace_deletes_the_first_one_and_waits_for_its_end(
        self, cli, job, cluster_, zeusrun, monkeypatch
    ):
        monkeypatch.setattr("zeusrun.launcher.schedulers._KEPT_S", 0.0)
        first = NAME.search(cli("submit", "--detach", job())[1])[0]
        second = NAME.search(cli("submit", "--detach", "--overlap", "replace", job())[1])[0]
        assert [name for name, _ in tickets(zeusrun)] == [second]
        assert [each["metadata"]["name"] for each in cluster_.store.all("jobs")] == [
            second.rpartition("/")[2]
        ]
        assert first != second


class TestCronJob:
    @pytest.fixture(autouse=True)
    def checks(self, used_cluster):
        used_cluster.validate = check_strictly

    def add(self, cli, path, *options):
        return cli("schedule", "add", path, *options, "--in-cluster")

    def test_it_is_created_replaced_and_described(self, cli, job, used_cluster):
        path = job(schedule={"cron": "0 2 * * *", "tz": "Europe/Paris"})
        code, out, errors = self.add(cli, path)
        assert (code, errors) == (0, "")
        assert out == (
            "job runs at 02:00 every day (Europe/Paris) in the cluster, as CronJob job; "
            "`kubectl -n ml delete cronjob job` removes it\n"
        )
        code, out, _ = self.add(cli, path, "0 3 * * *", "--json")
        assert (code, json.loads(out)) == (0, {"cron_job": "kubernetes:ml/job"})
        (found,) = used_cluster.store.all("cronjobs")
        assert found["spec"]["schedule"] == "0 3 * * *"
        assert "nothing is scheduled" in cli("schedule", "list")[1]

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"schedule": {}}, "a cluster has no time zone of its own; set schedule.tz"),
            ({"nodes": 2}, "no CronJob can do nnodes: 2; leave out --in-cluster"),
            ({"schedule": {"tz": "UTC", "start_within": "2h"}}, "start_within and overlap: queue"),
            ({"schedule": {"tz": "UTC", "overlap": "queue"}}, "start_within and overlap: queue"),
            ({"run_on": None}, "--in-cluster is for run_on: kubernetes"),
        ],
    )
    def test_what_no_cron_job_can_do_is_refused(
        self, cli, job, zeusrun, used_cluster, changes, words
    ):
        changes = {"schedule": {"tz": "UTC"}, **changes}
        path = zeusrun.job(schedule=changes["schedule"]) if "run_on" in changes else job(**changes)
        code, _, errors = self.add(cli, path, "0 2 * * *")
        assert (code, words in " ".join(errors.split())) == (2, True)
        assert used_cluster.used == set()

    @pytest.mark.parametrize("expression", ["0 2 L * *", "0 2 * * 1#2", "0 2 * * 7"])
    def test_an_expression_that_kubernetes_does_not_know_is_refused_by_it(
        self, cli, job, expression
    ):
        code, _, errors = self.add(cli, job(schedule={"tz": "UTC"}), expression)
        assert code in {2, 5}
        assert "spec.schedule" in errors

    def test_dry_run_is_for_clusters(self, cli, job):
        code, _, errors = cli("schedule", "add", job(), "0 2 * * *", "--dry-run")
        assert (code, "--dry-run shows the CronJob of --in-cluster" in errors) == (2, True)


class TestPod:
    """``zeusrun pod``, as the manifest calls it."""

    @pytest.fixture
    def start(self, cli, job, cluster_, monkeypatch):
        """Return what runs the command with the variables of a submit, and the name of its job."""
        name = json.loads(cli("submit", "--detach", "--json", job())[1])["queued"]
        manifest = cluster_.get("jobs", name.rpartition("/")[2])
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        for each in container["env"]:
            if each["name"] in {"ZEUSRUN_JOB", "ZEUSRUN_REQUEST"}:
                monkeypatch.setenv(each["name"], each["value"].replace("$$", "$"))
        monkeypatch.setenv("ZEUSRUN_ALLOCATION", name)
        monkeypatch.setattr(verbs, "_DELIVERED_S", 0.0)
        return lambda: cli("pod"), name

    @pytest.fixture
    def runs(self, monkeypatch):
        """Run no training; note what would run."""
        seen = []

        def run(spec, request, *, emit, allocation):
            seen.append((spec.name, request.allocation, allocation.hosts))
            return {"exit_code": 4}

        monkeypatch.setattr(verbs, "run_recurrence", run)
        return seen

    def test_outside_of_a_pod_it_says_what_it_is_for(self, cli):
        code, _, errors = cli("pod")
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


def test_the_role_has_all_that_is_used_and_nothing_else(cli, job, inside, later):
    """Whole flows with one pod and with two, by a user who has that role alone."""
    fake = inside(POLITE)
    documents = {each["kind"]: each for each in yaml.safe_load_all(DEPLOY.read_text())}
    fake.rules = documents["Role"]["rules"]
    fake.runtimes["ml"] = {"zeusrun": documents["TrainingRuntime"]}
    fake.validate = check_strictly
    for nodes in (1, 2):
        later(lambda: until_ready(fake), lambda _: send(signal.SIGINT))
        assert cli("submit", job(nodes=nodes))[0] == 130
        inside("echo ready")
        detached = cli("submit", "--detach", "--json", job(nodes=nodes))
        name = json.loads(detached[1])["queued"]
        own, kind = name.rpartition("/")[2], "jobs" if nodes == 1 else "trainjobs"
        wait_for(lambda: condition(fake.get(kind, own), "Complete"), 20)  # noqa: B023 - now
        code, out, errors = cli("logs", "-f", name)
        assert (code, out, errors) == (0, "ready\n", f"zeusrun: {name} is Complete\n")
        inside(POLITE)
        assert json.loads(cli("submit", "--detach", "--json", job(nodes=nodes))[1])
        assert cli("status")[2] == ""
        assert cli("cancel", "job")[0] == 0
    for when in ("0 2 * * *", "0 3 * * *"):
        assert cli("schedule", "add", job(schedule={"tz": "UTC"}), when, "--in-cluster")[0] == 0
    delete_cron_job(fake)
    given = {
        (group, resource, verb)
        for rule in fake.rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert fake.used == given


def delete_cron_job(fake):
    """Do what the command does that ``schedule add --in-cluster`` shows."""
    from kubernetes import client, config  # 0.6 s

    api = config.new_client_from_config(os.environ["KUBECONFIG"])
    objects = client.CustomObjectsApi(api)
    objects.delete_namespaced_custom_object("batch", "v1", "ml", "cronjobs", "job")
    assert fake.store.all("cronjobs") == []

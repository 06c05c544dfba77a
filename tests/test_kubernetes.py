"""Whole submits with ``run_on: kubernetes``, on a stand-in whose pods are real processes."""

from __future__ import annotations

import copy
import json
import re
import signal
from pathlib import Path

import pytest
import yaml

from tests.fake_kubernetes import IMAGE, cluster  # noqa: F401 - a fixture
from tests.kubernetes_schemas import check
from tests.runs import only_trial, wait_for
from tests.servers import running

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy" / "kubernetes"
TRAINS = """
import json, os, sys, time, zeusrun
run = zeusrun.current()
path = run.checkpoint_dir / f"rank{run.rank}.json"
done = json.loads(path.read_text())["epoch"] if path.exists() else 0
print(f"begins after epoch {done} as user {os.getuid()}", flush=True)
for epoch in run.epochs(default=10**6, done=done):
    time.sleep(0.2)
    run.report(epoch=epoch, accuracy=0.5 if os.path.exists("/app/enough") else 0.0)
    if "forgets" not in sys.argv:
        path.with_suffix(".new").write_text(json.dumps({"epoch": epoch}))
        path.with_suffix(".new").replace(path)
print(f"ends after epoch {epoch}", flush=True)
"""


class Submits:
    """A ``zeusrun`` whose jobs a cluster runs, with a history on a server."""

    def __init__(self, zeusrun, fake, server) -> None:
        self.zeusrun, self.cluster, self.server = zeusrun, fake, server
        fake.validate = check
        config = fake.kubeconfig(zeusrun.folder / "kubeconfig")
        zeusrun.variables |= {"KUBECONFIG": str(config), "ZEUSRUN_HISTORY": server.url}
        documents = yaml.safe_load_all((DEPLOY / "zeusrun.yaml").read_text())
        by_kind = {each["kind"]: each for each in documents}
        fake.rules = by_kind["Role"]["rules"]
        fake.runtimes = {"ml": {"zeusrun": by_kind["TrainingRuntime"]}}
        self.app = zeusrun.folder / "app"
        self.app.mkdir()
        fake.image[IMAGE].mounts["/app"] = self.app
        fake.image[IMAGE].folder = "/app"

    def job(self, *args, nodes=1, home=False, **changes):
        """Write a job that trains, with checkpoints, until there is a file ``enough``."""
        for folder in (self.app, self.zeusrun.folder):
            (folder / "train.py").write_text(TRAINS)
        script = changes.pop("script", "train.py")
        section = {"image": IMAGE, "resources": {"cpu": 1, "memory": "1Gi"}}
        if nodes > 1 and not self.cluster.secrets:
            self.add_secrets()
        if nodes > 1:
            section["secrets"] = {
                "ZEUSRUN_HISTORY": "zeusrun/history",
                "ZEUSRUN_TOKEN": "zeusrun/token",
                "ZEUSRUN_JOIN_TOKEN": "zeusrun/join-token",
            }
        if home:
            section["home"] = "home"
            folder = self.zeusrun.folder / "claim"
            folder.mkdir(exist_ok=True)
            self.cluster.claims["home"] = folder
        section |= changes.pop("section", {})
        values = {"objective": {"max_epochs": 10**6}, "attempts": 1, "args": list(args), **changes}
        run_on = {"kubernetes": section}
        return self.zeusrun.job(script, run_on=run_on, launch={"nnodes": nodes}, **values)

    def add_secrets(self):
        """Add the Secret that pods in a network of their own need, and a token here."""
        url = self.cluster.network.forward(int(self.server.url.rpartition(":")[2]))
        asked = ("--job", "*", "--write", "--database-url", self.server.database_url)
        token = self.zeusrun("token", "create", *asked).stdout.split()[-1]
        self.zeusrun.variables["ZEUSRUN_TOKEN"] = token
        keys = {"history": url, "token": token, "join-token": "that-of-the-test"}
        self.cluster.secrets["ml"] = {"zeusrun": keys}

    def enough(self):
        """Let the training reach its target."""
        (self.app / "enough").touch()

    def queue(self, job, *arguments):
        """Submit with ``--detach``; return the name of the job."""
        done = self.zeusrun("submit", job, "--detach", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["queued"]

    def until_running(self, besides=()):
        """Wait until a training has saved an epoch; return the name of its pod."""

        def find():
            pods = [each for each in self.cluster.pods() if each["status"]["phase"] == "Running"]
            names = {each["metadata"]["name"] for each in pods} - {*besides}
            return next(
                (each for each in names if self.cluster.log(each).count("\n  epoch ") > 1), None
            )

        return wait_for(find, 60, "a training")

    def tickets(self):
        return json.loads(self.zeusrun("status", "--json").stdout)


@pytest.fixture
def submits(zeusrun, cluster, sqlite_url):  # noqa: F811
    with running(sqlite_url) as server:
        yield Submits(zeusrun, cluster, server)


def test_a_job_is_created_followed_and_recorded(submits):
    submits.enough()
    code, result, seen = submits.zeusrun.submit(submits.job())
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED")
    lines = seen.splitlines()
    assert re.fullmatch(
        r"· kubernetes:ml/job-[0-9a-f]{8} (is queued( .*)?|runs on node-1)", lines[0]
    )
    assert "[rank0] begins after epoch 0 as user 1000" in lines
    assert trial["allocation"] == lines[0].split()[1]
    assert trial["run_dir"].startswith("/zeusrun/home/")
    assert submits.zeusrun.history()[0]["trial"] == "job-1-1"
    (pod,) = submits.cluster.pods()
    assert submits.zeusrun("logs", "job").stdout == submits.cluster.log(pod["metadata"]["name"])


@pytest.mark.long
def test_a_template_reaches_the_pod_and_the_script(submits):
    (submits.zeusrun.folder / "pod.yaml").write_text(
        "metadata: {annotations: {example.com/owner: ada}, labels: {team: a}}\n"
        "spec: {containers: [{name: node, env: [{name: MODE, value: from-the-template}]}]}\n"
    )
    text = "import os, zeusrun\nprint('mode', os.environ['MODE'])\n"
    text += "zeusrun.current().report(epoch=1, accuracy=1.0)\n"
    for folder in (submits.app, submits.zeusrun.folder):
        (folder / "tells.py").write_text(text)
    job = submits.job(script="tells.py", section={"template": "pod.yaml"}, timeout_s=600)
    code, _, seen = submits.zeusrun.submit(job)
    assert code == 0, seen
    assert "mode from-the-template" in seen
    (pod,), (made,) = submits.cluster.pods(), submits.cluster.store.all("jobs")
    assert pod["metadata"]["annotations"]["example.com/owner"] == "ada"
    assert made["metadata"]["labels"]["team"] == pod["metadata"]["labels"]["team"] == "a"
    assert made["spec"]["activeDeadlineSeconds"] == 4 * (600 + 32 + 600)  # one attempt


@pytest.mark.long
def test_detached_it_is_shown_followed_and_cancelled(submits):
    name = submits.queue(submits.job())
    status = json.loads(submits.zeusrun("status", "--json").stdout)
    assert [(each["state"], each["allocation"]) for each in status] == [("queued", name)] or status
    follower = submits.zeusrun.start("logs", "-f", name)
    submits.until_running()
    (live,) = json.loads(submits.zeusrun("status", "--json").stdout)  # not its ticket as well
    assert (live["trial"], live["allocation"]) == ("job-1-1", name)
    cancelled = submits.zeusrun("cancel", "job")
    assert (cancelled.returncode, cancelled.stdout) == (
        0,
        "job-1-1 is CANCELLED: cancelled by 'zeusrun cancel' after it was preempted\n",
    )
    out, _ = follower.communicate(timeout=300)
    assert follower.returncode == 0
    assert "[rank0] begins after epoch 0 as user 1000" in out
    assert json.loads(submits.zeusrun("status", "--json").stdout) == []
    shown = json.loads(submits.zeusrun("show", name, "--json").stdout)
    assert shown["status"] == "CANCELLED"


@pytest.mark.long
def test_a_pending_job_says_why_it_waits_and_is_cancelled(submits):
    submits.cluster.schedulable = False
    job = submits.job()
    name = submits.queue(job)
    shown = submits.zeusrun("status", COLUMNS="200").stdout
    assert "Insufficient nvidia.com/gpu" in shown
    follower = submits.zeusrun.start("submit", job)
    wait_for(lambda: len(submits.cluster.pods()) == 2)
    assert submits.zeusrun("cancel", "job").returncode == 2  # which of the two?
    done = submits.zeusrun("cancel", name)
    assert (done.returncode, done.stdout) == (0, f"{name} is cancelled\n")
    (other,) = [each for each in submits.tickets() if each["allocation"] != name]
    assert submits.zeusrun("cancel", other["allocation"]).returncode == 0
    out, _ = follower.communicate(timeout=300)
    assert follower.returncode == 143
    assert "Insufficient nvidia.com/gpu" in out
    assert submits.tickets() == []


@pytest.mark.long
def test_ctrl_c_of_the_follower_cancels_the_run_which_saves_first(submits):
    child = submits.zeusrun.start("submit", submits.job(home=True))
    submits.until_running()
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 130
    assert "is asked to stop; press Ctrl-C again" in out
    assert out.endswith(
        "job-1-1 is CANCELLED: cancelled by 'zeusrun cancel' after it was preempted\n"
    )
    assert submits.cluster.pods() == []


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_job_goes_on_without_its_follower(submits, number):
    child = submits.zeusrun.start("submit", submits.job())
    submits.until_running()
    child.send_signal(number)
    out, _ = child.communicate(timeout=300)
    assert child.returncode == (75 if number == signal.SIGTERM else 129)
    assert "continues without this process" in out
    submits.enough()
    wait_for(lambda: submits.zeusrun.history()[0]["status"] == "REACHED")


@pytest.mark.long
def test_a_failing_script_is_not_started_again(submits):
    (submits.app / "fails.py").write_text("raise ValueError('no data')\n")
    (submits.zeusrun.folder / "fails.py").write_text("")
    code, result, seen = submits.zeusrun.submit(submits.job(script="fails.py"))
    assert (code, only_trial(result)["status"]) == (3, "FAILED")
    assert "ValueError: no data" in seen
    (job,) = submits.cluster.store.all("jobs")
    assert len(submits.cluster.pods()) == 1
    assert job["status"]["failed"] == 1


@pytest.mark.long
def test_the_exit_code_is_that_of_a_missed_target(submits):
    code, result, _ = submits.zeusrun.submit(submits.job(objective={"max_epochs": 2}))
    assert (code, only_trial(result)["status"]) == (4, "MISSED")


@pytest.mark.long
@pytest.mark.parametrize("how", ["evict", "kill"])
@pytest.mark.parametrize("home", [True, False])
def test_a_pod_that_is_lost_is_replaced(submits, how, home):
    """With a volume the same run continues; without one, a new run begins."""
    child = submits.zeusrun.start("submit", submits.job(home=home), "--json")
    pod = submits.until_running()
    getattr(submits.cluster, how)(pod)
    submits.until_running(besides=[pod])
    submits.enough()
    out, _ = child.communicate(timeout=300)
    result = json.loads(out.splitlines()[-1])
    assert child.returncode == 0, out
    last = result["trials"][-1]
    assert (last["trial"], last["preemptions"]) == (("job-1-1", 1) if home else ("job-2-1", 0))
    starts = re.findall(r"begins after epoch (\d+)", out)
    assert (int(starts[1]) > 0) == home
    if how == "evict" and not home:
        assert result["trials"][0]["status"] == "PREEMPTED"


@pytest.mark.long
def test_a_container_that_is_killed_for_memory_is_told(submits):
    child = submits.zeusrun.start("submit", submits.job())
    submits.cluster.kill_for_memory(submits.until_running())
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 137
    assert "job-1-1 did not record its end (OOMKilled)" in out


@pytest.mark.long
def test_an_image_that_cannot_be_pulled_is_told_and_can_be_cancelled(submits):
    child = submits.zeusrun.start("submit", submits.job(section={"image": "registry.example/no:1"}))
    line = child.stdout.readline()
    while "ImagePullBackOff" not in line:
        line = child.stdout.readline()
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=300)
    assert child.returncode == 130


@pytest.mark.long
def test_with_forbid_a_second_submit_is_skipped_and_with_replace_it_ends_the_first(submits):
    job = submits.job()
    submits.queue(job)
    submits.until_running()
    done = submits.zeusrun("submit", job, "--overlap", "forbid")
    assert done.returncode == 75
    assert "is already running (kubernetes:ml/job-" in done.stderr
    name = submits.queue(job, "--overlap", "replace")
    assert [each["allocation"] for each in submits.tickets()] == [name]
    submits.enough()
    wait_for(lambda: submits.zeusrun.history()[-1]["status"] == "REACHED")


@pytest.mark.long
def test_with_queue_a_submit_waits_for_the_one_before(submits):
    job = submits.job()
    refused = submits.zeusrun("submit", job, "--detach", "--overlap", "queue")
    assert refused.returncode == 2
    assert "leave out --detach" in refused.stderr
    submits.queue(job)
    second = submits.zeusrun.start("submit", job, "--overlap", "queue")
    submits.until_running()
    assert len(submits.cluster.store.all("jobs")) == 1
    submits.enough()
    out, _ = second.communicate(timeout=300)
    assert second.returncode == 0, out
    assert len(submits.cluster.store.all("jobs")) == 2


@pytest.mark.long
def test_two_nodes_make_a_train_job_and_one_record(submits):
    submits.enough()
    code, result, seen = submits.zeusrun.submit(submits.job(nodes=2))
    assert code == 0, seen
    trial = only_trial(result)
    assert (trial["status"], trial["host_count"], trial["world_size"]) == ("REACHED", 2, 2)
    name = trial["allocation"].rpartition("/")[2]
    hosts = [each[0] for each in trial["hosts"]]
    assert hosts == [f"{name}-node-0-0", f"{name}-node-0-1.{name}"]
    assert f"[{name}-node-0-1.{name} rank1] begins" in seen


@pytest.mark.long
def test_two_nodes_take_the_runtime_of_the_cluster_and_the_template(submits):
    own = copy.deepcopy(submits.cluster.runtimes["ml"].pop("zeusrun"))
    (replicated,) = own["spec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    pod |= {"priorityClassName": "training", "runtimeClassName": "nvidia"}
    submits.cluster.runtimes[""] = {"gpu": {**own, "kind": "ClusterTrainingRuntime"}}
    (submits.zeusrun.folder / "pod.yaml").write_text("metadata: {annotations: {owner: ada}}\n")
    submits.enough()
    section = {"template": "pod.yaml", "runtime": "ClusterTrainingRuntime/gpu"}
    code, result, seen = submits.zeusrun.submit(submits.job(nodes=2, section=section))
    assert code == 0, seen
    assert only_trial(result)["host_count"] == 2
    for each in submits.cluster.pods():
        assert each["spec"]["priorityClassName"] == "training"
        assert each["spec"]["runtimeClassName"] == "nvidia"
        assert each["metadata"]["annotations"]["owner"] == "ada"


@pytest.mark.long
def test_a_lost_pod_of_several_starts_all_again_and_the_run_continues(submits):
    child = submits.zeusrun.start("submit", submits.job(nodes=2, home=True), "--json")
    submits.until_running()
    pods = [each["metadata"]["name"] for each in submits.cluster.pods()]
    submits.cluster.kill(next(each for each in pods if "-node-0-1-" in each))
    submits.until_running(besides=pods)
    submits.enough()
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 0, out
    trial = json.loads(out.splitlines()[-1])["trials"][-1]
    assert (trial["trial"], trial["preemptions"]) == ("job-1-1", 1)


@pytest.mark.long
def test_several_nodes_are_cancelled_and_a_failing_rank_ends_them(submits):
    job = submits.job(nodes=2)
    submits.queue(job)
    submits.until_running()
    assert "job-1-1 is CANCELLED" in submits.zeusrun("cancel", "job").stdout
    assert submits.cluster.store.all("trainjobs") == []
    fails = "import os, sys; sys.exit(7 if os.environ['RANK'] == '1' else 0)\n"
    for folder in (submits.app, submits.zeusrun.folder):
        (folder / "fails.py").write_text(fails)
    code, result, seen = submits.zeusrun.submit(submits.job(script="fails.py", nodes=2))
    assert (code, only_trial(result)["status"]) == (3, "FAILED"), seen
    # One attempt; a controller deletes pods of a failed job that have not ended.
    assert len(submits.cluster.pods()) in {1, 2}


@pytest.mark.long
@pytest.mark.parametrize(("name", "ranks"), [("mnist", 1), ("mnist_ddp", 2)])
def test_the_examples_reach_their_target_in_pods(submits, name, ranks):
    image = submits.cluster.image["registry.example/zeusrun-train:1"] = submits.cluster.image[IMAGE]
    image.mounts["/app"] = ROOT
    submits.add_secrets()
    history = "run_on.kubernetes.secrets.ZEUSRUN_HISTORY=zeusrun/history"
    if ranks == 1:  # it shares the network of this machine
        history = f"history.url={submits.server.url}"
    job = ROOT / "jobs" / f"{name}_kubernetes.yaml"
    changes = ("--set", "history.url=null", "--set", history)
    code, result, seen = submits.zeusrun.submit(job, *changes)
    assert code == 0, seen
    assert only_trial(result)["world_size"] == ranks

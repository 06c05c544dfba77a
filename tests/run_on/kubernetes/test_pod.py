"""What a pod reads of its manifest, how it finds the others, and why its run ends."""

from __future__ import annotations

import json
import re
import signal
import socket
from dataclasses import replace

import pytest

from tests.factories import DONE, build_trial, write_job
from tests.fake_kubernetes import Image
from tests.fake_kubernetes.kubelet import environment_of
from tests.kubernetes import SECTION
from zeusrun.errors import BusyError, JobFileError, LaunchError, UsageError
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.queue.admission import Request
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.kubernetes import submit as pods
from zeusrun.run_on.kubernetes.manifest import build_manifest
from zeusrun.run_on.kubernetes.submit import (
    PodAllocation,
    _list_pods,
    _read_job,
    _wait_for_names,
)
from zeusrun.run_on.registry import is_remote
from zeusrun.trial import TrialStatus

LABEL = "batch.kubernetes.io/job-name"


@pytest.fixture
def environment(tmp_path):
    """Return the variables of the pod of a submit, as the stand-in for a kubelet makes them."""

    def make(request=Request(), *, folder=None, name="job", **changes):  # noqa: B008 - frozen
        mine = tmp_path / "mine"
        mine.mkdir(exist_ok=True)
        run_on = {"kubernetes": {**SECTION, "folder": folder}}
        path = write_job(mine, name=name, history="https://z.example", run_on=run_on, **changes)
        manifest = build_manifest(load_spec(path, request.overrides), request, "job-1a2b3")
        path.unlink()  # only its text travels
        pod = {
            "metadata": {"namespace": "ml", "name": "job-1a2b3-x", "labels": {LABEL: "job-1a2b3"}}
        }
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        return environment_of(pod, container, {}, Image())

    return make


def test_the_job_and_the_options_are_those_of_the_submit(environment, tmp_path):
    request = Request(overrides=("objective.target=0.75",), batch_size=64, why="as in job-1-1")
    spec, found = _read_job(environment(request))
    assert (spec.name, spec.objective.target) == ("job", 0.75)
    assert (found.batch_size, found.why, found.overrides) == (
        64,
        "as in job-1-1",
        request.overrides,
    )
    assert (found.allocation, found.overlap) == ("kubernetes:ml/job-1a2b3", "allow")
    assert not spec.source.exists()
    assert not list(tmp_path.rglob("job.yaml"))


def test_paths_are_relative_to_the_folder_of_the_image(environment, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").touch()
    image = tmp_path / "image"
    image.mkdir()
    (image / "own.py").touch()
    spec, _ = _read_job(environment(script="own.py", folder=str(image)))
    assert spec.script_path({}) == image / "own.py"
    monkeypatch.chdir(image)  # the working directory of the image
    spec, _ = _read_job(environment(script="own.py"))
    assert spec.script_path({}) == image / "own.py"


def test_a_script_that_is_not_in_the_image_is_told(environment, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").touch()
    image = tmp_path / "image"
    image.mkdir()
    with pytest.raises(JobFileError) as error:
        _read_job(environment(script="own.py", folder=str(image)))
    assert re.sub(r"yaml:\d+", "yaml:1", str(error.value)) == (
        f"in the image, job.yaml:1: 'script' names a file that is missing: {image}/own.py. Paths "
        f"are relative to {image} there; run_on.kubernetes.folder names another folder of the image"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"ZEUSRUN_JOB": None},
        {"ZEUSRUN_REQUEST": None},
        {"ZEUSRUN_REQUEST": "{"},
        {"ZEUSRUN_REQUEST": "[]"},
        {"ZEUSRUN_REQUEST": "{}"},
        {"ZEUSRUN_REQUEST": '{"file": 1, "folder": null}'},
        {"ZEUSRUN_REQUEST": '{"file": "job.yaml", "folder": null, "batch_size": "x"}'},
    ],
)
def test_outside_of_a_pod_it_says_what_it_is_for(environment, changes):
    given = {**environment(), **changes}
    with pytest.raises(UsageError, match="is for a pod that `zeusrun submit` has made"):
        _read_job({name: value for name, value in given.items() if value is not None})


@pytest.mark.parametrize("name", ["", "kubernetes:ml/", "kubernetes:$(ZEUSRUN_NAMESPACE)/a", "a"])
def test_a_job_without_a_name_is_refused(environment, name):
    with pytest.raises(UsageError, match="names no job of Kubernetes"):
        _read_job({**environment(), "ZEUSRUN_ALLOCATION": name})


def test_the_options_of_a_newer_version_are_left_out(environment):
    given = environment()
    record = {**json.loads(given["ZEUSRUN_REQUEST"]), "newer": 1, "file": "../../job.yaml"}
    spec, request = _read_job({**given, "ZEUSRUN_REQUEST": json.dumps(record)})
    assert (spec.source.name, request.batch_size) == ("job.yaml", None)


def test_pods_have_the_names_that_jobset_gives_them():
    name = "kubernetes:ml/job-1a2b3"
    assert _list_pods(name, 1) == (socket.gethostname(),)
    assert _list_pods(name, 3) == tuple(f"job-1a2b3-node-0-{i}.job-1a2b3" for i in range(3))


class TestNames:
    """Waiting for the addresses of other pods."""

    @pytest.fixture
    def names(self, monkeypatch):
        """Resolve names after so many questions; return what was asked."""
        asked, known = [], {}

        def resolve(name, _):
            asked.append(name)
            if asked.count(name) <= known.get(name, 10**9):
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return []

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        monkeypatch.setattr(pods, "_POLL_S", 0.001)
        return asked, known

    def test_one_that_appears_later_is_waited_for(self, names):
        asked, known = names
        known |= {"a": 0, "b": 2, "c": 1}
        _wait_for_names("job", ["a", "b", "c"], [])
        assert asked == ["a", "b", "b", "b", "c", "c"]

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
    def test_a_signal_ends_it(self, names, monkeypatch, number, code):
        received = []
        monkeypatch.setattr(pods.time, "sleep", lambda _: received.append(number))
        with pytest.raises(BusyError, match=f"ended by {number.name} before it began") as ended:
            _wait_for_names("job", ["a"], received)
        assert ended.value.exit_code == code
        assert names[0] == ["a"]

    def test_one_that_never_appears_is_told(self, names, monkeypatch):
        now = iter(range(0, 10**6, 700))
        monkeypatch.setattr(pods.time, "monotonic", lambda: float(next(now)))
        with pytest.raises(LaunchError, match=r"the pod a has no address: .*not known"):
            _wait_for_names("job", ["a"], [])
        assert 1 < len(names[0]) < 9


class TestAllocation:
    """A job of Kubernetes, seen from inside."""

    ALLOCATION = PodAllocation("kubernetes:ml/job-1a2b3", ("a", "b"), keeps_files=False)
    LOST = replace(DONE, status=TrialStatus.FAILED, reason_code=ReasonCode.HOST_LOST)

    def test_nothing_limits_it_and_nobody_else_signals_it(self):
        found = self.ALLOCATION
        assert (found.time_left_s(), found.find_cause(), found.check_sentinel()) == (None,) * 3
        assert is_remote(found.name)

    def test_a_run_whose_pod_is_lost_goes_on_if_it_has_saved(self):
        judged = self.ALLOCATION.judge(build_trial(), self.LOST, saved=True)
        assert (judged.status, judged.reason_code) == (
            *(TrialStatus.PREEMPTED, ReasonCode.PREEMPTED),
        )
        assert self.ALLOCATION.judge(build_trial(), self.LOST, saved=False) == self.LOST

    def test_any_other_end_is_left_as_it_is(self):
        assert self.ALLOCATION.judge(build_trial(), DONE, saved=True) == DONE

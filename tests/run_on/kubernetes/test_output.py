"""What a follower reads of the pods of a job: each line once, whatever happens to connections."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import pytest

from tests.kubernetes import Answers, build_job
from tests.runs import wait_for
from zeusrun.errors import LaunchError, UsageError
from zeusrun.run_on.kubernetes import output
from zeusrun.run_on.kubernetes.client import (
    GONE,
    ApiError,
    KubernetesJob,
    Pod,
    cancel_job,
    create_job,
)
from zeusrun.run_on.kubernetes.output import PodOutput

NAME = "kubernetes:ml/a"
POD, NEW = Pod("a-x", "1", "node-1", begun=True), Pod("a-y", "2", "node-1", begun=True)
WAITS = Pod("a-x", "1", cause="ContainerCreating")
RUNS, GOES_ON = KubernetesJob("RUNNING", pod=POD), KubernetesJob("RUNNING", pod=NEW)
DONE = KubernetesJob("Complete", pod=POD)
AT = "2025-06-01T12:00:"


class Told:
    """What the client answers: the next state each time, and the logs that go with it.

    Attributes:
        asked: For each log, the pod, the seconds, and whether it was followed.
        reads: How often the job was read.
    """

    def __init__(self, steps) -> None:
        self.steps, self.last = list(steps), None
        self.asked, self.reads = [], 0

    def read_job(self, _):
        self.reads += 1
        if self.steps:
            self.last = self.steps.pop(0)
        if isinstance(self.last, Exception):
            raise self.last
        if isinstance(self.last, KubernetesJob):
            self.last = self.last, []
        return self.last[0]

    def follow_log(self, _, pod, since_s, *, follow):
        self.asked.append((pod.name, since_s, follow))
        for each in self.last[1]:
            if isinstance(each, Exception):
                raise each
            yield each


@pytest.fixture
def told(monkeypatch, hasty):
    def tell(*steps):
        told = Told(steps)
        for name in ("read_job", "follow_log"):
            monkeypatch.setattr(output, name, getattr(told, name))
        return told

    return tell


def at(seconds, text):
    return f"{AT}{seconds}Z", text


def read_all(source):
    """Return all lines, once nothing more comes."""
    with source:
        wait_for(source.has_ended, 20, "the end of the output")
        return source.read_lines(final=True)


ONE, TWO, THREE = at("01.5", "one"), at("01.75", "two"), at("02", "three")
SAME = [at("03.1", "a"), at("03.1", "a"), at("03.1", "b")]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([[ONE, TWO], [ONE, TWO, THREE]], "one two three"),
        ([[ONE], [TWO], [TWO, THREE]], "one two three"),
        ([[ONE, TWO], [], [TWO, THREE]], "one two three"),
        ([[ONE, TWO], [TWO], [TWO], [TWO]], "one two"),
        ([SAME[:1], SAME], "a a b"),
        ([SAME[:2], SAME, SAME], "a a b"),
        ([SAME[:2], SAME[:1], SAME], "a a b"),
        ([[ONE, *SAME[:2]], [*SAME, at("03.11", "c")]], "one a a b c"),
        ([[at("04", "a")], [at("04", "a"), at("04.000000001", "b")]], "a b"),
        ([[at("04.12", "a")], [at("04.120000000", "a"), at("04.1200", "b")]], "a b"),
        ([[at("04.9", "a")], [at("04.10", "old"), at("04.95", "b")]], "a b"),
        ([[], [], []], ""),
    ],
)
def test_lines_come_once_over_reconnects(told, logs, expected):
    told(*[(RUNS, log) for log in logs], (DONE, logs[-1]))
    assert " ".join(read_all(PodOutput(NAME))) == expected


def test_a_log_is_opened_again_from_its_last_line_on(told):
    asked = told((RUNS, []), (RUNS, [ONE]), (RUNS, []), DONE).asked
    read_all(PodOutput(NAME))
    since = [since_s for _, since_s, _ in asked]
    assert since[:2] == [None, None]
    age_s = time.time() - datetime.fromisoformat(f"{AT}01+00:00").timestamp()
    assert all(age_s + 280 < seconds < age_s + 320 for seconds in since[2:])  # clocks may differ
    assert all(follow for _, _, follow in asked)


def test_an_error_within_a_log_loses_and_repeats_nothing(told):
    cut, gone = ApiError(None, "no response"), ApiError(404, 'pods "a-x" not found')
    told((RUNS, [ONE, cut]), cut, (RUNS, [ONE, TWO]), (RUNS, [gone]), (DONE, [TWO, THREE]))
    source = PodOutput(NAME)
    assert read_all(source) == ["one", "two", "three"]
    assert source.error is None


def test_the_lines_of_two_pods_follow_each_other(told):
    """The clock of the second node is behind that of the first."""
    replaced = KubernetesJob("QUEUED", pod=Pod("a-y", "2", cause="ContainerCreating"))
    early = [at("00.1", "four"), at("01.5", "five")]
    asked = told((RUNS, [ONE, TWO]), replaced, (GOES_ON, early), (GOES_ON, early), DONE_NEW).asked
    assert read_all(PodOutput(NAME)) == ["one", "two", "four", "five"]
    assert [(pod, since is None) for pod, since, _ in asked] == [
        *[("a-x", True), ("a-y", True), ("a-y", False), ("a-y", False)]
    ]


DONE_NEW = KubernetesJob("Failed", pod=NEW)


def test_a_job_that_is_deleted_meanwhile_ends_the_output(told):
    told((RUNS, [ONE]), KubernetesJob(GONE))
    source = PodOutput(NAME)
    assert read_all(source) == ["one"]
    assert source.read_job() == KubernetesJob(GONE)


@pytest.mark.parametrize("job", [RUNS, DONE])
def test_without_following_what_is_there_is_read_once(told, job):
    asked = told((job, [ONE, TWO])).asked
    assert read_all(PodOutput(NAME, follow=False)) == ["one", "two"]
    assert asked == [("a-x", None, False)]


@pytest.mark.parametrize(
    "job", [KubernetesJob("QUEUED"), KubernetesJob("QUEUED", pod=WAITS), KubernetesJob(GONE)]
)
def test_without_following_a_job_that_has_not_begun_has_no_lines(told, job):
    asked = told(job).asked
    source = PodOutput(NAME, follow=False)
    assert read_all(source) == []
    assert (source.read_job(), asked) == (job, [])


@pytest.mark.parametrize("code", [401, 403])
def test_who_has_no_rights_is_told_so_at_once(told, code):
    told(ApiError(code, "forbidden"))
    with pytest.raises(ApiError, match="forbidden"):
        read_all(PodOutput(NAME))


@pytest.mark.parametrize("follow", [True, False])
def test_who_may_not_read_logs_is_told_so(told, follow):
    told((RUNS, [ApiError(403, "cannot get pods/log")]))
    with pytest.raises(ApiError, match="cannot get pods/log"):
        read_all(PodOutput(NAME, follow=follow))


def test_a_server_that_never_responds_is_an_error_at_the_end_alone(told):
    told(ApiError(None, "no response"))
    with PodOutput(NAME) as source:
        assert (source.read_lines(), source.read_job(), source.has_ended()) == ([], None, False)
        with pytest.raises(LaunchError, match="no response"):
            source.read_lines(final=True)


def test_it_goes_on_once_the_server_responds_again(told):
    told(*[ApiError(None, "no response")] * 3, ApiError(500, "x"), (DONE, [ONE]))
    assert read_all(PodOutput(NAME)) == ["one"]


def test_a_log_that_ends_before_its_pod_is_opened_again_with_pauses(told, monkeypatch):
    monkeypatch.setattr(output, "_AGAIN_S", 0.1)
    found = told((RUNS, [ONE]))
    with PodOutput(NAME):
        time.sleep(0.3)
    assert found.reads < 10


def test_closing_it_early_ends_its_thread(told):
    before = threading.active_count()
    told((RUNS, [ONE]))
    with PodOutput(NAME) as source:
        wait_for(lambda: source.read_lines() == ["one"])
    assert source.has_ended()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_missing_package_is_told(told, monkeypatch):
    told(UsageError("run_on: kubernetes needs kubernetes"))
    monkeypatch.setattr(output, "_ANSWER_S", 0.1)
    with pytest.raises(UsageError, match="needs kubernetes"):
        read_all(PodOutput(NAME))


def test_no_line_is_lost_when_the_clocks_of_a_node_change(told):
    """Kubelets write local times with their offset: after 3:00 of summer time comes 2:00."""
    summer = ("2025-10-26T02:59:59.9+02:00", "one")
    winter = ("2025-10-26T02:00:00.1+01:00", "two")
    told((RUNS, [summer]), (DONE, [summer, winter]))
    assert read_all(PodOutput(NAME)) == ["one", "two"]


WHOLE = f"{AT}01.100Z one\n{AT}01.200Z two\n{AT}01.300Z three\n"


class TestConnections:
    """A server whose connections end."""

    @pytest.fixture
    def log(self, answers: Answers, hasty):
        """Say what each request for the log gets: parts of it, and whether it is cut."""
        status = {
            "containerStatuses": [{"name": "node", "state": {"running": {"startedAt": f"{AT}00Z"}}}]
        }
        metadata = {"name": "a-x", "uid": "1", "creationTimestamp": f"{AT}00Z"}
        pods = {"items": [{"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}]}
        answers.put("/pods", pods)
        find, running = answers.find, {"metadata": {}, "status": {}}
        answers.put("/jobs/a", running)

        def say(*parts):
            left = list(parts)

            def look(verb, path):
                if not path.endswith("/log"):
                    return find(verb, path)
                if len(left) == 1:
                    ended = [{"type": "Complete", "status": "True"}]
                    answers.put("/jobs/a", {**running, "status": {"conditions": ended}})
                text, cut = left.pop(0) if left else parts[-1]
                return 200, [text.encode()] if text else [], cut

            answers.find = look

        return say

    @pytest.mark.parametrize(
        "length",
        [
            *(0, 29, 40),
            pytest.param(
                10,
            ),
            pytest.param(
                27,
            ),
            pytest.param(
                56,
            ),
        ],
    )
    def test_a_line_that_is_cut_off_comes_once_and_whole(self, log, length):
        log((WHOLE[:length], True), (WHOLE, False), (WHOLE, False))
        assert read_all(PodOutput(NAME)) == ["one", "two", "three"]

    def test_the_last_line_may_have_no_end(self, log):
        log((WHOLE[:-1], False), (WHOLE[:-1], False))
        assert read_all(PodOutput(NAME)) == ["one", "two", "three"]

    def test_bytes_that_are_no_text_are_replaced(self, log, answers):
        log(("", False))
        find = answers.find

        def look(verb, path):
            code, parts, cut = find(verb, path)
            return (
                code,
                [f"{AT}01Z ".encode() + b"a\xffb\n"] if path.endswith("log") else parts,
                cut,
            )

        answers.find = look
        assert read_all(PodOutput(NAME)) == ["a\ufffdb"]


class TestStandIn:
    """The same in a cluster."""

    @pytest.fixture
    def follow(self, used_cluster, hasty):
        def start(script, **spec):
            return PodOutput(create_job(build_job(script, "a", **spec)))

        return start

    def test_from_the_queue_to_the_end(self, used_cluster, follow):
        used_cluster.schedulable = False
        with follow("echo one; sleep 0.1; echo two") as source:
            wait_for(lambda: "Insufficient" in (source.read_job().cause or ""))
            used_cluster.schedulable = True
            wait_for(source.has_ended)
        assert source.read_lines(final=True) == ["one", "two"]
        assert (source.job.state, source.job.pod.exit_code) == ("Complete", 0)

    def test_a_pod_that_is_silent(self, follow):
        with follow("echo one; sleep 0.7; echo two") as source:
            wait_for(source.has_ended)
        assert source.read_lines(final=True) == ["one", "two"]

    def test_connections_that_are_dropped(self, used_cluster, follow):
        script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.05; done"
        with follow(script) as source:
            lines = []
            for _ in range(3):
                before = len(lines)
                wait_for(
                    lambda n=before: (
                        lines.extend(source.read_lines()) or len(lines) > n or source.has_ended()
                    )
                )
                used_cluster.drop_connections()
            wait_for(source.has_ended)
        assert [*lines, *source.read_lines(final=True)] == list("123456")

    def test_two_pods_and_an_end(self, used_cluster, follow):
        script = "trap 'echo bye; exit 75' TERM; hostname; while :; do sleep 0.02; done"
        lines = []

        def await_pod(number):
            def look():
                lines.extend(source.read_lines())
                names = [each for each in lines if each != "bye"]
                return len(names) == number and names[-1]

            return wait_for(look)

        with follow(script) as source:
            for number in (1, 2):
                used_cluster.evict(await_pod(number))
            await_pod(3)
            cancel_job(source.name)
            wait_for(source.has_ended)
        lines += source.read_lines(final=True)
        pods = used_cluster.ran()
        assert [each for each in lines if each != "bye"] == pods
        assert len(pods) == 3
        assert source.job == KubernetesJob(GONE)

"""How a submit waits for others, is replaced, and takes its GPUs."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.factories import begin, build_trial, load_job
from tests.history.memory import MemoryHistory
from zeusrun.errors import BusyError, ExitCode
from zeusrun.launcher.queue import admission
from zeusrun.launcher.queue.admission import GpuWish, Queue, Request, check_not_ended, read_wish
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.rundir.layout import Live, create_run, read_cancel, write_live
from zeusrun.reasons import ReasonCode


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGINT, signal.SIGTERM], ExitCode.SIGNAL_BASE + signal.SIGINT),
        ([signal.SIGTERM], ExitCode.BUSY),  # of a scheduler
    ],
)
def test_a_signal_before_the_begin_is_named_and_has_its_exit_code(signals, code):
    check_not_ended("job", [])
    with pytest.raises(BusyError, match=f"^job: ended by {signals[0].name} before it began") as end:
        check_not_ended("job", signals)
    assert end.value.exit_code == code


@pytest.fixture
def queue(tmp_path, monkeypatch):
    shown = []
    queue = Queue("job", tmp_path, MemoryHistory(), None, [], shown.append)
    queue.shown = shown
    monkeypatch.setattr(admission.time, "sleep", lambda _s: queue.step())
    queue.step = lambda: pytest.fail("it waits")
    return queue


@pytest.fixture
def take(tmp_path):
    """Take a ticket of another submit, which is released at the end."""
    taken = []

    def take(job="job", state="running", **values):
        with Tickets(tmp_path) as tickets:
            taken.append(tickets.take(job, state, **values))
        return taken[-1]

    yield take
    for held in taken:
        held.release()


@pytest.mark.parametrize(
    ("overlap", "others", "state"),
    [
        ("allow", ["running"], "running"),
        ("forbid", [], "running"),
        ("forbid", ["running"], "already running .*; this run is skipped"),
        ("queue", ["running"], "waiting"),
        ("queue", ["running", "waiting"], "and another run waits for its end; this run is skipped"),
        ("replace", ["running"], "waiting"),
        ("replace", ["running", "waiting"], "waiting"),
    ],
)
def test_a_ticket_waits_or_is_refused_if_its_job_runs(queue, take, overlap, others, state):
    take("other")
    for each in others:
        take(state=each)
    if "skipped" in state:
        with pytest.raises(BusyError, match=state):
            queue.take_ticket(overlap, ())
        return
    held = queue.take_ticket(overlap, ("GPU-1",))
    ticket = held.ticket
    held.release()
    assert (ticket.state, ticket.gpus, ticket.replaces) == (
        *(state, ("GPU-1",), overlap == "replace"),
    )


def test_a_submit_waits_for_older_ones_of_its_job_and_says_so_once(queue, take):
    older, _ = take(), take("other")
    held, _ = take(state="waiting"), take()
    steps = iter([lambda: None, older.release])
    queue.step = lambda: next(steps)()  # noqa: PLW0108 - another one each time
    queue.wait_for_turn(held, "queue")
    (shown,) = queue.shown
    assert shown.startswith("job is already running (process ")
    assert shown.endswith("; waiting for its end")
    queue.wait_for_turn(take(), "queue")  # it runs already


def test_a_submit_gives_up_for_a_signal_or_after_its_deadline(queue, take, monkeypatch):
    older, held = take(), take(state="waiting")
    queue.signals = [signal.SIGINT]
    with pytest.raises(BusyError, match="ended by SIGINT"):
        queue.wait_for_turn(held, "queue")
    queue.signals, queue.until = [], 10.0
    clock = iter([10.0, 10.1])
    monkeypatch.setattr(admission, "read_clock", lambda: next(clock))
    queue.step = lambda: None
    with pytest.raises(BusyError, match="its deadline has passed; this run is skipped"):
        queue.wait_for_turn(held, "queue")
    assert len(queue.shown) == 1
    older.release()


def test_a_submit_gives_up_for_a_newer_one_that_replaces_it(queue, take):
    take("job", "waiting", replaces=True)
    held = take(state="waiting")
    take("other", "waiting", replaces=True)
    take(state="waiting")
    assert [each.number for each in queue.find_earlier(held.ticket)] == [1]
    take(state="waiting", replaces=True)
    with pytest.raises(BusyError, match="this run is replaced by a newer one"):
        queue.find_earlier(held.ticket)


def test_a_submit_that_replaces_others_asks_for_the_end_of_what_they_run(queue, take, tmp_path):
    older = take()
    held = take(state="waiting", replaces=True)
    runs = []
    for number, pid in ((1, older.ticket.pid), (2, older.ticket.pid + 1)):
        paths = create_run(tmp_path, "job", f"job-{number}-1")
        trial = build_trial(number, run_dir=str(paths.run_dir))
        begin(queue.history, trial)
        write_live(paths, Live(trial, pid, "host", "2026-01-01T00:00:00Z"))
        runs.append(paths)
    begin(queue.history, build_trial(3, run_dir="elsewhere"))
    queue.step = older.release
    queue.wait_for_turn(held, "replace")
    why = ReasonCode.REPLACED, "a newer run of the job took its place"
    assert [read_cancel(paths) for paths in runs] == [(1, *why), None]
    assert queue.shown[0].startswith("job is already running (job-1-1 since ")
    assert queue.shown[0].endswith("; zeusrun stops it and waits for its end")


def test_gpus_that_are_taken_are_waited_for_only_if_the_user_wants_to(queue, take):
    other, wish = take("other", gpus=("GPU-1",)), GpuWish(("GPU-1", "GPU-2"))
    held, _ = take(gpus=wish.pool), take("third", gpus=("GPU-3",), replaces=True)
    with pytest.raises(
        BusyError,
        match=r"its GPUs are taken by process \d+ of other since \S+ \S+; `zeusrun submit --wait`",
    ):
        queue.take_gpus(held, wish, wait=False)
    assert held.ticket.state == "running"
    other.write(holds=True)
    with pytest.raises(BusyError, match="2 of 2 GPUs are not free: process"):
        queue.take_gpus(held, GpuWish(wish.pool, 2), wait=False)
    seen = []
    queue.step = lambda: seen.append((held.ticket.state, held.ticket.gpus)) or other.release()
    assert queue.take_gpus(held, wish, wait=True) == wish.pool
    assert seen == [("waiting", wish.pool)]
    ticket = held.ticket
    assert (ticket.state, ticket.gpus, ticket.holds, ticket.on_cpu) == (
        *("running", wish.pool, True, False),
    )
    (shown,) = queue.shown
    assert shown.endswith("; waiting for them")


@pytest.mark.parametrize(
    ("wish", "on_cpu"),
    [(GpuWish(), True), (GpuWish(shares=True), False), (GpuWish(("GPU-1",)), False)],
)
def test_a_ticket_says_whether_its_run_is_on_the_cpu(queue, take, wish, on_cpu):
    held = take()
    queue.take_gpus(held, wish, wait=False)
    assert held.ticket.on_cpu is on_cpu


@pytest.mark.parametrize(
    ("launch", "changes", "asked", "wish"),
    [
        ({"nproc_per_node": "cpu"}, {}, [], GpuWish()),
        ({"gpus": "shared", "nproc_per_node": 2}, {}, [], GpuWish(shares=True)),
        ({"nproc_per_node": 2}, {}, [2], GpuWish(("a", "b"))),
        ({"nproc_per_node": "gpu"}, {}, [None], GpuWish(("a", "b", "c"))),
        ({"nproc_per_node": 2, "gpus": "auto"}, {}, [None], GpuWish(("a", "b", "c"), 2)),
        ({"nproc_per_node": 9, "gpus": "auto"}, {}, [None], GpuWish(("a", "b", "c"), 3)),
        ({"nproc_per_node": 1}, {"most_ranks": 2}, [2], GpuWish(("a", "b"))),
        ({"nproc_per_node": 2}, {"run_on": "hosts"}, [None], GpuWish(("a", "b", "c"))),
    ],
)
def test_the_gpus_that_a_job_wants_are_those_of_its_ranks(
    monkeypatch, launch, changes, asked, wish
):
    counts, closed = [], []

    def gpus_of_job(_environment, count):
        counts.append(count)
        names = ("a", "b", "c")[:count]
        return [SimpleNamespace(uuid=n, close=lambda n=n: closed.append(n)) for n in names]

    monkeypatch.setattr(admission, "gpus_of_job", gpus_of_job)
    spec = {
        "launch": SimpleNamespace(**{"gpus": "own", **launch}),
        "most_ranks": None,
        "run_on": None,
    }
    assert read_wish(SimpleNamespace(**{**spec, **changes}), {}) == wish
    assert (counts, tuple(closed)) == (asked, wish.pool)


@pytest.mark.parametrize("count", [None, 1])
def test_a_submit_has_its_gpus_and_its_ticket_while_it_runs(
    queue, take, tmp_path, monkeypatch, count
):
    wish, wanted, older = GpuWish(("GPU-1", "GPU-2"), count), [], take()
    monkeypatch.setattr(admission, "read_wish", lambda *_: wish)
    present = Tickets(tmp_path).present
    queue.step = lambda: wanted.append(present()[-1].gpus) or older.release()
    job = load_job(tmp_path), tmp_path, queue.history
    given = {"signals": [], "show": queue.show, "request": Request(overlap="queue")}
    with admission.admitted(*job, **given) as gpus:
        (ticket,) = present()
    assert (gpus, wanted) == ((None, [wish.pool]) if count is None else (("GPU-1",), [()]))
    assert (ticket.gpus, ticket.holds, present()) == (wish.pool[:count], True, [])
    with admission.admitted(*job, **given, ticket=(own := take())):
        pass
    assert present() == [own.ticket]  # whose holder releases it


def test_submits_in_a_scheduler_are_ended_once_by_what_replaces_them(queue, take, monkeypatch):
    ended = []
    monkeypatch.setattr(admission, "interrupt_job", lambda job: ended.append(f"interrupt {job}"))
    monkeypatch.setattr(admission, "cancel_job", lambda job: ended.append(f"cancel {job}"))
    older, held = take(allocation="slurm:1"), take(state="waiting", replaces=True)
    steps = [older.release, list]
    queue.step = lambda: steps.pop()()  # noqa: PLW0108 - another one each time
    queue.wait_for_turn(held, "replace")
    assert queue.shown[0].startswith("job is already running (slurm:1 since ")
    queued = replace(older.ticket, state="queued", allocation="slurm:2")
    admission.end_allocated([queued, held.ticket])
    assert ended == ["interrupt slurm:1", "cancel slurm:2"]

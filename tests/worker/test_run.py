"""``zeusrun.current()``: what a script is told, what it tells, and when it is told to stop."""

from __future__ import annotations

import math
import os
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent

import pytest

import zeusrun
from tests.worker.rank import Rank
from zeusrun.metrics.base import SidecarReader
from zeusrun.sidecar.events import Asked, Reported
from zeusrun.worker.environment import WorkerEnvironment
from zeusrun.worker.run import Run


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path / "run")


@pytest.fixture
def current(rank):
    """Build the ``Run`` of a rank that has a SIGTERM handler: then zeusrun installs none here."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    built = []

    def build(**changes):
        built.append(Run(WorkerEnvironment(rank.environment(**changes))))
        return built[-1]

    yield build
    signal.signal(signal.SIGTERM, before)
    for run in built:
        if run._environment._writer is not None:
            run._environment._writer.close()


def reports(rank):
    events = SidecarReader(rank.run_dir / "metrics.jsonl").read(final=True)
    return [event for event in events if event != Asked(event.t, "stop")]


def test_outside_zeusrun_it_returns_the_defaults_and_reports_to_nobody(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(WorkerEnvironment({}))
    assert not run.active
    assert (run.rank, run.world_size, run.job, run.trial) == (0, 1, None, None)
    assert run.checkpoint_dir is None
    assert run.local_batch_size(default=48) == 48
    assert run.global_batch_size(default=96) == 96
    assert run.learning_rate(default=0.3) == 0.3
    assert list(run.epochs(default=3)) == [1, 2, 3]
    assert not run.should_stop()
    run.report(epoch=1, accuracy=0.5)
    assert list(tmp_path.iterdir()) == []


def test_outside_zeusrun_torchruns_ranks_are_known():
    run = Run(WorkerEnvironment({"RANK": "3", "WORLD_SIZE": "4"}))
    assert (run.active, run.rank, run.world_size) == (False, 3, 4)


def test_outside_zeusrun_sigterm_ends_the_script_as_ever():
    before = signal.getsignal(signal.SIGTERM)
    list(Run(WorkerEnvironment({})).epochs(default=2))
    assert signal.getsignal(signal.SIGTERM) is before


def test_micro_batches_are_the_launchers_and_count_as_asking_for_the_batch_size(current, rank):
    outside = Run(WorkerEnvironment({}))
    assert (outside.micro_batch_size(default=12), outside.accumulation_steps()) == (12, 1)
    run = current(ZEUSRUN_MICRO_BATCH_SIZE="4", ZEUSRUN_ACCUMULATION_STEPS="2")
    assert (run.micro_batch_size(default=12), run.accumulation_steps()) == (4, 2)
    assert [event.choice for event in rank.events if isinstance(event, Asked)] == ["batch_size"]


def test_inside_it_tells_what_the_launcher_chose(current, rank):
    run = current(WORLD_SIZE="4", RANK="2", ZEUSRUN_LEARNING_RATE="0.25")
    assert run.active
    assert (run.rank, run.world_size, run.job, run.trial) == (2, 4, "job", "job-1-1")
    assert run.local_batch_size(default=1) == 8
    assert run.global_batch_size(default=1) == 32
    assert run.learning_rate(default=1.0) == 0.25
    assert run.checkpoint_dir == rank.run_dir / "checkpoints"


def test_a_job_without_learning_rates_leaves_it_to_the_script(current):
    assert current().learning_rate(default=0.7) == 0.7


def test_current_is_one_run_for_the_whole_process():
    assert zeusrun.current() is zeusrun.current()


def test_epochs_end_at_the_jobs_maximum_whatever_the_scripts_default(current):
    assert list(current(ZEUSRUN_MAX_EPOCHS="4").epochs(default=100)) == [1, 2, 3, 4]


@pytest.mark.parametrize("inside", [True, False])
def test_epochs_within_an_epoch_count_by_themselves(current, inside):
    """A probe or a cross-validation fold has such steps."""
    run = current() if inside else Run(WorkerEnvironment({}))
    passes = [(outer, inner) for outer in run.epochs(5) for inner in run.epochs(3)]
    inner = 5 if inside else 3
    assert passes == [(n, m) for n in range(1, 6) for m in range(1, inner + 1)]


def test_epochs_end_after_the_one_that_reached_the_target(current):
    run, seen = current(), []
    for epoch in run.epochs(default=5):
        seen.append(epoch)
        run.report(accuracy=0.25 * epoch)
    assert seen == [1, 2]


def test_a_metric_to_be_minimised_reaches_its_target_from_above(current):
    run, seen = current(ZEUSRUN_MODE="min", ZEUSRUN_TARGET="1.0"), []
    for epoch in run.epochs(default=5):
        seen.append(epoch)
        run.report(accuracy=4.0 - epoch)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "metrics", [{"accuracy": math.nan}, {"accuracy": 0.49}, {"loss": 1.0}, {}], ids=str
)
def test_epochs_go_on_while_the_target_is_not_reached(current, metrics):
    run = current()
    for _ in run.epochs(default=5):
        run.report(**metrics)
    assert run._environment.epoch == 5


def test_on_target_continue_trains_on(current):
    run = current(ZEUSRUN_ON_TARGET="continue")
    for _ in run.epochs(default=5):
        run.report(accuracy=1.0)
    assert run._environment.epoch == 5


def test_epochs_end_once_the_stop_file_is_there(current, rank):
    run, seen = current(), []
    for epoch in run.epochs(default=5):
        seen.append(epoch)
        if epoch == 3:
            (rank.run_dir / "stop").touch()
    assert seen == [1, 2, 3]
    assert run.should_stop()


def test_no_epoch_begins_when_the_stop_came_before(current, rank):
    (rank.run_dir / "stop").touch()
    assert list(current().epochs(default=5)) == []


def test_a_report_carries_epoch_metrics_and_a_monotonic_second(current, rank):
    run = current()
    run.report(epoch=7, accuracy=0.25, loss=2)
    (event,) = reports(rank)
    assert isinstance(event, Reported)
    assert (event.epoch, event.metrics) == (7, {"accuracy": 0.25, "loss": 2.0})
    assert event.t > 0


def test_a_report_without_an_epoch_is_of_the_current_one(current, rank):
    run = current(ZEUSRUN_MAX_EPOCHS="2")
    for _ in run.epochs(default=1):
        run.report(accuracy=0.1)
    assert [event.epoch for event in reports(rank)] == [1, 2]


def test_a_report_without_an_epoch_in_a_loop_of_ones_own_counts_the_reports(current, rank):
    run = current()
    for accuracy in (0.1, 0.2, 0.3):
        run.report(accuracy=accuracy)
    assert [event.epoch for event in reports(rank)] == [1, 2, 3]


def test_what_could_not_be_written_is_written_with_the_next_report(current, rank):
    sidecar = rank.run_dir / "metrics.jsonl"
    sidecar.mkdir()
    run = current()
    with pytest.warns(UserWarning, match="yet"):
        run.report(epoch=1, accuracy=0.1)
    sidecar.rmdir()
    run.report(epoch=2, accuracy=0.2)
    assert [event.epoch for event in reports(rank)] == [1, 2]


def test_loggers_may_report_from_threads_of_their_own(current, rank):
    environment = current()._environment
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: environment.report(Reported(1.0, i, {"loss": 1.0})), range(800)))
    assert sorted(event.epoch for event in reports(rank)) == list(range(800))


def test_only_rank_0_writes(current, rank):
    current(RANK="1").report(epoch=1, accuracy=0.1)
    assert not (rank.run_dir / "metrics.jsonl").exists()


def test_a_nan_is_reported_as_such(current, rank):
    current().report(epoch=1, accuracy=math.nan)
    (event,) = reports(rank)
    assert math.isnan(event.metrics["accuracy"])


def test_what_float_takes_is_a_metric(current, rank):
    numpy = pytest.importorskip("numpy")
    current().report(epoch=numpy.int64(2), a=numpy.float32(0.5), b=numpy.array([1]).sum(), c=True)
    (event,) = reports(rank)
    assert (event.epoch, event.metrics) == (2, {"a": 0.5, "b": 1.0, "c": 1.0})


@pytest.mark.parametrize(
    "value",
    [None, [0.5], {"a": 1}, 1j, object(), "0.9", b"1"],
    ids=["None", "list", "dict", "complex", "object", "text", "bytes"],
)
def test_what_is_no_number_is_a_type_error_on_rank_0_alone(current, rank, value):
    with pytest.raises(TypeError):
        current().report(epoch=1, accuracy=value)
    current(RANK="1").report(epoch=1, accuracy=value)  # it need not have computed a metric
    assert not (rank.run_dir / "metrics.jsonl").exists()


def test_outside_zeusrun_nothing_is_converted():
    Run(WorkerEnvironment({})).report(accuracy=None)


def test_a_full_disk_is_a_warning_and_the_target_still_ends_the_training(current):
    run = current(ZEUSRUN_SIDECAR="/dev/full")
    for epoch in run.epochs(default=5):
        with pytest.warns(UserWarning, match="could not record the metrics.*space") as caught:
            run.report(accuracy=0.25 * epoch)
    assert run._environment.epoch == 2
    assert caught[0].filename == __file__


def test_a_sidecar_that_cannot_be_opened_is_a_warning(current, tmp_path):
    run = current(ZEUSRUN_SIDECAR=str(tmp_path / "no" / "folder"))
    with pytest.warns(UserWarning, match="could not record the metrics"):
        run.report(epoch=1, accuracy=0.1)


def test_a_report_imports_no_torch_and_warns_of_nothing(current, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = current()
        for _ in run.epochs(default=2):
            run.report(accuracy=0.1)
    assert "torch" not in sys.modules


def run_script(rank, tmp_path, text, grace="30"):
    script = tmp_path / "script.py"
    script.write_text(dedent(text))
    return rank.run(script, TORCH_ELASTIC_SHUTDOWN_TIMEOUT=grace)


def test_sigterm_ends_the_epochs_of_a_script_that_asks_for_stops_and_it_may_save(rank, tmp_path):
    code, log = run_script(
        rank,
        tmp_path,
        """
        import os, signal, zeusrun
        for epoch in zeusrun.current().epochs(default=5):
            print("epoch", epoch)
            if epoch == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                print("still here")
        print("saving")
        """,
    )
    assert log == "epoch 1\nepoch 2\nstill here\nsaving\n"
    assert code == 143  # zeusrun has not sent it, so the training is not complete


def test_sigterm_ends_a_script_that_only_reports(rank, tmp_path):
    code, log = run_script(
        rank,
        tmp_path,
        """
        import os, signal, zeusrun
        zeusrun.current().report(epoch=1, accuracy=0.1)
        os.kill(os.getpid(), signal.SIGTERM)
        print("still here")
        """,
    )
    assert (code, log) == (-signal.SIGTERM, "")


@pytest.mark.parametrize(
    "handler", ["lambda *_: print('my own')", "signal.SIG_IGN"], ids=["function", "ignored"]
)
def test_a_handler_of_the_scripts_own_is_left_alone(rank, tmp_path, handler):
    code, log = run_script(
        rank,
        tmp_path,
        f"""
        import os, signal, zeusrun
        own = {handler}
        signal.signal(signal.SIGTERM, own)
        for epoch in zeusrun.current().epochs(default=2):
            os.kill(os.getpid(), signal.SIGTERM)
        print(epoch, signal.getsignal(signal.SIGTERM) is own)
        """,
    )
    assert code == 0
    assert log.endswith("5 True\n")


@pytest.mark.parametrize(
    ("handler", "seen"),
    [
        ("lambda *_: print('my own')", "my own\nFalse False\n"),
        ("signal.SIG_IGN", "False False\n"),
        ("lambda *of: print('my own', zeusruns(*of))", "my own None\nFalse True\n"),
    ],
    ids=["function", "ignored", "calls zeusrun's"],
)
def test_a_handler_that_a_script_installs_later_is_not_ended_for(rank, tmp_path, handler, seen):
    code, log = run_script(
        rank,
        tmp_path,
        f"""
        import os, signal, threading, zeusrun
        run = zeusrun.current()
        run.should_stop()
        zeusruns = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, {handler})
        os.kill(os.getpid(), signal.SIGTERM)
        print(threading.Event().wait(0.5), run.should_stop())  # time for the end of the rank
        """,
        grace="0",
    )
    assert (code, log) == (143 if "True" in seen else 0, seen)


def test_a_rank_that_gives_sigterm_back_to_zeusrun_ends_again(rank, tmp_path):
    code, log = run_script(
        rank,
        tmp_path,
        """
        import os, signal, threading, zeusrun
        zeusrun.current().should_stop()
        before = signal.signal(signal.SIGTERM, lambda *_: print("my own"))
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.2)
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(600)
        """,
        grace="0",
    )
    assert (code, log) == (143, "my own\n")


def test_a_process_of_the_script_still_dies_of_sigterm(rank, tmp_path):
    code, log = run_script(
        rank,
        tmp_path,
        """
        import multiprocessing, time, zeusrun
        zeusrun.current().should_stop()
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        print(child.exitcode)
        """,
    )
    assert (code, log) == (0, "-15\n")


FORKS = """
    import os, signal, threading, time, warnings, zeusrun
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later: forks of threads
    def fork_and_terminate():
        child = os.fork()
        if child == 0:
            time.sleep(30)
        os.kill(child, signal.SIGTERM)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    def blocked():
        return signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    codes, run = [], zeusrun.current()
"""


def test_every_fork_of_the_script_dies_of_a_sigterm_that_comes_at_once(rank, tmp_path):
    program = """
    run.should_stop()
    for _ in range(50):
        fork_and_terminate()
    print(set(codes), len(codes), run.should_stop(), blocked())
    """
    assert run_script(rank, tmp_path, FORKS + program) == (0, "{-15} 50 False False\n")


def test_forks_of_several_threads_die_of_sigterm_and_leave_their_masks_as_they_were(rank, tmp_path):
    program = """
    run.should_stop()
    masks = []
    def fork_some():
        for _ in range(10):
            fork_and_terminate()
        masks.append(blocked())
    threads = [threading.Thread(target=fork_some) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(set(codes), len(codes), set(masks), run.should_stop(), blocked())
    """
    code, log = run_script(rank, tmp_path, FORKS + program)
    assert (code, log) == (0, "{-15} 50 {False} False False\n")


def test_a_script_that_blocks_sigterm_finds_it_blocked_after_a_fork_too(rank, tmp_path):
    program = """
    run.should_stop()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if child == 0:
        os._exit(7 if blocked() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), blocked())
    """
    assert run_script(rank, tmp_path, FORKS + program) == (0, "7 True\n")


def test_a_child_of_a_child_with_a_handler_of_its_own_does_not_end_the_rank(rank, tmp_path):
    program = """
    run.should_stop()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    threading.Event().wait(0.5)  # a rank that was told of it would end by now
    print(code, run.should_stop())
    """
    code, log = run_script(rank, tmp_path, FORKS + program, grace="0")
    assert (code, log) == (0, "5 False\n")


def test_an_event_loop_of_the_script_keeps_hearing_of_its_signals(rank, tmp_path):
    code, log = run_script(
        rank,
        tmp_path,
        """
        import asyncio, os, signal, zeusrun
        async def main():
            heard = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
            zeusrun.current().should_stop()
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.wait_for(heard.wait(), 300)
            print("heard")
        asyncio.run(main())
        """,
    )
    assert (code, log) == (0, "heard\n")


def test_asking_in_another_thread_installs_no_handler_and_does_not_fail(rank, tmp_path):
    code, log = run_script(
        rank,
        tmp_path,
        """
        import signal, threading, zeusrun
        run = zeusrun.current()
        thread = threading.Thread(target=lambda: print(run.should_stop()))
        thread.start()
        thread.join()
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        """,
    )
    assert (code, log) == (0, "False\nTrue\n")


def test_the_environment_of_the_script_is_not_changed(rank, tmp_path):
    code, log = run_script(
        rank, tmp_path, "import os; print(*sorted(n for n in os.environ if 'ZEUSRUN' in n))"
    )
    assert code == 0
    assert set(log.split()) == {name for name in rank.environment() if "ZEUSRUN" in name}
    assert "ZEUSRUN_TRIAL" not in os.environ

"""``python -m zeusrun.worker.process``: the script runs as under plain Python, and leaves its traces."""

from __future__ import annotations

import json
import os
import signal
from textwrap import dedent

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Asked, Ended, Reported, Started


@pytest.fixture
def rank(tmp_path):
    return Rank(tmp_path / "run")


@pytest.fixture
def write(tmp_path):
    """Write a script and return its path."""

    def write_script(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write_script


def test_the_script_is_main_with_its_own_arguments_file_and_folder(rank, write):
    script = write("""
        import json, sys
        print(json.dumps([__name__, __file__, sys.argv, sys.path[0], __spec__]))
    """)
    code, log = rank.run(script, "--lr", "0.1", "-m", "--plain")
    assert code == 0
    argv = [str(script), "--lr", "0.1", "-m", "--plain"]
    assert json.loads(log) == ["__main__", str(script), argv, str(script.parent), None]


def test_the_folder_of_a_linked_script_is_that_of_the_file_itself(rank, write, tmp_path):
    script = write("import neighbour; print(neighbour.NAME)")
    write("NAME = 'next door'", "neighbour.py")
    link = tmp_path / "elsewhere" / "link.py"
    link.parent.mkdir()
    link.symlink_to(script)
    assert rank.run(link) == (0, "next door\n")


def test_a_module_runs_as_main_with_its_own_arguments_and_package(rank, write, tmp_path):
    write("", "package/__init__.py")
    write("WORD = 'sibling'", "package/other.py")
    module = write(
        "import sys; from .other import WORD; print(__name__, __package__, WORD, sys.argv)",
        "package/train.py",
    )
    code, log = rank.run("-m", "package.train", "--lr", "1", cwd=tmp_path)
    assert (code, log) == (0, f"__main__ package sibling {[str(module), '--lr', '1']}\n")


def test_the_recorded_traceback_has_no_frame_of_ours(rank, write):
    script = write("def f(n):\n    return 1 / n\nf(0)")
    _, log = rank.run(script)
    assert rank.error["traceback"] == log


@pytest.mark.parametrize(("argument", "code"), [("7", 7), ("'text'", 1), ("-1", 255), ("300", 44)])
def test_an_exit_other_than_0_is_recorded_with_its_code(rank, write, argument, code):
    rank.run(write(f"import sys; sys.exit({argument})"))
    assert rank.error["kind"] == "exit"
    assert argument.strip("'") in rank.error["message"]
    assert rank.events[-1].code == code


def test_an_exit_with_0_is_no_failure(rank, write):
    rank.run(write("import sys; sys.exit(0)"))
    assert not (rank.run_dir / "error.json").exists()


def test_a_rank_tells_of_its_start_and_end_around_its_reports(rank, write):
    rank.run(write("import zeusrun; zeusrun.current().report(epoch=1, accuracy=0.3)"))
    started, reported, ended = rank.events
    assert (type(started), type(reported), type(ended)) == (Started, Reported, Ended)
    assert (started.rank, ended.rank, ended.code, ended.grouped) == (0, 0, 0, False)
    assert started.t <= reported.t <= ended.t


HANDLES = "import sys\ntry:\n    raise KeyError\nexcept Exception as e:\n    {}"


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("raise ValueError('x')", "exception", "ValueError"),
        ("raise MemoryError", "out_of_memory", "MemoryError"),
        ("raise RuntimeError('CUDA error: out of memory')", "out_of_memory", "RuntimeError"),
        (
            "try:\n    raise MemoryError\nexcept MemoryError as e:\n    raise ValueError from e",
            "out_of_memory",
            "ValueError",
        ),
        (
            "class OutOfMemoryError(RuntimeError): ...\nraise OutOfMemoryError('as torch names it')",
            "out_of_memory",
            "OutOfMemoryError",
        ),
        ("raise ValueError('out of memory')", "exception", "ValueError"),
        ("raise KeyboardInterrupt", "exception", "KeyboardInterrupt"),
        ("import sys; sys.exit(7)", "exit", "SystemExit"),
        (HANDLES.format("sys.exit(1)"), "exception", "KeyError"),  # as Hydra does
        (HANDLES.format("raise SystemExit(1) from e"), "exception", "KeyError"),
        (HANDLES.format("raise SystemExit(1) from None"), "exit", "SystemExit"),
        (HANDLES.format("sys.exit(2)"), "exit", "SystemExit"),  # as argparse does
        (HANDLES.format("sys.exit('no such data')"), "exit", "SystemExit"),
        (
            HANDLES.replace("KeyError", "MemoryError").format("sys.exit(1)"),
            "out_of_memory",
            "MemoryError",
        ),
        (
            "class Exit(Exception): ...\n"
            + HANDLES.replace("KeyError", "Exit").format("sys.exit(3)"),
            "exit",
            "SystemExit",
        ),  # as click does
    ],
)
def test_the_cause_of_a_crash_is_told_apart(rank, write, text, kind, name):
    rank.run(write(text))
    assert (rank.error["kind"], rank.error["type"]) == (kind, name)


def test_the_rank_that_fails_first_is_the_cause(rank, write):
    script = write("import os; raise ValueError('rank ' + os.environ['RANK'])")
    rank.run(script, RANK="3")
    rank.run(script, RANK="0")
    assert (rank.error["rank"], rank.error["message"]) == (3, "rank 3")
    assert [path.name for path in rank.run_dir.glob("error.json*")] == ["error.json"]


def test_a_failure_after_a_restart_replaces_an_earlier_one(rank, write):
    script = write("import os; raise ValueError('rank ' + os.environ['RANK'])")
    rank.run(script, RANK="3")
    rank.run(script, RANK="1", TORCHELASTIC_RESTART_COUNT="1")
    rank.run(script, RANK="2", TORCHELASTIC_RESTART_COUNT="1")
    assert (rank.error["rank"], rank.error["restart"]) == (1, 1)


def test_plain_is_the_script_in_its_log_and_nothing_else(rank, write):
    script = write("import sys; print(sys.argv, 'zeusrun.worker' in sys.modules); sys.exit(7)")
    code, log = rank.run("--plain", script, "--lr")
    assert (code, log) == (7, f"{[str(script), '--lr']} False\n")
    assert not (rank.run_dir / "metrics.jsonl").exists()


def test_plain_runs_a_module(rank, write, tmp_path):
    write("print(__name__)", "trainer.py")
    assert rank.run("--plain", "-m", "trainer", cwd=tmp_path) == (0, "__main__\n")


def test_work_that_goes_on_after_the_script_is_waited_for_before_exit_hooks_run(rank, write):
    script = write("""
        import atexit, threading, time
        from concurrent.futures import ThreadPoolExecutor
        atexit.register(print, "hook 1")
        atexit.register(print, "hook 2")

        def work(name):
            time.sleep(0.3)  # longer than the script lasts
            print(name + "\\n", end="")

        threading.Thread(target=work, args=["thread"]).start()
        ThreadPoolExecutor(1).submit(work, "pool")
        print("script")
    """)
    code, log = rank.run(script)
    first, *works, last, hook, end = log.split("\n")
    assert (code, first, last, hook, end) == (0, "script", "hook 2", "hook 1", "")
    assert sorted(works) == ["pool", "thread"]


def test_exit_hooks_run_after_a_failure_too(rank, write):
    script = write("import atexit; atexit.register(print, 'hook'); 1 / 0")
    code, log = rank.run(script)
    assert code == 1
    assert log.endswith("ZeroDivisionError: division by zero\nhook\n")


def test_a_hook_that_raises_does_not_change_the_exit_code(rank, write):
    code, _ = rank.run(write("import atexit; atexit.register(int, 'no number')"))
    assert code == 0


@pytest.mark.parametrize("first", ["", pytest.param("import torch; ", marks=pytest.mark.long)])
def test_a_file_left_open_holds_all_that_was_written(rank, write, tmp_path, first):
    out = tmp_path / "out.csv"
    rank.run(write(f"{first}file = open({str(out)!r}, 'w'); file.write('epoch,loss')"))
    assert out.read_text() == "epoch,loss"


def test_processes_spawned_by_the_script_find_its_functions(rank, write):
    script = write("""
        import multiprocessing
        def double(n):
            return 2 * n
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """)
    assert rank.run(script) == (0, "[2, 4]\n")
    assert [type(event) for event in rank.events] == [Started, Ended]


def test_processes_spawned_by_a_module_find_its_functions(rank, write, tmp_path):
    write(
        """
        import multiprocessing
        def double(n):
            return 2 * n
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
        "trainer.py",
    )
    assert rank.run("-m", "trainer", cwd=tmp_path) == (0, "[2, 4]\n")


def test_classes_of_the_script_can_be_pickled(rank, write):
    script = write("""
        import inspect, pickle
        class Config:
            rate = 0.1
        print(pickle.loads(pickle.dumps(Config)) is Config, "rate" in inspect.getsource(Config))
    """)
    assert rank.run(script) == (0, "True True\n")


def test_output_in_raw_bytes_goes_to_the_log_of_the_rank(rank, write):
    script = write("""
        import os, subprocess, sys
        os.write(2, b"raw\\n")
        subprocess.run([sys.executable, "-c", "print('child')"])
    """)
    assert rank.run(script, RANK="1") == (0, "raw\nchild\n")
    assert not (rank.run_dir / "logs" / "rank0.log").exists()


def test_a_script_that_is_killed_leaves_no_end(rank, write):
    code, _ = rank.run(write("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert code == -signal.SIGKILL
    assert [type(event) for event in rank.events] == [Started]


def test_a_process_that_the_script_forks_is_not_the_rank(rank, write):
    code, _ = rank.run(write("import os, sys; os.fork() or sys.exit(3); os.wait()"))
    assert code == 0
    assert [type(event) for event in rank.events] == [Started, Ended]
    assert not (rank.run_dir / "error.json").exists()


def test_torch_is_not_imported_for_a_script_that_does_not(rank, write):
    assert rank.run(write("import sys; print('torch' in sys.modules)")) == (0, "False\n")


def test_a_sidecar_that_takes_nothing_more_does_not_change_how_the_script_ends(rank, write):
    script = write("""
        import os
        sidecar = os.environ["ZEUSRUN_SIDECAR"]
        os.unlink(sidecar)
        os.mkdir(sidecar)
        print("the end")
    """)
    code, log = rank.run(script)
    assert code == 0
    assert log.startswith("the end\nzeusrun: could not record an event: ")


def test_metrics_that_could_never_be_written_fail_the_rank(rank, write):
    script = write("""
        import os, warnings, zeusrun
        warnings.simplefilter("ignore")
        sidecar = os.environ["ZEUSRUN_SIDECAR"]
        os.unlink(sidecar)
        os.mkdir(sidecar)
        zeusrun.current().report(epoch=1, accuracy=0.9)
    """)
    code, log = rank.run(script)
    assert code == 1
    assert "could not record the metrics" in log


def test_steps_of_every_kind_of_optimizer_count_once(rank, write):
    script = write("""
        import os, pathlib, torch
        from zeusrun.sidecar.step_clock import read_step_clock

        clock = pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"]) / "clock" / "rank0"

        def steps():
            count = read_step_clock(clock)
            return 0 if count is None else count.steps

        class Careful(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        class Doubly(Careful):
            def step(self, closure=None):
                return super().step(closure)

        class Broken(torch.optim.SGD):
            def step(self, closure=None):
                raise ArithmeticError

        weight = torch.nn.Parameter(torch.ones(1))

        def closure():
            weight.grad = torch.ones(1)
            return (weight**2).sum()

        for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS, Careful, Doubly, Broken):
            before, optimizer = steps(), kind([weight], lr=0.1)
            for _ in range(3):
                weight.grad = torch.ones(1)
                try:
                    optimizer.step(closure)
                except ArithmeticError:
                    pass
            print(kind.__name__, steps() - before)

        before, broken, sound = steps(), Broken([weight], lr=0.1), torch.optim.SGD([weight], lr=0.1)
        try:
            broken.step()
        except ArithmeticError:
            sound.step()
        print("after a failed one", steps() - before)
    """)
    code, log = rank.run_forked(script)
    assert code == 0, log
    assert log.splitlines() == [
        "SGD 3",
        "AdamW 3",
        "LBFGS 3",
        "Careful 3",
        "Doubly 3",
        "Broken 0",
        "after a failed one 1",
    ]
    assert rank.steps.steps == 16
    assert rank.steps.first_step_t < rank.steps.last_step_t


def test_the_exit_code_is_kept_when_a_stream_was_closed(rank, write):
    code, _ = rank.run(write("import os, sys; sys.stdout.close(); sys.exit(7)"))
    assert code == 7


def test_the_log_is_its_owners_alone(rank, write):
    rank.run(write("print()"))
    assert os.stat(rank.run_dir / "logs" / "rank0.log").st_mode & 0o777 == 0o600


def test_a_rank_that_cannot_tell_whether_it_was_grouped_has_ended_well(rank, write):
    text = """
        import sys, types
        sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "zeusrun.worker.environment":
                    raise OSError(24, "Too many open files")
        sys.meta_path.insert(0, Finder())
    """
    assert rank.run(write(dedent(text))) == (0, "")
    assert (rank.events[-1].code, rank.events[-1].grouped) == (0, False)


@pytest.mark.parametrize(("stop", "code"), [(b"", 7), (b"ending", 0)])
def test_a_rank_that_zeusrun_ends_tells_torchrun_of_no_failure(rank, write, stop, code):
    (rank.run_dir / "stop").write_bytes(stop)
    assert rank.run(write("import sys; sys.exit(7)"))[0] == code
    assert rank.events[-1].code == 7


@pytest.mark.parametrize(
    ("variables", "handler"), [({}, "SIG_DFL"), ({"SLURM_JOB_ID": "1"}, "SIG_IGN")]
)
@pytest.mark.parametrize("options", [(), ("--plain",)])
def test_sigusr1_is_as_under_plain_python_but_where_slurm_may_send_it_to_every_process(
    rank, write, variables, handler, options
):
    script = write("import signal; print(signal.getsignal(signal.SIGUSR1).name)")
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as torchrun does
    try:
        assert rank.run(*options, script, **variables) == (0, f"{handler}\n")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_a_script_asks_for_is_told_once_by_rank_0(rank, write):
    script = write("""
        import zeusrun
        run = zeusrun.current()
        for _ in range(3):
            run.local_batch_size(1), run.global_batch_size(1), run.learning_rate(0.1)
    """)
    rank.run(script)
    rank.run(script, RANK="1", WORLD_SIZE="2")
    told = [event.choice for event in rank.events if isinstance(event, Asked)]
    assert told == ["batch_size", "learning_rate"]


def test_a_script_that_breaks_its_environment_has_ended_well_all_the_same(rank, write):
    script = write("""
        import os, sys, types
        sys.modules["torch.distributed"] = types.ModuleType("torch.distributed")
        os.environ["RANK"] = ""
    """)
    assert rank.run(script) == (0, "")
    assert rank.events[-1].code == 0

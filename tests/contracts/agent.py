"""What whatever starts the ranks must do: torchrun, its fake, and later back ends.

A back end that is launched as torchrun is inherits ``AgentContract`` and gives the fixture
``environment``. One without an agent process of its own gives the fixture ``start``, which
returns a ``Run`` of its own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from textwrap import dedent

import psutil
import pytest

from tests.factories import CHILDREN, build_trial, load_job, temporary_folder
from tests.runs import has_ended, survivors, wait_for
from zeusrun.launcher.processes.command import build_command, find_torchrun
from zeusrun.launcher.rundir.failure import read_failure, torchrun_was_signalled
from zeusrun.launcher.rundir.layout import create_run

PROGRAM = """\
import json, os, pathlib, signal, subprocess, sys, time
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
run_dir = pathlib.Path(os.environ["ZEUSRUN_RUN_DIR"])

def tell(name, value):
    fresh = run_dir / f".{name}-{rank}-{restart}"
    fresh.write_text(json.dumps(value))
    fresh.rename(run_dir / f"{name}-{rank}-{restart}")

def wait_for(name, of=rank):
    while not (run_dir / f"{name}-{of}-{restart}").exists():
        time.sleep(0.01)

def sleep_for_ever():
    tell("ready", os.getpid())
    while True:
        time.sleep(0.5)  # a signal just before it would wait for its end

"""
TELLS_ALL = """
tell("environment", dict(os.environ))
tell("seen", [os.getcwd(), sys.stdin.read()])
tell("argv", sys.argv[1:])
tell("ids", [os.getpid(), os.getsid(0), os.getpgrp(), os.getppid()])
"""
ARGUMENTS = [
    "--nnodes=7",
    "--n",  # for argparse, it may begin several options of torchrun
    "--rdzv-id",
    *("a b", "", "'\"\\", "--", "-m", "$HOME", "${local_rank}"),
]


@dataclass
class Run:
    """An agent that runs, and what its ranks have told: ``tell(name, value)`` of ``PROGRAM``."""

    process: psutil.Popen
    paths: object

    def told(self, name, rank=0, restart=0, seconds=300.0):
        """Return what a rank has told under a name, once it is there."""
        path = self.paths.run_dir / f"{name}-{rank}-{restart}"
        deadline_t = time.monotonic() + seconds
        while not path.exists():
            code = self.process.poll()
            if code is not None and not path.exists():
                pytest.fail(f"rank {rank} never told {name!r}; exit {code}: {self.log}")
            if time.monotonic() > deadline_t:
                pytest.fail(f"rank {rank} has not told {name!r} for {seconds:g} s: {self.log}")
            time.sleep(0.02)  # another process's file: there is no event to wait for
        return json.loads(path.read_text())

    def wait(self):
        """Return the exit code."""
        return self.process.wait(300)

    @property
    def log(self):
        return self.paths.torchrun_log.read_text()

    def printed(self, rank=0):
        return self.paths.rank_log(rank).read_text()

    def failure(self, restarts=0):
        """Return what zeusrun takes for the root cause."""
        found = read_failure(self.paths, restarts)
        return None if found is None else found.reason


class AgentContract:
    """Launch, failures, restarts, signals, orphans, DDP."""

    threads_alone: str | None = None  # OMP_NUM_THREADS of a single rank

    @pytest.fixture(scope="class")
    @classmethod
    def environment(cls):
        """What the agent inherits."""
        return own_environment()

    @pytest.fixture(scope="class")
    @classmethod
    def sections(cls):
        """Sections of the job file that select the agent."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def launch(cls):
        """What starts an agent, or its parent."""
        return launch_process

    @pytest.fixture(scope="class")
    @classmethod
    def start_in(cls, environment, launch, sections):
        """A context in which ranks are started in a folder; they are ended with it."""
        return functools.partial(starting, environment, launch, sections)

    @pytest.fixture
    def start(self, start_in, tmp_path):
        """Start ranks of a program, or of a child script; they are ended with the test."""
        with start_in(tmp_path) as start:
            yield start

    # Launch

    @pytest.fixture(scope="class")
    @classmethod
    def launched(cls, start_in, tmp_path_factory):
        """A run of two ranks that has ended; each has told what it was given."""
        folder = tmp_path_factory.mktemp("launched")
        (folder / "work").mkdir()
        in_yaml = [word.replace("$", "$$") for word in ARGUMENTS]
        with start_in(folder) as start:
            run = start(
                TELLS_ALL,
                ranks=2,
                args=in_yaml,
                workdir=str(folder / "work"),
                variables={"MINE": "ä = 1"},
                launch={"max_restarts": 3},
            )
            assert run.wait() == 0
            yield run

    def test_every_rank_has_a_place_of_its_own(self, launched):
        names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
        places = [[launched.told("environment", rank)[name] for name in names] for rank in (0, 1)]
        assert places == [["0", "0", "2", "2", "0"], ["1", "1", "2", "2", "0"]]

    def test_every_rank_finds_the_others_and_its_run(self, launched):
        names = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"]
        first, second = (
            [launched.told("environment", rank)[name] for name in names] for rank in (0, 1)
        )
        assert first == second
        address, port, run_id, max_restarts = first
        assert address
        assert 0 < int(port) < 1 << 16
        assert (run_id, max_restarts) == ("job-1-1", "3")

    def test_ranks_inherit_environment_and_working_directory_and_have_no_input(self, launched):
        assert launched.told("environment")["MINE"] == "ä = 1"
        folder, typed = launched.told("seen")
        assert (os.path.basename(folder), typed) == ("work", "")

    def test_arguments_are_passed_as_they_are(self, launched):
        assert launched.told("argv") == ARGUMENTS

    def test_every_rank_leads_a_session_and_the_agent_is_its_parent(self, launched):
        for rank in (0, 1):
            pid, session, group, parent = launched.told("ids", rank)
            assert pid == session == group
            assert parent == launched.process.pid

    def test_one_of_several_ranks_has_one_thread(self, launched):
        assert launched.told("environment")["OMP_NUM_THREADS"] == "1"

    @pytest.mark.parametrize(("ranks", "given"), [(1, None), (2, "3")])
    def test_a_rank_has_as_many_threads_as_it_is_given_and_alone_those_of_torch(
        self, start, ranks, given
    ):
        variables = {} if given is None else {"OMP_NUM_THREADS": given}
        program = "tell('threads', os.environ.get('OMP_NUM_THREADS'))"
        run = start(program, ranks=ranks, variables=variables)
        assert run.wait() == 0
        assert run.told("threads") == (given or self.threads_alone)

    def test_a_module_runs_as_main_with_its_arguments(self, start, tmp_path):
        (tmp_path / "trainer.py").write_text(
            PROGRAM + "tell('main', [__name__, os.path.basename(sys.argv[0]), sys.argv[1:]])"
        )
        module = {"script": None, "module": "trainer"}
        run = start("", args=["--fast"], workdir=str(tmp_path), **module)
        assert run.wait() == 0
        assert run.told("main") == ["__main__", "trainer.py", ["--fast"]]

    def test_the_slowest_rank_is_waited_for(self, start):
        run = start("tell('pid', os.getpid()); rank and (wait_for('go'), tell('late', 1))", ranks=2)
        pid = run.told("pid", 0)
        wait_for(lambda: not psutil.pid_exists(pid))  # the agent has seen that it is gone
        (run.paths.run_dir / "go-1-0").touch()
        assert run.wait() == 0
        assert run.told("late", 1) == 1

    # Failures

    @pytest.mark.long
    def test_a_rank_that_has_to_be_killed_after_a_failure_is_not_its_cause(self, start):
        """Torchrun waits for 30 s then, whatever grace the job has."""
        program = """
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if rank == 1:
                wait_for("ready", of=0)
                os._exit(7)
            sleep_for_ever()
        """
        run = start(program, ranks=2, instrument=False)
        pid = run.told("ready", 0)
        assert run.wait() == 1
        assert f"Unable to shutdown process {pid}" in run.log
        assert run.failure() == "rank 1 exited with code 7"

    def test_a_rank_that_a_signal_ends_is_named_with_it_and_the_others_end(self, start):
        program = """
            if rank == 1:
                wait_for("ready", of=0)
                os.kill(os.getpid(), signal.SIGKILL)
            sleep_for_ever()
        """
        run = start(program, ranks=2)
        pid = run.told("ready", 0)
        assert run.wait() == 1
        wait_for(lambda: has_ended(pid))
        assert run.failure().startswith("rank 1 was ended by SIGKILL")

    def test_the_others_are_asked_to_end_and_what_they_raise_then_is_not_the_cause(self, start):
        program = """
            if rank == 1:
                wait_for("ready", of=0)
                raise ValueError("the data of rank 1 is broken")
            signal.signal(
                signal.SIGTERM, lambda *_: (tell("asked", 1), sys.exit("rank 1 is gone"))
            )
            sleep_for_ever()
        """
        run = start(program, ranks=2)
        assert run.wait() == 1
        assert run.told("asked") == 1
        reason = run.failure()
        assert reason.startswith("rank 1 at script.py:")
        assert reason.endswith("ValueError: the data of rank 1 is broken")

    def test_what_a_rank_leaves_for_its_agent_is_in_the_log(self, start):
        """``torch.distributed.elastic``'s ``@record`` writes such a file."""
        program = """
            error = {"message": "told", "extraInfo": {"py_callstack": "told by rank 0", "timestamp": "0"}}
            pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(
                json.dumps({"message": error}))
            os._exit(3)
        """
        run = start(program)
        assert run.wait() == 1
        assert "told by rank 0" in run.log
        assert run.failure() == "rank 0 exited with code 3"

    # Restarts

    def test_after_a_failure_all_ranks_start_again(self, start):
        program = """
            tell("pid", os.getpid())
            if restart == 0:
                if rank == 1:
                    wait_for("pid", of=0)
                    sys.exit(7)
                sleep_for_ever()
        """
        run = start(program, ranks=2, launch={"max_restarts": 1})
        assert run.wait() == 0
        pids = {run.told("pid", rank, restart) for rank in (0, 1) for restart in (0, 1)}
        assert len(pids) == 4
        assert run.failure(restarts=1) is None or "code 7" not in run.failure(restarts=1)

    def test_when_no_restart_is_left_the_last_failure_counts(self, start):
        run = start("sys.exit(7 + restart)", launch={"max_restarts": 1})
        assert run.wait() == 1
        assert run.failure(restarts=1) == "rank 0: the script exited with code 8"

    # Signals

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_signal_reaches_the_ranks_and_their_children(self, start, number):
        program = f"""
            tell("child", subprocess.Popen(["sleep", "600"]).pid)
            signal.signal({int(number)}, lambda got, _: (tell("got", got), os._exit(0)))
            sleep_for_ever()
        """
        run = start(program, ranks=2)
        children = [run.told("child", rank) for rank in (0, 1)]
        for rank in (0, 1):
            run.told("ready", rank)
        run.process.send_signal(number)
        assert run.wait() == 1
        assert [run.told("got", rank) for rank in (0, 1)] == [number] * 2
        wait_for(lambda: all(map(has_ended, children)))
        assert torchrun_was_signalled(run.paths)

    def test_a_rank_that_ignores_a_signal_is_killed_after_the_grace(self, start):
        program = "signal.signal(signal.SIGTERM, signal.SIG_IGN); sleep_for_ever()"
        run = start(program, launch={"grace_period_s": 1})
        pid = run.told("ready")
        run.process.terminate()
        assert run.process.wait(25) == 1  # torchrun's own grace is 30 s
        wait_for(lambda: has_ended(pid))

    def test_a_rank_may_use_its_grace_also_if_the_agent_is_told_again(self, start):
        program = """
            def save(*_):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                tell("asked", 1)
                while not (run_dir / "save").exists():
                    time.sleep(0.01)
                tell("saved", 1)
                os._exit(0)
            signal.signal(signal.SIGTERM, save)
            sleep_for_ever()
        """
        run = start(program, launch={"grace_period_s": 60})
        run.told("ready")
        run.process.terminate()
        run.told("asked")
        run.process.terminate()
        (run.paths.run_dir / "save").touch()
        assert run.wait() == 1
        assert run.told("saved") == 1

    def test_sigusr1_is_for_the_launcher(self, start):
        run = start("tell('ready', 1); wait_for('go')", ranks=2)
        for rank in (0, 1):
            run.told("ready", rank)
        run.process.send_signal(signal.SIGUSR1)
        for rank in (0, 1):
            (run.paths.run_dir / f"go-{rank}-0").touch()
        assert run.wait() == 0

    # Orphans

    @pytest.mark.parametrize("instrument", [True, False])
    def test_no_rank_outlives_an_agent_that_is_killed(self, start, instrument):
        run = start("sleep_for_ever()", ranks=2, instrument=instrument)
        pids = [run.told("ready", rank) for rank in (0, 1)]
        run.process.kill()
        run.wait()
        wait_for(lambda: all(map(has_ended, pids)))

    def test_neither_agent_nor_rank_outlives_the_launcher(self, start):
        launcher = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
        run = start("sleep_for_ever()", parent=[os.sys.executable, "-c", launcher])
        pid = run.told("ready")
        (agent,) = run.process.children()
        run.process.kill()
        run.wait()
        wait_for(lambda: has_ended(agent.pid))
        wait_for(lambda: has_ended(pid))

    # Training

    @pytest.mark.long  # 10 s of CPU over the real torchrun
    def test_ddp_trains_with_data_loader_workers_and_goes_on_after_a_restart(self, start):
        script = str(CHILDREN / "trains_with_loaders.py")
        run = start("", ranks=2, script=script, launch={"max_restarts": 1})
        assert run.wait() == 0, run.log + run.printed(0)
        assert run.printed(0).splitlines()[-1] == run.printed(1).splitlines()[-1]
        assert run.printed(0).endswith("life 1: 6 steps of 2 ranks\n")


@contextlib.contextmanager
def starting(environment, launch, sections, folder):
    """Yield a function that starts ranks; they are ended with the block."""
    started = []

    def run(program, ranks=1, parent=None, variables=(), **changes):
        script = folder / "script.py"
        script.write_text(PROGRAM + dedent(program))
        section = {"nproc_per_node": ranks, **changes.pop("launch", {})}
        if sections and changes.get("instrument") is False:
            pytest.skip("such a training needs the hooks")
        spec = load_job(folder, launch=section, **{"script": str(script), **sections, **changes})
        trial = build_trial(job="job", global_batch_size=32, world_size=ranks)
        paths = create_run(folder / "home", "job", trial.trial)
        inherited = {**environment, "TMPDIR": str(temporary_folder(folder)), **dict(variables)}
        command = build_command(spec, trial, paths, find_torchrun(), inherited)
        with paths.torchrun_log.open("wb") as log:
            argv = [*(parent or ()), *command.argv]
            process = launch(argv, command.env, command.cwd, log)
        started.append(Run(process, paths))
        return started[-1]

    try:
        yield run
    finally:
        for each in started:
            left = survivors({"run_dir": str(each.paths.run_dir)})
            for process in (each.process, *left):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            each.process.wait()


def own_environment():
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def launch_process(argv, env, cwd, log):
    """Start a process in a session of its own, without input, its output to a log."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    return psutil.Popen(argv, env=env, cwd=cwd, **streams, start_new_session=True)

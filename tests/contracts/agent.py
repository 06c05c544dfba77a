"""What whatever starts the ranks must do: torchrun, its fake, and later back ends.

A back end that is launched as torchrun is inherits ``AgentContract`` and gives the fixture
``environment``. One without an agent process of its own gives the fixture ``start``, which
returns a ``Run`` of its own.
"""

from __future__ import annotations

import contextlib
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

    @pytest.fixture
    def environment(self):
        """What the agent inherits."""
        return own_environment()

    @pytest.fixture
    def sections(self):
        """Sections of the job file that select the agent."""
        return {}

    @pytest.fixture
    def launch(self):
        """What starts an agent, or its parent."""
        return launch_process

    @pytest.fixture
    def start(self, environment, launch, sections, tmp_path):
        """Start ranks of a program, or of a child script; they are ended with the test."""
        started = []

        def run(program, ranks=1, parent=None, variables=(), **changes):
            script = tmp_path / "script.py"
            script.write_text(PROGRAM + dedent(program))
            section = {"nproc_per_node": ranks, **changes.pop("launch", {})}
            if sections and changes.get("instrument") is False:
                pytest.skip("such a training needs the hooks")
            target = {"script": str(script), **sections, **changes}
            spec = load_job(tmp_path, launch=section, **target)
            trial = build_trial(job="job", global_batch_size=32, world_size=ranks)
            paths = create_run(tmp_path / "home", "job", trial.trial)
            temporary = str(temporary_folder(tmp_path))
            inherited = {**environment, "TMPDIR": temporary, **dict(variables)}
            command = build_command(
                spec,
                trial,
                paths,
                find_torchrun(),
                inherited,
            )
            with paths.torchrun_log.open("wb") as log:
                argv = [*(parent or ()), *command.argv]
                process = launch(argv, command.env, command.cwd, log)
            started.append(Run(process, paths))
            return started[-1]

        yield run
        for each in started:
            left = survivors({"run_dir": str(each.paths.run_dir)})
            for process in (each.process, *left):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            each.process.wait()

    # Launch

    def test_every_rank_has_a_place_of_its_own(self, start):
        names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
        run = start(f"tell('place', [os.environ[name] for name in {names}])", ranks=2)
        assert run.wait() == 0
        assert run.told("place", 0) == ["0", "0", "2", "2", "0"]
        assert run.told("place", 1) == ["1", "1", "2", "2", "0"]

    def test_every_rank_finds_the_others_and_its_run(self, start):
        names = ["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"]
        program = f"tell('meeting', [os.environ[name] for name in {names}])"
        run = start(program, ranks=2, launch={"max_restarts": 3})
        assert run.wait() == 0
        address, port, run_id, max_restarts = run.told("meeting", 0)
        assert run.told("meeting", 1) == run.told("meeting", 0)
        assert address
        assert 0 < int(port) < 1 << 16
        assert (run_id, max_restarts) == ("job-1-1", "3")

    def test_ranks_inherit_environment_and_working_directory_and_have_no_input(
        self, start, tmp_path
    ):
        (tmp_path / "work").mkdir()
        program = "tell('seen', [os.environ['MINE'], os.getcwd(), sys.stdin.read()])"
        run = start(program, workdir=str(tmp_path / "work"), variables={"MINE": "ä = 1"})
        assert run.wait() == 0
        assert run.told("seen") == ["ä = 1", str(tmp_path / "work"), ""]

    def test_arguments_are_passed_as_they_are(self, start):
        given = [
            "--nnodes=7",
            "--n",  # for argparse, it may begin several options of torchrun
            "--rdzv-id",
            "a b",
            "",
            "'\"\\",
            "--",
            "-m",
            "$HOME",
            "${local_rank}",
        ]
        in_yaml = [word.replace("$", "$$") for word in given]
        run = start("tell('argv', sys.argv[1:])", args=in_yaml)
        assert run.wait() == 0
        assert run.told("argv") == given

    def test_a_module_runs_as_main_with_its_arguments(self, start, tmp_path):
        (tmp_path / "trainer.py").write_text(
            PROGRAM + "tell('main', [__name__, os.path.basename(sys.argv[0]), sys.argv[1:]])"
        )
        module = {"script": None, "module": "trainer"}
        run = start("", args=["--fast"], workdir=str(tmp_path), **module)
        assert run.wait() == 0
        assert run.told("main") == ["__main__", "trainer.py", ["--fast"]]

    def test_every_rank_leads_a_session_and_the_agent_is_its_parent(self, start):
        program = """
            tell("ids", [os.getpid(), os.getsid(0), os.getpgrp(), os.getppid()])
            wait_for("seen")
        """
        run = start(program, ranks=2)
        for rank in (0, 1):
            pid, session, group, parent = run.told("ids", rank)
            assert pid == session == group
            assert parent == run.process.pid
            (run.paths.run_dir / f"seen-{rank}-0").touch()
        assert run.wait() == 0

    @pytest.mark.parametrize(
        ("ranks", "given", "threads"), [(1, None, None), (2, None, "1"), (2, "3", "3")]
    )
    def test_several_ranks_have_one_thread_each_unless_told_otherwise(
        self, start, ranks, given, threads
    ):
        variables = {} if given is None else {"OMP_NUM_THREADS": given}
        program = "tell('threads', os.environ.get('OMP_NUM_THREADS'))"
        run = start(program, ranks=ranks, variables=variables)
        assert run.wait() == 0
        assert run.told("threads") == (self.threads_alone if ranks == 1 else threads)

    def test_the_slowest_rank_is_waited_for(self, start):
        run = start("tell('pid', os.getpid()); rank and (wait_for('go'), tell('late', 1))", ranks=2)
        pid = run.told("pid", 0)
        wait_for(lambda: not psutil.pid_exists(pid))  # the agent has seen that it is gone
        (run.paths.run_dir / "go-1-0").touch()
        assert run.wait() == 0
        assert run.told("late", 1) == 1

    # Failures

    def test_a_rank_that_fails_ends_the_others_and_is_the_root_cause(self, start):
        program = """
            if rank == 1:
                wait_for("ready", of=0)
                sys.exit(7)
            sleep_for_ever()
        """
        run = start(program, ranks=2)
        pid = run.told("ready", 0)
        assert run.wait() == 1
        wait_for(lambda: has_ended(pid))
        assert run.failure() == "rank 1: the script exited with code 7"

    def test_others_are_asked_before_they_are_killed(self, start):
        program = """
            if rank == 1:
                wait_for("ready", of=0)
                sys.exit(7)
            signal.signal(signal.SIGTERM, lambda *_: (tell("asked", 1), os._exit(0)))
            sleep_for_ever()
        """
        run = start(program, ranks=2)
        assert run.wait() == 1
        assert run.told("asked") == 1

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

    def test_a_rank_that_a_signal_ends_is_named_with_it(self, start):
        run = start("rank and os.kill(os.getpid(), signal.SIGKILL); sleep_for_ever()", ranks=2)
        assert run.wait() == 1
        assert run.failure().startswith("rank 1 was ended by SIGKILL")

    def test_the_first_error_file_is_kept(self, start):
        program = """
            if rank == 1:
                wait_for("ready", of=0)
                raise ValueError("the data of rank 1 is broken")
            signal.signal(signal.SIGTERM, lambda *_: sys.exit("rank 1 is gone"))
            sleep_for_ever()
        """
        run = start(program, ranks=2)
        assert run.wait() == 1
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
        run = start("sys.exit(7 + restart)", launch={"max_restarts": 2})
        assert run.wait() == 1
        assert run.failure(restarts=2) == "rank 0: the script exited with code 9"

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


def own_environment():
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def launch_process(argv, env, cwd, log):
    """Start a process in a session of its own, without input, its output to a log."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    return psutil.Popen(argv, env=env, cwd=cwd, **streams, start_new_session=True)

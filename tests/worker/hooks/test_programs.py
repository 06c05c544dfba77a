"""Ranks that a script starts as programs: which zeusrun reaches, and that each runs as before."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest

from tests.worker.rank import Rank, run_plain

PARENT = """
import asyncio, os, pathlib, subprocess, sys

RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
python = sys.executable

def run(*command, env=os.environ, **options):
    done = subprocess.run(command, env=env and {**env, **RANK}, stderr=subprocess.STDOUT,
                          stdout=subprocess.PIPE, text=True, **options)
    print(done.returncode, done.args == command, done.stdout, flush=True)

"""
CHILD = """
import sys
print("reached" if "zeusrun" in sys.modules else "left alone")
print(__name__, sys.argv, sys.orig_argv, sys.flags, sys.warnoptions, sys._xoptions, sys.path[0])
"""
SEEN = {"reached", "left alone"}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Run commands as a rank and under plain Python; return what was reached, in their order."""
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)

    def run_both(commands, child=CHILD, **environment):
        (tmp_path / "child.py").write_text(child)
        script = tmp_path / "parent.py"
        script.write_text(PARENT + dedent(commands))
        code, log = Rank(tmp_path / "run").run(script, cwd=tmp_path, **environment)
        assert code == 0, log
        plain = run_plain(script, cwd=tmp_path)
        assert without(log) == (without(plain[1]) if plain[0] == 0 else plain)
        return [line.split()[-1] for line in log.splitlines() if seen_in(line)]

    return run_both


def seen_in(line):
    return any(line.endswith(word) for word in SEEN)


def without(log):
    return [line for line in log.splitlines() if not seen_in(line)]


def test_every_form_of_a_script_and_a_module_is_reached_and_runs_as_before(start):
    reached = start("""
    os.environ["PATH"] = os.path.dirname(python) + ":" + os.environ["PATH"]
    run(python, "child.py", "a", "-m", "")
    run(python, "-u", "-OO", "-bB", "-W", "ignore", "-Xutf8", "-X", "dev", "-s", "child.py", "-c")
    run(python, "-m", "child", "-m")
    run(python, pathlib.Path("child.py"), cwd=".")
    run(os.path.basename(python), "child.py")
    run(python, "-P", "child.py") if sys.version_info >= (3, 11) else None
    print(subprocess.check_output([python, "child.py"], env={**os.environ, **RANK}, text=True))
    os.environ.update(RANK)
    subprocess.Popen((python, "child.py")).wait()
    async def wait():
        await (await asyncio.create_subprocess_exec(python, "./child.py")).wait()
    asyncio.run(wait())
    """)
    assert set(reached) == {"reached"}


def test_other_commands_and_programs_that_are_no_rank_are_left_alone(start):
    seen = start("""
    code = open("child.py").read()
    other = os.path.abspath("other")
    if not os.path.exists(other):
        os.symlink("/bin/sh", other)
    run(python, "-c", code)
    run(python, "-I", "child.py")
    run(python, "-i", "child.py", stdin=subprocess.DEVNULL)
    run(python, "-", stdin=open("child.py"))
    run(other, "-c", f"exec {python} child.py")
    run("ignored", "child.py", executable=python)
    subprocess.run(f"{python} child.py", shell=True, env={**os.environ, **RANK})
    subprocess.run([python, "child.py"])
    subprocess.run([python, "child.py"], env={**os.environ, "RANK": "1", "WORLD_SIZE": "1"})
    subprocess.run([python, "child.py"], env={**os.environ, "ONE": "MORE"})
    run(python, "child.py", env={})
    run(python, "child.py", env={**os.environ, "ZEUSRUN_RUN_DIR": ""})  # a daemon
    """)
    assert set(seen) == {"alone"}


def test_a_rank_that_is_one_of_several_reaches_no_program(start):
    assert start('run(python, "child.py")', WORLD_SIZE="2", LOCAL_RANK="0") == ["alone"]


def test_a_program_that_finds_no_zeusrun_starts_as_before(start, tmp_path):
    (tmp_path / "broken" / "zeusrun").mkdir(parents=True)
    (tmp_path / "broken" / "zeusrun" / "__init__.py").write_text("raise ImportError('broken')")
    assert start("""
    os.environ["PYTHONPATH"] = "broken"
    run(python, "-O", "child.py", "a")
    """) == ["alone"]


def test_its_end_is_that_of_its_script(start):
    start(
        """
    for how in ("sys.exit(7)", "sys.exit('text')", "1 / 0", "os.abort()", "os.kill(os.getpid(), 15)",
                "signal.raise_signal(2)", "quit()", "import nothing_of_this_name", "os._exit(3)"):
        run(python, "child.py", how)
    run(python, "nowhere.py")
    run(python, "-m", "nothing_of_this_name")
    try:
        subprocess.run([python, "child.py", "1 / 0"], env={**os.environ, **RANK}, check=True)
    except subprocess.CalledProcessError as error:
        print(error)
    child = subprocess.Popen([python, "-u", "child.py", "print(1); time.sleep(60)"],
                             env={**os.environ, **RANK}, stdout=subprocess.PIPE)
    print(child.stdout.read(1))
    child.terminate()
    print(child.wait(), repr(child))
    """,
        child="import atexit, os, signal, sys, time; atexit.register(print, 'hook')\nexec(sys.argv[1])",
    )


@pytest.mark.long  # two imports of torch
def test_its_failure_is_the_cause_and_not_that_the_script_found_it_failed(tmp_path):
    (tmp_path / "child.py").write_text("""
import os
from torch import distributed
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", "file://" + os.path.abspath("group"), rank=rank, world_size=2)
distributed.barrier()
if rank == 1:
    raise MemoryError("too large")
distributed.barrier()
""")
    script = tmp_path / "parent.py"
    script.write_text(
        PARENT
        + """
command = [python, "child.py"]
children = [subprocess.Popen(command, env={**os.environ, **RANK, "RANK": rank}) for rank in "01"]
codes = [child.wait() for child in children]
raise RuntimeError(codes)
"""
    )
    rank = Rank(tmp_path / "run")
    code, log = rank.run(script, cwd=tmp_path)
    assert code == 1
    assert "RuntimeError: [1, 1]" in log
    assert 'child.py", line 8, in <module>' in log
    assert (rank.error["rank"], rank.error["kind"]) == (1, "out_of_memory")

"""How a rank ends: files are closed, and the exit code is that of Python, also beside gloo."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.worker.rank import Rank
from zeusrun.worker import ending

GROUP = """
import os, signal, sys, threading, time
from torch import distributed
from zeusrun.worker.environment import has_gloo_group
distributed.init_process_group({backend}store=distributed.HashStore(), rank=0, world_size=1)
assert has_gloo_group()
"""
# Its handler runs while the rank waits for the thread.
RAISES_IN_HANDLER = """
def send():
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
threading.Thread(target=send).start()
globals()[1] = "a name that is no text"
"""
SIGNALLED_LATE = """
class Ends:
    def __del__(self, kill=os.kill, pid=os.getpid(), sleep=time.sleep):
        kill(pid, 15)
        sleep(5)
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
left = Ends()
"""


@pytest.fixture
def run(tmp_path):
    def run_script(text):
        (tmp_path / "script.py").write_text(text)
        return Rank(tmp_path / "run").run(tmp_path / "script.py")

    return run_script


@pytest.mark.parametrize(
    "backend",
    ["'gloo', ", pytest.param("", marks=pytest.mark.long)],  # imports torch once more
    ids=["gloo", "none named"],
)
def test_what_a_signal_handler_raises_while_threads_are_joined_does_not_end_the_rank(run, backend):
    code, log = run(GROUP.format(backend=backend) + RAISES_IN_HANDLER)
    assert code == 0, log
    if sys.version_info < (3, 13):  # then Python itself prints it
        assert "Exception ignored in: <module 'threading'" in log
    assert "SystemExit: 5" in log


def test_a_signal_that_comes_while_modules_are_taken_down_reaches_no_handler(run):
    assert run(GROUP.format(backend="") + SIGNALLED_LATE) == (-signal.SIGTERM, "")


def test_a_folder_whose_name_begins_as_that_of_zeusrun_is_the_scripts():
    module = types.ModuleType("helpers")
    module.__file__ = f"{ending.__file__.rpartition('/worker/')[0]}_jobs/helpers.py"
    assert ending._is_of_script("helpers", module)
    module.__file__ = ending.__file__
    assert not ending._is_of_script("helpers", module)


def test_a_script_that_fails_leaves_its_compressed_files_whole(run, tmp_path):
    path = tmp_path / "log.gz"
    code, _ = run(
        f"import gzip\npacked = gzip.open({str(path)!r}, 'wt')\npacked.write('a')\n1 / 0\n"
    )
    assert (code, gzip.decompress(path.read_bytes())) == (1, b"a")


LEFT_OPEN = """
import json
time.sleep = print  # as a script that is tested may do

class Rows:
    one = None
    def __init__(self):
        self.file = open("rows.json", "w")
    def __del__(self):
        self.file.write(json.dumps([1.5]))
        self.file.close()

class Trainer:
    def __del__(self):
        writer.write("the trainer is gone")

def watch():
    while True:
        try:
            state["watched"] += 1
        except Exception as error:
            print(f"the thread fails: {error}")

Rows.one, trainer, writer = Rows(), Trainer(), open("writer.txt", "w")
state = {"watched": 0}
threading.Thread(target=watch, daemon=True).start()
"""


def test_what_is_left_to_the_interpreter_finds_its_names_and_daemon_threads_stand_still(
    run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run(GROUP.format(backend="") + LEFT_OPEN) == (0, "")
    assert Path("rows.json").read_text() == "[1.5]"
    assert Path("writer.txt").read_text() == "the trainer is gone"


FIRST_FAILS = """
import os, time
from torch import distributed
distributed.init_process_group("gloo")
pids = [None, None]
distributed.all_gather_object(pids, os.getpid())
if distributed.get_rank():
    raise SystemExit("a bad batch")
try:
    distributed.barrier()
except RuntimeError:
    noticed_t = time.monotonic()
    while os.path.exists(f"/proc/{pids[1]}/fd/0"):
        time.sleep(0.01)
    print(f"{time.monotonic() - noticed_t:.2f}")
"""


def test_names_that_something_installed_refers_to_go_last(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = LEFT_OPEN.replace("time.sleep = print", "os.getcwd = lambda: writer")
    code, _ = run(GROUP.format(backend="") + text)
    assert (code, Path("rows.json").read_text()) == (0, "[1.5]")


FORKS = """
import os, time
from torch import distributed, ones
distributed.init_process_group("gloo")
if distributed.get_rank():
    child = os.fork()
    if not child:
        raise SystemExit(3)
    while not os.path.exists(f"/proc/{child}/stat"):
        pass
    while " Z " not in open(f"/proc/{child}/stat").read():
        time.sleep(0.01)
for _ in range(3):
    distributed.all_reduce(ones(1))
print("well")
"""


def test_a_forked_process_that_fails_closes_no_connection_of_its_rank(tmp_path):
    (tmp_path / "script.py").write_text(FORKS)
    assert Rank(tmp_path / "run").run_all(tmp_path / "script.py") == ("well\n", "well\n")


JOINS = """
def join_all():
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join()
import atexit
atexit.register(join_all)
"""


def test_an_exit_hook_may_join_all_threads(run):
    assert run(GROUP.format(backend="") + JOINS) == (0, "")


def test_the_other_ranks_notice_a_rank_that_fails_before_it_has_ended(tmp_path):
    (tmp_path / "script.py").write_text(FIRST_FAILS)
    codes, logs = Rank(tmp_path / "run").run_together(tmp_path / "script.py")
    assert codes[1] == 1, logs
    assert float(logs[0]) > 0.5, logs  # torchrun ends them once it has


def test_why_the_last_output_cannot_be_flushed_is_said(run):
    text = "class Tee:\n    def write(self, text): pass\nsys.stdout = Tee()\n"
    code, log = run(GROUP.format(backend="") + text)
    assert code == 120
    assert log.count("Exception ignored in: ") == 1
    assert log.endswith("AttributeError: 'Tee' object has no attribute 'flush'\n")


_LATE = """
import os
from zeusrun.worker.ending import end_with_parent
end_with_parent()
print("ZEUSRUN_AGENT" in os.environ)
"""


@pytest.mark.parametrize("state", ["alive", "ended", "zombie"])
def test_a_rank_that_begins_after_the_death_of_its_agent_ends_at_once(state):
    """The kernel signals only the deaths that come after it was asked to."""
    agent = subprocess.Popen(["sleep", "60"])
    if state != "alive":
        agent.kill()
        os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    if state == "ended":
        agent.wait()
    environment = {**os.environ, "ZEUSRUN_AGENT": str(agent.pid)}
    command = [sys.executable, "-c", _LATE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    agent.kill()
    agent.wait()
    assert (done.returncode, done.stdout) == ((0, "False\n") if state == "alive" else (1, ""))

"""PBS as a backend, over a stand-in for its commands which runs what it is given.

The files beside this one and a line in the table are all that it takes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

import pytest

from tests.contracts.backend import BackendContract
from tests.factories import shebang
from zeusrun.run_on.registry import BACKENDS, Backend

ROOT = Path(__file__).resolve().parents[3]
LINE = 'Backend("tests.run_on.pbs", r"\\d{1,9}", shares_home=True)'
# In the processes that zeusrun starts: the line of the table.
_SITE = f"""
import zeusrun.run_on.registry as registry
from zeusrun.run_on.registry import Backend
registry.BACKENDS["pbs"] = {LINE}
"""
_PROGRAM = """{shebang}import json, os, signal, subprocess, sys
folder, (name, *args) = {folder!r}, [os.path.basename(sys.argv[0]), *sys.argv[1:]]
def path(number): return os.path.join(folder, number + ".json")
def read(number):
    job = json.load(open(path(number)))
    if job["pid"] and job["job_state"] == "R":
        try:
            os.kill(job["pid"], 0)
        except ProcessLookupError:
            job["job_state"] = "F"
    return job
def write(number, job):
    json.dump(job, open(path(number), "w"))
if name == "qsub":
    number = str(1 + len([each for each in os.listdir(folder) if each.endswith(".json")]))
    text = open(args[-1]).read()
    out = [line.split(" ", 2)[2] for line in text.splitlines() if line.startswith("#PBS -o ")][0]
    nodes = os.path.join(folder, "nodes")
    open(nodes, "w").write("localhost\\n")
    held = os.path.exists(os.path.join(folder, "hold"))
    pid = 0 if held else subprocess.Popen(
        ["bash", args[-1]], stdin=subprocess.DEVNULL, stdout=open(out, "ab"),
        stderr=subprocess.STDOUT, start_new_session=True,
        env={{**os.environ, "PBS_JOBID": number, "PBS_NODEFILE": nodes}}).pid
    write(number, {{"job_state": "Q" if held else "R", "pid": pid}})
    print(number)
elif not os.path.exists(path(args[-1])):
    sys.exit("qstat: Unknown Job Id")
elif name == "qstat":
    print(json.dumps({{"Jobs": {{args[-1]: read(args[-1])}}}}))
else:
    job = read(args[-1])
    if job["pid"] and job["job_state"] == "R":
        os.killpg(job["pid"], signal.SIGINT if name == "qsig" else signal.SIGTERM)
    if name == "qdel":
        write(args[-1], {{**job, "job_state": "F"}})
"""


class TestPBS(BackendContract):
    BACKEND = "pbs"
    SECTION: ClassVar = {"queue": "main"}

    @pytest.fixture
    def scheduler(self, tmp_path, monkeypatch):
        """The commands, first on ``PATH``; each job is a file of the folder that is returned."""
        folder = tmp_path / "pbs"
        folder.mkdir()
        for name in ("qsub", "qstat", "qdel", "qsig"):
            text = _PROGRAM.format(shebang=shebang("-ISB"), folder=str(folder))
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr("zeusrun.run_on.registry._states", {})
        line = eval(LINE, {"Backend": Backend})
        monkeypatch.setitem(BACKENDS, "pbs", line)
        return folder

    @pytest.fixture
    def variables(self, scheduler, tmp_path):
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE)
        (scheduler / "hold").touch()
        return {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PYTHONUNBUFFERED": "1"}  # no fork

    @pytest.fixture
    def put(self, scheduler):
        def make(state):
            number = str(1 + len(list(scheduler.glob("*.json"))))
            letter = {"queued": "Q", "running": "R", "ended": "F"}.get(state)
            if letter is None:
                return "pbs:999"
            (scheduler / f"{number}.json").write_text(json.dumps({"job_state": letter, "pid": 0}))
            return f"pbs:{number}"

        return make

    def test_a_submit_runs_in_its_job_and_reaches_the_target(self, run, scheduler, zeusrun):
        (scheduler / "hold").unlink()
        code, shown, errors = run("submit", "--json", job=self.SECTION)
        assert code == 0, errors
        (trial,) = json.loads(shown.splitlines()[-1])["trials"]
        assert (trial["status"], trial["allocation"]) == ("REACHED", "pbs:1")
        assert "pbs:1 is" in errors
        assert run("logs", "pbs:1")[0] == 0

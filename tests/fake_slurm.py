"""A stand-in for the commands of Slurm: a folder of small programs over a file of jobs.

It decides nothing: a test says what state a job has. What it prints, and its exit codes, are those
of Slurm 22.05; ``tests/contracts/slurm.py`` holds both to that.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

_PROGRAM = """#!{python} -ISB
import fcntl, json, os, re, sys
folder, (name, *args) = {folder!r}, [os.path.basename(sys.argv[0]), *sys.argv[1:]]
stream = open(folder + "/jobs.json", "r+")
fcntl.flock(stream, fcntl.LOCK_EX)
world = json.load(stream)
jobs, known = world["jobs"], lambda job: job in jobs and not jobs[job]["forgotten"]
options = dict(re.findall(r"^--([A-Za-z-]+)=?(.*)", "\\n".join(args), re.M))
words = [each for each in args if not each.startswith("-")]
noted = {{"argv": [name, *args], "environment": dict(os.environ)}}

def save():
    stream.seek(0)
    json.dump(world, stream)
    stream.truncate()
    stream.flush()

def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)

def change(job, **values):
    jobs[job].update(values)

world["calls"].append(noted)
save()
if world["fails"].get(name):
    fail(*world["fails"][name])
if name == "sbatch":
    noted["script"] = script = open(words[-1]).read()
    asked = dict(re.findall(r"^#SBATCH --([A-Za-z-]+)=?(.*)", script, re.M))
    if asked.get("partition") not in (None, "main", "urgent"):
        said = ["invalid partition specified: " + asked["partition"]]
        said.append("Batch job submission failed: Invalid partition name specified")
        fail("\\n".join("sbatch: error: " + each for each in said))
    number = str(world["next"])
    world["next"] += 1
    job = jobs[number] = dict(world["new"])
    if "hold" in asked:
        change(number, state="PENDING", reason="JobHeldUser", nodes="")
    elif script.endswith("\\ntrue\\n"):
        change(number, state="COMPLETED")
    save()
    print(number)
elif name == "squeue":
    asked = options["jobs"].split(",")
    if len(asked) == 1 and not known(asked[0]):
        fail("slurm_load_jobs error: Invalid job id specified")
    columns = re.findall(r"(\\w+):\\|", options["Format"])
    for job in filter(known, asked):
        row = {{"JobID": job, "State": jobs[job]["state"], "Reason": jobs[job]["reason"]}}
        row |= {{"RestartCnt": jobs[job]["restarts"], "PreemptTime": jobs[job]["preempt"]}}
        row |= {{"StartTime": jobs[job]["start"], "EndTime": jobs[job]["end"]}}
        row |= {{"TimeLimit": jobs[job]["limit"], "NodeList": jobs[job]["nodes"]}}
        print("".join(f"{{row[each]}}|" for each in columns))
elif name == "sacct":
    for job in options["jobs"].split(","):
        if job in jobs and jobs[job]["account"]:
            print(job + "|" + jobs[job]["account"])
elif name == "scancel":
    job, signalled = words[0], "signal" in options
    if not known(job) or (signalled and jobs[job]["state"] in {ended!r}):
        fail(f"scancel: error: Kill job error on job id {{job}}: Invalid job id specified")
    if signalled and jobs[job]["state"] == "PENDING":
        said = "Job can not be altered now, try again later"
        fail(f"scancel: error: Kill job error on job id {{job}}: {{said}}", 228)
    if not signalled and jobs[job]["state"] not in {ended!r}:
        change(job, state="CANCELLED")
    save()
elif args[:2] == ["show", "hostnames"]:
    for part in re.findall(r"[^,\\[]+(?:\\[[^\\]]*\\])?", words[-1]):
        stem, _, ranges = part.rstrip("]").partition("[")
        for each in ranges.split(","):
            first, _, last = each.partition("-")
            for n in range(int(first or 0), int(last or first or 0) + 1):
                print(stem + (str(n).zfill(len(first)) if first else ""))
elif args[:1] == ["requeue"]:
    if not known(words[-1]):
        fail(f"Invalid job id specified for job {{words[-1]}}")
    restarts = jobs[words[-1]]["restarts"] + 1
    change(words[-1], state="PENDING", reason="BeginTime", restarts=restarts, end="NONE", nodes="")
    save()
else:
    fail(f"{{name}} {{args}} is not part of the stand-in", 99)
"""
_ENDED = ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"]
_NEW = {
    "state": "RUNNING",
    "reason": "None",
    "restarts": 0,
    "preempt": "N/A",
    "start": "2026-01-01T00:00:00",
    "end": "2027-01-01T00:00:00",
    "limit": "UNLIMITED",
    "nodes": "n1",
    "forgotten": False,  # by the controller
    "account": "",  # its state in the accounting; empty if there is none
}


def local_time(since_now_s):
    """Return a time, so many seconds from now, as Slurm writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + since_now_s))


class FakeSlurm:
    """The commands, first on ``PATH``, and the jobs that they know.

    Attributes:
        folder: Contains the commands.
    """

    def __init__(self, folder) -> None:
        self.folder = Path(folder)
        self.folder.mkdir()
        self._write({"next": 1, "jobs": {}, "new": _NEW, "calls": [], "fails": {}})
        text = _PROGRAM.format(python=sys.executable, folder=str(self.folder), ended=_ENDED)
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol"):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    @property
    def path(self):
        """The value of ``PATH`` under which its commands are found first."""
        return f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def put(self, job_id, state="RUNNING", **values) -> str:
        """Set a job, as ``_NEW`` has it; return its name."""
        world = self._read()
        world["jobs"][job_id] = {**_NEW, "state": state, **values}
        self._write(world)
        return f"slurm:{job_id}"

    def fail(self, command, text="slurmctld does not respond", code=1):
        """Let a command fail from now on."""
        world = self._read()
        world["fails"][command] = [text, code]
        self._write(world)

    def calls(self, command=None, *, key="argv"):
        """Return the calls so far, of one command or of all."""
        return [each[key] for each in self._read()["calls"] if command in {None, each["argv"][0]}]

    def _read(self):
        return json.loads((self.folder / "jobs.json").read_text())

    def _write(self, world):
        (self.folder / "jobs.json").write_text(json.dumps(world))

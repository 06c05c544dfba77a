"""A stand-in for the commands of Slurm: a folder of small programs over a file of jobs.

It decides nothing: a test says what state a job has. What it prints, and its exit codes, are those
of Slurm 22.05; ``tests/contracts/slurm.py`` holds both to that.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import time
from contextlib import contextmanager
from pathlib import Path

from tests.factories import shebang

_PROGRAM = """{shebang}import fcntl, marshal, os, sys, time  # json and re would double the time to start
folder, (name, *args) = {folder!r}, [os.path.basename(sys.argv[0]), *sys.argv[1:]]
stream = open(folder + "/jobs", "rb+")
fcntl.flock(stream, fcntl.LOCK_EX)
world = marshal.load(stream)
jobs, known = world["jobs"], lambda job: job in jobs and not jobs[job]["forgotten"]

def read_options(words, mark):
    found = (word[len(mark):].partition("=") for word in words if word.startswith(mark))
    return {{name: value for name, _, value in found}}

options = read_options(args, "--")
words = [each for each in args if not each.startswith("-")]
noted = {{"argv": [name, *args], "environment": dict(os.environ)}}

def save():
    stream.seek(0)
    marshal.dump(world, stream)
    stream.truncate()
    stream.flush()

def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)

def local(t):
    return t if isinstance(t, str) else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(t))

def change(job, **values):
    jobs[job].update(values)

world["calls"].append(noted)
save()
if world["fails"].get(name):
    fail(*world["fails"][name])
if name == "sbatch":
    noted["script"] = script = open(words[-1]).read()
    asked = read_options(script.splitlines(), "#SBATCH --")
    if asked.get("partition") not in (None, "main", "urgent"):
        said = ["invalid partition specified: " + asked["partition"]]
        said.append("Batch job submission failed: Invalid partition name specified")
        fail("\\n".join("sbatch: error: " + each for each in said))
    number = str(world["next"])
    world["next"] += 1
    job = jobs[number] = dict(world["new"], start=time.time(), end=time.time() + 86400)
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
    columns = [each.removesuffix(":|") for each in options["Format"].split(",")]
    for job in filter(known, asked):
        row = {{"JobID": job, "State": jobs[job]["state"], "Reason": jobs[job]["reason"]}}
        row |= {{"RestartCnt": jobs[job]["restarts"], "PreemptTime": local(jobs[job]["preempt"])}}
        row |= {{"StartTime": local(jobs[job]["start"]), "EndTime": local(jobs[job]["end"])}}
        row |= {{"TimeLimit": jobs[job]["limit"], "NodeList": jobs[job]["nodes"]}}
        print("".join(f"{{row[each]}}|" for each in columns))
elif name == "srun":
    stream.close()
    os.execvp(words[0], words)
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
    import re
    for part in re.findall(r"[^,\\[]+(?:\\[[^\\]]*\\])?", words[-1]):
        stem, _, ranges = part.rstrip("]").partition("[")
        for each in ranges.split(","):
            first, _, last = each.partition("-")
            for n in range(int(first or 0), int(last or first or 0) + 1):
                print(stem + (str(n).zfill(len(first)) if first else ""))
elif args[:3] == ["--oneliner", "show", "node"]:
    if words[-1] not in world["addresses"]:
        fail(f"Node {{words[-1]}} not found")
    print(f"NodeName={{words[-1]}} Arch=x86_64 NodeAddr={{world['addresses'][words[-1]]}} Port=6818")
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
    "start": -60,
    "end": 86400,
    "limit": "UNLIMITED",
    "nodes": "n1",
    "forgotten": False,  # by the controller
    "account": "",  # its state in the accounting; empty if there is none
}


class FakeSlurm:
    """The commands, first on ``PATH``, and the jobs that they know.

    Attributes:
        folder: Contains the commands.
    """

    def __init__(self, folder) -> None:
        self.folder = Path(folder)
        self.folder.mkdir()
        empty = {"next": 1, "jobs": {}, "new": _NEW, "calls": [], "fails": {}, "addresses": {}}
        (self.folder / "jobs").write_bytes(marshal.dumps(empty))
        text = _PROGRAM.format(shebang=shebang("-ISB"), folder=str(self.folder), ended=_ENDED)
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun"):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    @property
    def path(self):
        """The value of ``PATH`` under which its commands are found first."""
        return f"{self.folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def put(self, job_id, state="RUNNING", **values) -> str:
        """Set a job, as ``_NEW`` has it; return its name. Times are seconds from now, or words."""
        job = {**_NEW, "state": state, **values}
        for name in ("preempt", "start", "end"):
            job[name] = job[name] if isinstance(job[name], str) else time.time() + job[name]
        with self._world() as world:
            world["jobs"][job_id] = job
        return f"slurm:{job_id}"

    def place(self, node, address):
        """Let a node have an address, as ``scontrol show node`` says it."""
        with self._world() as world:
            world["addresses"][node] = address

    def fail(self, command, text="slurmctld does not respond", code=1):
        """Let a command fail from now on."""
        with self._world() as world:
            world["fails"][command] = [text, code]

    def calls(self, command=None, *, key="argv"):
        """Return the calls so far, of one command or of all."""
        with self._world() as world:
            return [each[key] for each in world["calls"] if command in {None, each["argv"][0]}]

    @contextmanager
    def _world(self):
        """Yield what the commands know, and store it."""
        with (self.folder / "jobs").open("rb+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            world = marshal.load(stream)
            yield world
            stream.seek(0)
            marshal.dump(world, stream)
            stream.truncate()

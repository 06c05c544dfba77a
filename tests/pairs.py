"""Two hosts of a test, and the ``zeusrun`` that is run on either."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.hosts import TwoHosts
from tests.runs import wait_for

TRAINS = """
import os, time, zeusrun
print("secret of", len(os.environ.get("HF_TOKEN", "")), flush=True)
run = zeusrun.current()
for epoch in run.epochs(default=10**6):
    time.sleep(0.2)
    run.report(epoch=epoch, accuracy=0.5 if os.path.exists("enough") else 0.0)
"""
ENDLESS = {"max_epochs": 10**6}


class Pair:
    """Two hosts, and a ``zeusrun`` that is run on either; ``job`` writes one for both."""

    def __init__(self, zeusrun, hosts) -> None:
        self.zeusrun, self.hosts = zeusrun, hosts
        self.a, self.b = hosts.a, hosts.b
        self.fan_out = " ".join([*hosts.ssh_command, "{host}"])
        self._logs = {}

    def job(self, script="well.py", *, run_on=None, **changes):
        """Write a job file; without a name of a script one that trains until there is ``enough``."""
        section = {"hosts": ["a", "b"], "fan_out": self.fan_out, **(run_on or {})}
        if script is None:
            script = "train.py"
            (self.zeusrun.folder / script).write_text(TRAINS)
            changes = {"objective": ENDLESS, "attempts": 1, **changes}
        return self.zeusrun.job(script, run_on=section, **changes)

    def submit(self, job, *arguments, **env):
        """Submit on ``a`` and return ``(exit code, result object, what people see)``."""
        done = self.run("submit", job, "--json", *arguments, **env)
        last = done.stdout.strip().splitlines()[-1:] or ["null"]
        return done.returncode, json.loads(last[0]), done.stderr

    def run(self, *arguments, on="a", **env):
        """Run the command to its end."""
        return getattr(self, on).run(
            self.zeusrun.argv(*arguments),
            cwd=self.zeusrun.folder,
            env={**self.zeusrun.environment, **env},
            timeout=300,
        )

    def start(self, *arguments, on="a", **env):
        """Start the command in a process group of its own; ``seen`` is what it has printed."""
        log = self.zeusrun.folder / f"output{len(self._logs)}"
        with log.open("wb") as stream:
            child = getattr(self, on).start(
                self.zeusrun.argv(*arguments),
                start_new_session=True,
                **self.zeusrun.printing_to(stream, env),
            )
        self._logs[child] = log
        return child

    def seen(self, child):
        return self._logs[child].read_text()

    def wait_until_seen(self, child, pattern):
        """Return the match in what a command has printed."""

        def found():
            match = re.search(pattern, self.seen(child))
            if match is None and child.poll() is not None:
                pytest.fail(f"it has ended with {child.returncode}: {self.seen(child)}")
            return match

        return wait_for(found, 60, what=f"{pattern} in {self.seen(child)}")

    def start_and_wait(self, job, **env):
        """Start a submit; return it when an epoch was reported, and all ranks run."""
        child = self.start("submit", job, **env)

        def trains():
            kinds = {each["event"] for each in self.events()}
            return "reported" in kinds and self.ranks_with("started") == {0, 1}

        wait_for(lambda: child.poll() is not None or trains(), 60, what="a report")
        assert child.poll() is None, self.seen(child)
        return child

    def end(self, child):
        """Wait for a submit; return its exit code, its trial and what people saw."""
        child.wait(300)
        return child.returncode, self.zeusrun.history()[0], self.seen(child)

    def events(self, trial="job-1-1"):
        """Return the events in the head's sidecar."""
        with suppress(FileNotFoundError):
            lines = (self.zeusrun.run_dir(trial) / "metrics.jsonl").read_text().splitlines()
            return [json.loads(line) for line in lines if line.endswith("}")]
        return []

    def ranks_with(self, event, trial="job-1-1"):
        return {each.get("rank") for each in self.events(trial) if each["event"] == event}

    def left_on_b(self):
        """Return the processes on ``b``, but the sessions of sshd: they outlive a cut by hours."""
        found = {}
        for pid in self.b.pids():
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
        return {pid: words for pid, words in found.items() if not words.startswith(b"sshd: ")}

    def launcher_of_b(self):
        """Return the process id of the node launcher."""
        words = b"\0-m\0zeusrun\0node\0001\0"
        (pid,) = (pid for pid, its in self.left_on_b().items() if its.endswith(words))
        return pid

    def wait_until_b_is_empty(self):
        wait_for(lambda: not self.left_on_b(), 60, what="the end of b's processes")

    def check_that_b_is_empty(self):
        """Check that no process of the run is left on ``b``, and no file of its part."""
        self.wait_until_b_is_empty()
        for home in (self.zeusrun.home, self.b.path(self.zeusrun.home)):
            assert not list(home.glob("runs/*/*/nodes"))


@contextmanager
def open_pair(zeusrun, **options):
    folder = zeusrun.folder / "hosts"
    with TwoHosts(folder, home=zeusrun.home, sshd=True, **options) as hosts:
        yield Pair(zeusrun, hosts)

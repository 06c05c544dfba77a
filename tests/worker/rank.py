"""Runs one rank, or two, the way torchrun starts them, and without torchrun's two seconds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import zeusrun
from zeusrun.metrics.base import SidecarReader
from zeusrun.sidecar.step_clock import read_step_clock

WORKER = Path(zeusrun.__file__).parent / "worker" / "__main__.py"


@dataclass
class Rank:
    """The run directory of a trial, and how to start its ranks."""

    run_dir: Path

    def __post_init__(self):
        for name in ("logs", "clock", "checkpoints"):
            (self.run_dir / name).mkdir(parents=True)

    def environment(self, **changes):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSRUN_", "PYTHON"))}
        return {
            **kept,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "ZEUSRUN_JOB": "job",
            "ZEUSRUN_TRIAL": "job-1-1",
            "ZEUSRUN_BATCH_SIZE": "32",
            "ZEUSRUN_MAX_EPOCHS": "5",
            "ZEUSRUN_METRIC": "accuracy",
            "ZEUSRUN_TARGET": "0.5",
            "ZEUSRUN_MODE": "max",
            "ZEUSRUN_ON_TARGET": "stop",
            "ZEUSRUN_RUN_DIR": str(self.run_dir),
            "ZEUSRUN_SIDECAR": str(self.run_dir / "metrics.jsonl"),
            "ZEUSRUN_CHECKPOINT_DIR": str(self.run_dir / "checkpoints"),
            **changes,
        }

    def start(self, *arguments, cwd=None, **changes):
        return subprocess.Popen(
            [sys.executable, "-u", str(WORKER), *map(str, arguments)],
            env=self.environment(**changes),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self, *arguments, cwd=None, **changes):
        """Run to the end; return ``(exit code, what it printed)``."""
        code = self.start(*arguments, cwd=cwd, **changes).wait(timeout=300)
        return code, self.log(changes.get("RANK", "0"))

    def run_forked(self, forks, *arguments, **changes):
        """Run a script to its end in a fork that has imported torch."""
        environment = self.environment(**changes)
        argv = ["zeusrun.worker", *map(str, arguments)]
        done = forks.run(argv, environment, self.run_dir)
        return done.returncode, self.log(changes.get("RANK", "0"))

    def run_all(self, *arguments, world_size, cwd=None, **changes):
        """Run that many ranks to their ends, all of them well; return what each printed."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = str(listener.getsockname()[1])
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "job-1-1",
            "OMP_NUM_THREADS": "1",
        }
        started = [
            self.start(
                *arguments, cwd=cwd, **{**shared, "RANK": rank, "LOCAL_RANK": rank, **changes}
            )
            for rank in map(str, range(world_size))
        ]
        codes = [process.wait(timeout=300) for process in started]
        logs = [self.log(str(rank)) for rank in range(world_size)]
        assert codes == [0] * world_size, logs
        return logs

    def log(self, rank="0"):
        return (self.run_dir / "logs" / f"rank{rank}.log").read_text()

    @property
    def error(self):
        return json.loads((self.run_dir / "error.json").read_text())

    @property
    def steps(self):
        return read_step_clock(self.run_dir / "clock" / "rank0")

    @property
    def events(self):
        reader = SidecarReader(self.run_dir / "metrics.jsonl")
        events = reader.read(final=True)
        assert reader.warnings == []
        return events


def run_plain(*arguments, cwd=None):
    """Run as ``python`` itself would; return ``(exit code, both streams in one)``."""
    done = subprocess.run(
        [sys.executable, "-u", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout

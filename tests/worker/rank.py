"""Runs one rank, or two, the way torchrun starts them, and without torchrun's two seconds."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zeusrun
from tests.forks import torch_forks
from zeusrun.metrics.base import SidecarReader
from zeusrun.sidecar.step_clock import read_step_clock

WORKER = Path(zeusrun.__file__).parent / "worker" / "process" / "__main__.py"


@dataclass
class Rank:
    """The run directory of a trial, and how to start its ranks."""

    run_dir: Path

    def __post_init__(self):
        for name in ("logs", "clock", "checkpoints"):
            (self.run_dir / name).mkdir(parents=True, exist_ok=True)

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

    def run_forked(self, *arguments, cwd=None, **changes):
        """Run a script to its end in a fork that has imported torch."""
        environment = self.environment(**changes)
        argv = ["zeusrun.worker.process", *map(str, arguments)]
        done = torch_forks().run(argv, environment, cwd or self.run_dir)
        return done.returncode, self.log(changes.get("RANK", "0"))

    def run_together(self, *arguments, world_size=2, cwd=None, **changes):
        """Run that many ranks to their ends, each in a fork; return their codes and logs."""
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "job-1-1",
            "OMP_NUM_THREADS": "1",
            **changes,
        }

        def run(rank):
            return self.run_forked(*arguments, cwd=cwd, RANK=rank, LOCAL_RANK=rank, **shared)

        torch_forks()  # before the threads could make several
        with ThreadPoolExecutor(world_size) as pool:
            return tuple(zip(*pool.map(run, map(str, range(world_size))), strict=True))

    def run_all(self, *arguments, **changes):
        """Run ranks as ``run_together``, all of them well; return what each printed."""
        codes, logs = self.run_together(*arguments, **changes)
        assert not any(codes), logs
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


def free_port():
    """Return a port below those that the kernel gives to other tests' sockets meanwhile."""
    while True:
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return str(listener.getsockname()[1])


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

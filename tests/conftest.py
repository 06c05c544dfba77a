"""A zeusrun of its own for each test: its own home, job files from a template, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
CHILDREN = Path(__file__).resolve().parent / "children"


@dataclass
class Zeusrun:
    """Runs the command as a user does."""

    home: Path
    folder: Path

    @property
    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSRUN_", "CUDA_"))}
        return {**kept, "ZEUSRUN_HOME": str(self.home), "COLUMNS": "100", "NO_COLOR": "1"}

    def argv(self, *arguments):
        return [sys.executable, "-m", "zeusrun", *map(str, arguments)]

    def __call__(self, *arguments, **env):
        return subprocess.run(
            self.argv(*arguments),
            cwd=self.folder,
            env={**self.environment, **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, *arguments, **env):
        return subprocess.Popen(
            self.argv(*arguments),
            cwd=self.folder,
            env={**self.environment, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def job(self, script="well.py", name="job", **changes):
        """Write a job file around a child script; ``objective={...}`` and the like are merged."""
        spec = {
            "name": name,
            **({} if script is None else {"script": str(CHILDREN / script)}),
            "launch": {"nproc_per_node": 1, "grace_period_s": 2},
            "objective": {"metric": "accuracy", "target": 0.5, "max_epochs": 5},
            "batch_size": {"default": 32, "candidates": [16, 32, 64]},
        }
        for key, value in changes.items():
            merge = isinstance(value, dict) and isinstance(spec.get(key), dict)
            spec[key] = {**spec[key], **value} if merge else value
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(spec))
        return path

    def submit(self, job, *arguments):
        """Submit and return ``(exit code, result object, what people see)``."""
        done = self("submit", job, "--json", *arguments)
        last = done.stdout.strip().splitlines()[-1:] or ["null"]
        return done.returncode, json.loads(last[0]), done.stderr

    def history(self, *arguments):
        done = self("history", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def zeusrun(tmp_path):
    """A ``zeusrun`` command with an empty home."""
    return Zeusrun(tmp_path / "home", tmp_path)

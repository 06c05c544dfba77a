"""A running trial for the tests of verbs."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.runs import wait_for


@pytest.fixture
def running(zeusrun):
    """Start a submit of a job; it is waited for until it has reported an epoch."""

    def run(script="ignores_sigterm.py", name="job", **changes):
        child = zeusrun.start("submit", zeusrun.job(script, name, **changes))
        live = zeusrun.home / "runs" / name / f"{name}-1-1" / "live.json"
        wait_for(lambda: live.exists() and json.loads(live.read_text())["epochs"])
        return child

    return run


@pytest.fixture
def command(cli):
    """Run the command in this process; what it returns is as of ``zeusrun``, which takes longer."""

    def run(*arguments):
        return subprocess.CompletedProcess(arguments, *cli(*arguments))

    return run

"""Debian's cron, for real: it is installed and started here where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import psutil
import pytest

from tests.runs import wait_for
from zeusrun.schedule.store import Schedules

pytestmark = [pytest.mark.long, pytest.mark.torchrun]

BEFORE = b'# mine\nMAILTO=""\n0  3 * * *   true  # two  spaces\n@yearly  true'


@pytest.fixture(scope="module")
def cron():
    """Start a cron daemon, unless one runs."""
    if shutil.which("crontab") is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.skip("there is no cron here, and only root may install it by apt-get")
        install = ["apt-get", "install", "-y", "--no-install-recommends", "cron"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cron cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    if any(process.info["name"] == "cron" for process in psutil.process_iter(["name"])):
        yield
        return
    if os.geteuid() != 0:
        pytest.skip("cron does not run, and only root may start it")
    with subprocess.Popen(["cron", "-f"], stdin=subprocess.DEVNULL) as daemon:
        # cron tells a change by its second: two in the one in which it starts are one to it.
        time.sleep(1.1)
        yield
        daemon.terminate()


@pytest.fixture
def crontab(cron):
    """Give the user a crontab of ours while a test runs, and the own one back."""
    own = subprocess.run(["crontab", "-l"], capture_output=True, check=False)
    subprocess.run(["crontab", "-"], input=BEFORE + b"\n", check=True)
    yield lambda: subprocess.run(["crontab", "-l"], capture_output=True, check=True).stdout
    if own.returncode == 0:
        subprocess.run(["crontab", "-"], input=own.stdout, check=True)
    else:
        subprocess.run(["crontab", "-r"], check=True)


def test_cron_runs_a_job_of_two_ranks_every_minute_and_the_crontab_is_as_before(zeusrun, crontab):
    job = zeusrun.job(
        "trains_ddp.py", "nightly", launch={"nproc_per_node": 2}, objective={"target": 0.0}
    )
    added = zeusrun("schedule", "add", job, "* * * * *")
    assert added.returncode == 0, added.stderr
    assert "nothing starts scheduled jobs" not in added.stdout
    assert crontab().startswith(BEFORE)
    assert crontab().count(b"zeusrun schedule tick") == 1
    again = zeusrun("schedule", "add", job, "* * * * *")
    assert again.returncode == 0
    assert crontab().count(b"zeusrun schedule tick") == 1

    def firings():
        return Schedules(zeusrun.home).read("nightly").firings

    def ended():
        return [each for each in firings() if each.result == "ended"]

    wait_for(lambda: len(ended()) >= 2, 300.0)
    zeusrun("schedule", "pause", "nightly")
    one, two = ended()[:2]
    assert (one.exit_code, two.exit_code) == (0, 0)
    assert one.occurrence < two.occurrence
    trials = zeusrun.history()
    assert [trial["status"] for trial in trials[:2]] == ["REACHED"] * 2
    assert [trial["recurrence"] for trial in trials[:2]] == [1, 2]
    assert trials[0]["world_size"] == 2
    log = (zeusrun.home / "schedules" / "nightly.log").read_text()
    assert "✓ nightly-1-1 REACHED" in log
    assert "✓ nightly-2-1 REACHED" in log
    wait_for(lambda: not {each.result for each in firings()} & {"waiting", "running"})
    assert zeusrun("schedule", "remove", "nightly").returncode == 0
    assert crontab() == BEFORE + b"\n"

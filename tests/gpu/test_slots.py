"""GPUs as slots: who gets which, who waits, and whole submits on a machine with two GPUs."""

from __future__ import annotations

import json
import secrets
import signal
from pathlib import Path

import pytest

from tests.runs import wait_for, wait_for_report
from zeusrun.launcher.queue.admission import GpuWish, choose_gpus
from zeusrun.launcher.queue.tickets import Ticket


def ticket(number, job, state="running", gpus=()):
    at = "2027-01-01T00:00:00Z"
    return Ticket(number, job, 1, state, at, tuple(gpus), holds=state == "running")


OWN = ticket(5, "mine", "waiting")


@pytest.mark.parametrize(
    ("wish", "others", "got"),
    [
        (GpuWish(), [ticket(1, "a", gpus="AB")], ()),
        (GpuWish(("A", "B")), [], ("A", "B")),
        (GpuWish(("A",)), [ticket(1, "a", gpus="B")], ("A",)),
        (GpuWish(("A",)), [ticket(1, "a", gpus="AB")], None),
        (GpuWish(("A",)), [ticket(1, "mine", gpus="A")], ("A",)),  # the overlap policy allows it
        (GpuWish(("A",)), [ticket(9, "a", gpus="A")], None),  # it runs, however late it came
        (GpuWish(("A",)), [ticket(9, "a", "waiting", "A")], ("A",)),
        (GpuWish(("A",)), [ticket(1, "a", "waiting", "A")], None),  # nobody passes by
        (GpuWish(tuple("ABCD"), 2), [ticket(1, "a", gpus="AC")], ("B", "D")),
        (GpuWish(tuple("ABC"), 2), [ticket(1, "a", gpus="AC")], None),
        (GpuWish(tuple("ABC"), 2), [ticket(1, "mine", gpus="AC")], None),
        (GpuWish((), 0), [], ()),
    ],
)
def test_who_came_first_is_served_first(wish, others, got):
    assert choose_gpus(wish, OWN, [*others, OWN]) == got


@pytest.fixture
def machine(zeusrun, plain_library):
    """Return the variables of a machine with two GPUs, for all submits of a test."""
    fake = f"clock_ms=-1 serial={secrets.randbelow(10**7)}"
    return {"FAKE_NVML": fake, "LD_LIBRARY_PATH": str(plain_library)}


@pytest.fixture
def start(zeusrun, machine):
    """Start a submit of a job that trains until it is told to stop, on its GPUs."""

    def run(name, *arguments, gpus="auto", until_trains=True, **changes):
        job = zeusrun.job(
            "checkpoints.py",
            name,
            launch={"nproc_per_node": 1, "gpus": gpus},
            objective={"max_epochs": 1000},
            power_limit={"mode": "observe"},
            **changes,
        )
        child = zeusrun.start("submit", job, *arguments, **machine)
        if until_trains:
            wait_for_report(zeusrun, f"{name}-1-1")
        return child

    return run


def gpu_of(zeusrun, name):
    rows = (zeusrun.home / "runs" / name / f"{name}-1-1" / "power.csv").read_text().splitlines()
    column = rows[0].split(",").index("uuid")
    (uuid,) = {row.split(",")[column] for row in rows[1:]}
    return uuid


def end(child):
    child.send_signal(signal.SIGINT)
    child.wait(300)


def test_jobs_get_free_gpus_and_the_next_waits_in_order(zeusrun, start, machine):
    first, second = start("a"), start("b")
    assert gpu_of(zeusrun, "a") != gpu_of(zeusrun, "b")
    refused = zeusrun("submit", "a.yaml", "--set", "name=c", **machine)
    assert refused.returncode == 75
    text = " ".join(refused.stderr.split())
    assert "1 of 2 GPUs are not free: a-1-1 since" in text
    assert "`zeusrun submit --wait` waits for them" in text
    third = start("c", "--wait", until_trains=False)
    submits = zeusrun.home / "submits"

    def waiting():
        tickets = [json.loads(path.read_text()) for path in sorted(submits.glob("*.json"))]
        return [each["job"] for each in tickets if each["state"] == "waiting"]

    wait_for(lambda: waiting() == ["c"])
    fourth = start("d", "--wait", until_trains=False)
    wait_for(lambda: waiting() == ["c", "d"])
    shown = zeusrun("status").stdout
    assert "1. c waits since" in shown
    assert "2. d waits since" in shown
    end(second)
    wait_for_report(zeusrun, "c-1-1")
    assert gpu_of(zeusrun, "c") == gpu_of(zeusrun, "b")
    assert waiting() == ["d"]
    end(fourth)
    assert fourth.returncode == 130
    for child in (first, third):
        end(child)
    assert list(submits.glob("*.json")) == []


@pytest.mark.long  # two submits, one after the other
def test_a_job_that_names_its_gpus_keeps_another_one_off_them(zeusrun, start, machine):
    start("a", gpus="all")  # the first of the two is its own
    job = zeusrun.job(name="other", power_limit={"mode": "observe"})
    refused = zeusrun("submit", job, **machine)
    assert refused.returncode == 75
    assert "its GPUs are taken by a-1-1 since" in " ".join(refused.stderr.split())
    for allowed in ({"launch.gpus": "shared"}, {"launch.gpus": "auto"}):
        flags = [f"--set={key}={value}" for key, value in allowed.items()]
        done = zeusrun("submit", job, *flags, **machine)
        assert done.returncode == 0, done.stderr
    assert zeusrun("submit", job, **machine, CUDA_VISIBLE_DEVICES="1").returncode == 0


def test_a_killed_job_has_no_gpu_any_more(zeusrun, start, machine):
    child = start("a", gpus="all")
    child.kill()
    child.wait()
    done = zeusrun("submit", zeusrun.job(name="b", power_limit={"mode": "observe"}), **machine)
    assert done.returncode == 0, done.stderr


def test_the_script_sees_the_gpus_that_were_chosen(zeusrun, start, machine):
    start("a", gpus="all")
    script = zeusrun.folder / "tells.py"
    script.write_text(
        "import os, zeusrun\n"
        "print('visible', os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "zeusrun.current().report(epoch=1, accuracy=1.0)\n"
    )
    job = zeusrun.job(
        str(script),
        "b",
        env={"CUDA_VISIBLE_DEVICES": "0,1"},
        launch={"gpus": "auto"},
        power_limit={"mode": "observe"},
    )
    assert zeusrun("submit", job, **machine).returncode == 0
    log = (Path(zeusrun.home) / "runs" / "b" / "b-1-1" / "logs" / "rank0.log").read_text()
    seen = log.split("visible ")[1].split()[0]
    assert seen == gpu_of(zeusrun, "b") != gpu_of(zeusrun, "a")


def test_auto_needs_to_know_how_many(zeusrun):
    done = zeusrun("validate", zeusrun.job(launch={"nproc_per_node": "gpu", "gpus": "auto"}))
    assert done.returncode == 2
    assert "cannot be auto unless nproc_per_node is a number" in " ".join(done.stderr.split())

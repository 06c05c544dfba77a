"""``scale``: short runs with several numbers of ranks, and their comparison."""

from __future__ import annotations

import csv
import json
import signal
from textwrap import dedent

import pytest

from tests.factories import AS_SSH, build_trial, load_job
from tests.runs import wait_for
from zeusrun.commands import scale
from zeusrun.commands.scale import Run
from zeusrun.commands.short_run import Tried
from zeusrun.jobfile.spec import load_spec
from zeusrun.metrics.progress import Progress
from zeusrun.reasons import ReasonCode
from zeusrun.trial import EnergySource, TrialStatus

STEPS = """
    import os, sys, time
    from pathlib import Path
    from zeusrun.sidecar.events import Observed, append_event
    from zeusrun.sidecar.step_clock import StepClock

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    size = int(os.environ["GLOBAL_BATCH_SIZE"]) // ranks
    print("this rank trains with", size, flush=True)
    {before}
    append_event(os.environ["ZEUSRUN_SIDECAR"], Observed(time.monotonic(), rank, size, 1))
    clock = StepClock(os.path.join(os.environ["ZEUSRUN_RUN_DIR"], "clock", f"rank{{rank}}"))
    for step in range({steps}):
        clock.tick()
        time.sleep(0.005)
"""
"""Counts steps as the worker does, without torch."""


@pytest.fixture
def job(zeusrun, monkeypatch):
    """Write a job of two ranks with 32 samples a step."""
    monkeypatch.setattr(scale, "LEAST_S", 0.3)

    def write(before="", steps=100_000, **changes):
        text = dedent(STEPS).format(before=before, steps=steps)
        (zeusrun.folder / "train.py").write_text(text)
        return zeusrun.job("train.py", launch={"nproc_per_node": 2}, **changes)

    return write


def test_the_job_is_run_with_each_number_of_ranks_and_nothing_is_recorded(cli, zeusrun, job):
    table, figure = zeusrun.folder / "scale.csv", zeusrun.folder / "scale.svg"
    files = ("--csv", table, "--figure", figure, "--steps", 20, "--repeat", 2)
    code, out, err = cli("scale", job(), "--ranks", "2,1", *files)
    assert code == 0, err
    head, _, one, two = out.splitlines()
    assert head.split()[:3] == ["ranks", "samples/s", "ideal"]
    assert one.split()[0] == "1"
    assert " to " in one  # the spread of two runs
    assert "100\N{NO-BREAK SPACE}%" in one
    assert two.split()[0] == "2"
    with table.open() as file:
        rows = list(csv.DictReader(file))
    sizes = [("1", "16"), ("2", "32")] * 2  # in turn, and each rank keeps its batch size
    assert [(row["ranks"], row["batch_size"]) for row in rows] == sizes
    assert all(int(row["steps"]) >= 20 for row in rows)
    assert {row["energy_source"] for row in rows} <= {"estimated", ""}  # nearly no CPU time
    assert "samples a second (dashed: ideal)" in figure.read_text()
    assert not (zeusrun.home / "runs").exists()
    assert zeusrun.history() == []


def test_a_script_that_ends_before_its_steps_is_measured_as_far_as_it_comes(cli, job):
    code, out, err = cli("scale", job(steps=60), "--ranks", 1, "--steps", 1000, "--json")
    assert code == 2
    assert json.loads(out) == []
    assert "1 rank: too few optimizer steps seen; ask for fewer --steps" in err
    code, out, err = cli("scale", job(steps=240), "--ranks", 1, "--steps", 300, "--json")
    assert code == 0, err
    assert "warning: 1 rank: the script ended after 240 optimizer steps" in err
    (row,) = json.loads(out)
    assert row["samples_per_s"] == row["ideal"]


def test_a_script_without_a_step_is_said(cli, job):
    code, _, err = cli("scale", job(steps=0), "--ranks", 1)
    assert code == 2
    assert "too few optimizer steps" in err


def test_if_a_rank_fails_its_output_and_the_reason_are_shown(cli, job):
    text = "if rank == 1: raise ValueError('no such data')"
    code, out, err = cli("scale", job(before=text), "--ranks", "1,2", "--steps", 20)
    assert code == 3
    assert out.splitlines()[-1].split()[0] == "1"  # what was measured before
    assert "[rank1] this rank trains with 16" in err
    assert "zeusrun: 2 ranks: " in err
    assert "ValueError: no such data" in err.splitlines()[-1]


def test_ctrl_c_ends_the_run_and_shows_what_was_measured(zeusrun, job):
    begun = zeusrun.folder / "begun"
    waits = f"if ranks == 2: Path({str(begun)!r}).touch(); time.sleep(600)"
    child = zeusrun.start("scale", job(before=waits), "--ranks", "1,2", "--steps", 20)
    wait_for(begun.exists)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate()
    assert child.returncode == 130
    assert [
        line
        for line in out.splitlines()
        if line.split()[0] == "1" and "100\N{NO-BREAK SPACE}%" in line
    ]


def test_warns_of_more_ranks_than_cores(cli, job, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    _, _, err = cli("scale", job(), "--ranks", "1,2", "--steps", 10)
    assert err.count("share") == 1
    assert "zeusrun: warning: 2 ranks share 1 GPUs or CPUs of this machine" in err


@pytest.mark.parametrize(
    ("words", "changes", "said"),
    [
        (("--ranks", "1,x"), {}, "--ranks must be numbers of ranks such as 1,2,4, not '1,x'"),
        (("--ranks", "0"), {}, "--ranks must be"),
        (("--ranks", ""), {}, "--ranks must be"),
        (("--ranks", "1", "--hosts", "a b"), {}, "--hosts must be written as"),
        (("--ranks", "1", "--hosts", "a:1,a:2"), {}, "--hosts must name each host once"),
        (("--ranks", "4", "--hosts", "a:1,b:2"), {}, "has room for 3 ranks, not 4; write a:4"),
        (("--ranks", "1", "--hosts", "a,b"), {}, "has room for 0 ranks, not 1; write a:4"),
        (("--ranks", "1"), {"run_on": "slurm"}, "slurm would queue each run"),
        (("--ranks", "1"), {"run_on": "kubernetes"}, "kubernetes"),
        (("--ranks", "1", "--steps", "3"), {}, "--steps"),
    ],
)
def test_what_cannot_be_measured_is_refused(cli, job, words, changes, said):
    code, out, err = cli("scale", job(**changes), *words)
    assert (code, out) == (2, "")
    assert said in err


def test_hosts_are_filled_in_turn(tmp_path):
    spec = load_job(tmp_path, run_on={"hosts": ["x:2", "y:2"], "nic": "lo"})
    plans = scale._plan(spec, [1, 2, 3, 5], "u@a:2,[fe80::1]:1,c:2")
    placed = [text for plan in plans for text in plan if text.startswith("run_on.hosts=")]
    assert placed == [
        "run_on.hosts=['u@a:1']",
        "run_on.hosts=['u@a:2']",
        "run_on.hosts=['u@a:2', '[fe80::1]:1']",
        "run_on.hosts=['u@a:2', '[fe80::1]:1', 'c:2']",
    ]
    (plan,) = scale._plan(spec, [3], "a:2,b:2")
    planned = load_spec(spec.source, plan)
    assert (planned.run_on.hosts, planned.run_on.nic) == (("a:2", "b:1"), "lo")
    assert planned.batch_size.default == 24  # 32 over four ranks
    (plan,) = scale._plan(spec, [2], None)
    assert load_spec(spec.source, plan).run_on is None


@pytest.mark.parametrize(
    "section",
    [
        {"elastic": {"min": 1, "max": 4}},
        {"adapt": {"batch_size": {"policy": "schedule", "schedule": "2:64"}}},
    ],
)
def test_neither_the_batch_size_nor_the_ranks_change_within_a_run(tmp_path, section):
    spec = load_job(tmp_path, power_limit={"mode": "optimize"}, **section)
    (plan,) = scale._plan(spec, [2], None)
    planned = load_spec(spec.source, plan)
    assert dict(planned.parts) == {}
    assert planned.launch.nproc_per_node == 2
    assert planned.batch_size.candidates == (64,)
    assert planned.objective.max_epochs == 500  # more ranks need fewer steps for an epoch
    assert planned.power_limit.mode == "observe"
    assert (planned.policy.name, planned.attempts) == ("fixed", 1)


def measure(monkeypatch, moments, **changes):
    """Measure 20 steps of a run that comes to these moments: steps, seconds, passes."""
    usual = {"status": TrialStatus.FAILED, "reason": "-", "reason_code": ReasonCode.NO_METRIC}
    trial = build_trial(**{**usual, **changes})

    def run_shortly(_spec, *, is_enough, stream):
        for steps, t, passes in moments:
            span = (0.0, t) if steps else None
            made = {"steps": steps or None, "passes": passes}
            if is_enough(Progress(0.0, t, stepping_s=span, **made)):
                return Tried(trial, 130, Progress(0.0, 0.0), [], ended=False, finished=False)
        return Tried(trial, 3, Progress(0.0, 0.0), [], ended=False, finished=True)

    monkeypatch.setattr(scale, "run_shortly", run_shortly)
    return scale._measure(None, 20)


def test_the_first_steps_and_ends_of_epochs_do_not_count(monkeypatch, capsys):
    steps = [(0, 5.0, 0), (1, 60.0, 1), (4, 61.0, 1)]  # it compiles
    steps += [(n, 60.0 + n / 10, 1) for n in range(10, 20)]
    steps += [(20, 90.0, 2)]  # after an evaluation of half a minute
    steps += [(n, 88.0 + n / 10, 2) for n in range(21, 40)]
    run, code = measure(monkeypatch, steps, whole_energy_j=920.0, whole_time_s=92.0)
    assert code == 0
    assert (run.ranks, run.batch_size) == (2, 32)
    assert run.samples_per_s == pytest.approx(320)
    assert run.j_per_sample == pytest.approx(1 / 32)  # at 10 W
    assert "warning" not in capsys.readouterr().err


def test_where_each_step_is_near_the_end_of_an_epoch_all_count(monkeypatch):
    run, _ = measure(monkeypatch, [(10 * n, n, n) for n in range(5)])
    assert (run.samples_per_s, run.j_per_sample, run.steps) == (320.0, None, 20)


def test_what_makes_a_figure_doubtful_is_said(monkeypatch, capsys):
    made = [(n, n / 10, 1) for n in range(60)]
    run, _ = measure(monkeypatch, made, observed_batch_size=8, shared=True)
    assert run.samples_per_s == pytest.approx(80)
    err = capsys.readouterr().err
    assert "the script trained with batch size 8, not 32" in err
    assert "other programs used the same CPUs or GPUs meanwhile" in err


def test_a_host_that_is_lost_makes_no_figure(monkeypatch, capsys):
    lost = {"reason_code": ReasonCode.HOST_LOST, "reason": "host b is lost"}
    run, code = measure(monkeypatch, [(n, n / 10, 1) for n in range(15)], **lost)
    assert (run, code) == (None, 3)
    assert "2 ranks: host b is lost" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_loses_no_figure(cli, job):
    code, out, err = cli("scale", job(), "--ranks", 1, "--steps", 10, "--csv", "/proc/no/file")
    assert code == 2
    assert out.splitlines()[-1].split()[0] == "1"
    assert "/proc/no/file cannot be written" in err


def test_the_median_is_compared_with_the_fewest_ranks(capsys):
    runs = [Run(2, 64, 9, rate, 0.5, EnergySource.COUNTER) for rate in (90.0, 110.0, 100.0)]
    four = Run(4, 128, 9, 150.0, None, None)
    first, last = scale.compare([four, *runs])
    assert (first["ideal"], first["efficiency"], first["j_per_sample"]) == (100.0, 1.0, 0.5)
    assert (first["least"], first["largest"]) == (90.0, 110.0)
    assert (last["ideal"], last["efficiency"], last["j_per_sample"]) == (200.0, 0.75, None)


@pytest.mark.long
@pytest.mark.torchrun
def test_one_host_and_two_are_compared(zeusrun):
    script = zeusrun.folder / "train.py"
    script.write_text(dedent(STEPS).format(before="", steps=100_000))
    job = zeusrun.job(
        "train.py", run_on={"hosts": ["localhost:1", "b:1"], "nic": "lo", "fan_out": AS_SSH}
    )
    words = ("--ranks", "1,2", "--hosts", "localhost:1,b:1", "--steps", 20, "--json")
    done = zeusrun("scale", job, *words)
    assert done.returncode == 0, done.stderr
    assert [row["ranks"] for row in json.loads(done.stdout)] == [1, 2]


def test_ranks_that_crash_are_not_started_again_within_a_measurement(cli, zeusrun, job):
    before = "clean = os.environ['TORCHELASTIC_RESTART_COUNT'] != '0'; clean or sys.exit(7)"
    job(before)
    path = zeusrun.job("train.py", launch={"nproc_per_node": 2, "max_restarts": 1})
    code, out, err = cli("scale", path, "--ranks", "2", "--steps", 20)
    assert code != 0
    assert "2 ranks: rank" in err
    assert out == ""

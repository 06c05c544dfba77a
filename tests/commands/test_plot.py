"""``plot``: a job in the terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import DONE, build_trial
from zeusrun.energy.power_csv import COLUMNS
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.record import Live, write_live
from zeusrun.trial import CurvePoint, EnergySource


@pytest.fixture(autouse=True)
def _plotext():
    pytest.importorskip("plotext")


@pytest.mark.parametrize("what", ["cost", "arms", "curves"])
def test_a_job_is_drawn_in_80_columns(cli, record, what):
    for number in (1, 2, 3):
        record(number, replace(DONE, curve=(CurvePoint(1, 2.0, 20.0, 0.4),)))
    code, out, err = cli("plot", "job", what)
    assert (code, err) == (0, "")
    assert out.startswith("job: ")
    assert "●" in out
    assert max(map(len, out.splitlines())) <= 80


def test_the_power_of_the_last_run_or_of_a_named_one(cli, record, zeusrun):
    record(1)
    record(2)
    rows = [f"{t:.1f},cpu,{50 + t},,,,,,," for t in range(20)]
    (zeusrun.run_dir("job-1-1") / "power.csv").write_text("\n".join([COLUMNS, *rows, ""]))
    code, out, _ = cli("plot", "job-1-1", "power")
    assert code == 0
    assert out.startswith("job-1-1: power\n● power, all devices\n")
    assert out.endswith("power is estimated from CPU time\n")
    code, _, err = cli("plot", "job", "power")
    assert code == 2
    assert "the run job-2-1 has no power samples" in err


def test_the_power_of_a_running_run_is_called_estimated_too(cli, record, zeusrun):
    record(1, None)
    run_dir = zeusrun.run_dir("job-1-1")
    rows = [f"{t:.1f},cpu,{50 + t},,,,,,," for t in range(20)]
    (run_dir / "power.csv").write_text("\n".join([COLUMNS, *rows, ""]))
    trial = build_trial(1, run_dir=str(run_dir), energy_source=EnergySource.ESTIMATED)
    write_live(RunPaths(run_dir), Live(trial, 1, "here", None, power_w=1.0))
    assert "power is estimated from CPU time" in cli("plot", "job", "power")[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["job", "curves"], "job has nothing to plot for 'curves' yet"),
        (["jbo"], "there is no job called 'jbo'; known jobs: job"),
        (["job", "loss"], "'loss' is not one of 'cost', 'arms', 'curves', 'power'"),
    ],
)
def test_what_cannot_be_drawn_is_exit_2_in_one_sentence(cli, record, arguments, told):
    record(1)
    code, out, err = cli("plot", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_a_terminal_of_ascii_gets_ascii(zeusrun, record):
    record(1)
    done = zeusrun("plot", "job", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert "o reached with the default" in done.stdout
    assert done.stdout.isascii()


def test_the_helps_name_their_arguments_once(cli):
    assert "WHAT <cost|arms|curves|power>" in cli("plot", "--help")[1]
    assert "Usage: zeusrun report [OPTIONS] [JOB]..." in cli("report", "--help")[1]

"""``benchmarks/alibaba.py``: groups of recurring jobs of a cluster, read and replayed."""

from __future__ import annotations

import importlib
import lzma
import subprocess
import sys

import pytest

from tests.factories import ROOT
from tests.simulate.jobs import write
from zeusrun.errors import UsageError

PROGRAM = ROOT / "benchmarks" / "alibaba.py"
HEADER = "group,start_time,end_time,dataset,runtime_ratio\n"
ROWS = """\
0a1b,300.0,390.0,cifar100,0.9
0a1b,0.0,100.0,cifar100,1.0
77ff,5.0,50.0,squad,1.5
0a1b,350.0,480.0,cifar100,1.3
0a1b,360.0,400.0,cifar100,0.4
"""


@pytest.fixture
def alibaba(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(PROGRAM.parent), *sys.path])
    return importlib.import_module("alibaba")


@pytest.fixture
def groups(tmp_path):
    def write_groups(rows, name="alibaba_groups.csv"):
        path = tmp_path / name
        opener = lzma.open if path.suffix == ".xz" else open
        with opener(path, "wt") as file:
            file.write(HEADER + rows)
        return path

    return write_groups


@pytest.mark.parametrize("name", ["alibaba_groups.csv", "alibaba_groups.csv.xz"])
def test_a_group_has_its_jobs_by_start(alibaba, groups, name):
    first, second = alibaba.load_groups(groups(ROWS, name))
    assert (first.name, first.dataset) == ("0a1b", "cifar100")
    assert [job.start_s for job in first.jobs] == [0, 300, 350, 360]
    assert second.jobs == (alibaba.Job(5, 50, 1.5),)


@pytest.mark.parametrize(
    ("spans", "at_once"),
    [
        ([(0, 10), (10, 20), (20, 30)], 1),  # one ends as the next one starts
        ([(0, 10), (1, 10), (2, 10)], 2),
        ([(0, 100), (1, 2), (3, 4), (5, 6)], 2),
        ([(0, 0), (1, 1)], 1),
    ],
)
def test_as_many_jobs_run_at_once_as_at_the_median_start(alibaba, spans, at_once):
    jobs = tuple(alibaba.Job(*span, 1.0) for span in spans)
    assert alibaba.Group("group", "squad", jobs).in_flight == at_once


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("g,0,1,mnist,1", "7: dataset is 'mnist'; known are cifar100"),
        ("0a1b,0,1,squad,1", "7: group 0a1b had dataset 'cifar100' before"),
        ("g,5,4,squad,1", "7: end_time is '4'"),
        ("g,0,1,squad,0", "7: runtime_ratio is '0'"),
        ("g,0,1,squad", "7: fewer cells"),
        ("g,soon,1,squad,1", "7: start_time is 'soon'"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(alibaba, groups, row, said):
    with pytest.raises(UsageError, match=r"alibaba_groups\.csv:") as error:
        alibaba.load_groups(groups(f"{ROWS}{row}\n"))
    assert said in str(error.value)


def test_the_amounts_of_a_job_are_multiplied_by_its_ratio(alibaba, tmp_path):
    folder = write(tmp_path)
    jobs = [alibaba.Job(float(at), at + 1.0, 1.0) for at in range(10)]
    group = alibaba.Group("g", "cifar100", tuple(jobs))
    twice = group._replace(jobs=tuple(job._replace(ratio=2.0) for job in jobs))
    one, two = (alibaba.replay_group(each, folder, "toy") for each in (group, twice))
    for usual, slow in zip(one, two, strict=True):
        assert slow.own == pytest.approx(2 * usual.own)
        assert slow.best == pytest.approx(2 * usual.best)


def test_the_table_has_each_data_set_and_all(tmp_path, groups):
    cifar = groups("".join(row for row in ROWS.splitlines(keepends=True) if "squad" not in row))
    words = [sys.executable, str(PROGRAM), "--trace-dir", str(write(tmp_path)), "--gpu", "toy"]
    done = subprocess.run(
        [*words, "--groups", str(cifar)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert [[cell.strip() for cell in row[1:5]] for row in rows] == [
        [name, "1", "4", f"`{policy}`"]
        for name in ("cifar100", "all")
        for policy in ("auto", "zeus")
    ]

"""``benchmarks/scaling.py``: its table and its figure, and a training on two nodes."""

from __future__ import annotations

import csv
import importlib
import subprocess
import sys

import pytest

from tests.factories import AS_SSH, ROOT

PROGRAM = ROOT / "benchmarks" / "scaling.py"


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(PROGRAM.parent), *sys.path])
    return importlib.import_module("scaling")


def test_the_table_compares_medians_with_ideal(scaling, capsys):
    runs = {
        (1, 1): [scaling.Run(rate, 0.5, "estimated") for rate in (100.0, 50.0, 200.0)],
        (2, 2): [scaling.Run(200.0, None, None)],
    }
    scaling.show(runs)
    _, one, four = (line.split() for line in capsys.readouterr().out.splitlines())
    assert " ".join(one) == "1x1 100 (50 to 200) 100 100% 500 (500 to 500) estimated"
    assert " ".join(four[:7]) == "2x2 200 (200 to 200) 400 50%"
    assert four[7] == "unknown"


@pytest.mark.parametrize("known", [True, False])
def test_the_figure_is_drawn_with_and_without_energy(scaling, tmp_path, known):
    pytest.importorskip("matplotlib")
    run = scaling.Run(100.0, 0.5 if known else None, "counter" if known else None)
    scaling.draw({(1, 1): [run], (1, 2): [run], (2, 1): [run, run]}, tmp_path / "scaling.svg")
    text = (tmp_path / "scaling.svg").read_text()
    assert "nodes: 2" in text
    assert "mJ a sample" in text


def test_what_cannot_be_compared_is_refused():
    for words, said in (("1x2", "add it"), ("1x1 2x1", "2 --hosts"), ("1x1 two", "two")):
        command = [sys.executable, str(PROGRAM), "--configurations", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr.splitlines()[-1]


@pytest.mark.long
@pytest.mark.torchrun
def test_trainings_on_one_node_and_on_two_are_compared(tmp_path):
    command = [sys.executable, str(PROGRAM), "--configurations", "1x1", "2x1", "--steps", "10"]
    hosts = ["--hosts", "localhost,b", "--nic", "lo", "--fan-out", AS_SSH]
    files = ["--csv", str(tmp_path / "scaling.csv")]
    done = subprocess.run(
        [*command, "--repeats", "1", "--batch-size", "16", *hosts, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["1x1", "2x1"]
    with (tmp_path / "scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["nodes"], float(row["rate"]) > 0) for row in rows] == [("1", True), ("2", True)]

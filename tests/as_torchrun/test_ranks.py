"""A rank leaves what ``python -u script.py`` leaves, which is what torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.as_torchrun.cases import CASES
from tests.as_torchrun.observe import Place
from tests.worker.rank import Rank


@pytest.fixture
def places():
    """Folders with short names: those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="as-") as root:
        yield lambda name: Place(Path(os.path.realpath(root)) / name)


def start_plain(case, place):
    environment = Rank(place.root / "run").environment(**place.environment, **case.env)
    given = {k: v for k, v in environment.items() if not k.startswith("ZEUSRUN_")}
    with place.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", *place.command(case)],
            env=given,
            cwd=place.work,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def start_rank(case, place, *options):
    rank = Rank(place.root / "run")
    return rank.start(
        *options,
        *place.command(case),
        cwd=place.work,
        **place.environment,
        **case.env,
    )


def run_all(case, places, starts):
    """Start a case in each way at once; return what each leaves."""
    begun = []
    for name, start in starts.items():
        place = places(name)
        place.fill(case)
        begun.append((place, start(case, place)))
    seen = []
    for place, process in begun:
        code = process.wait(60)
        seen.append((place, code))
    return [
        place.look(case, code, place.log.read_text(errors="backslashreplace"))
        for place, code in seen
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rank_leaves_what_python_leaves(case, places):
    if case.skipped:
        pytest.skip(case.skipped)
    plain, hooked = run_all(case, places, {"plain": start_plain, "rank": start_rank})
    assert hooked == plain

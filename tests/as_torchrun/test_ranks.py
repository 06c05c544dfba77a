"""A rank leaves what ``python -u script.py`` leaves, which is what torchrun starts."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.as_torchrun.cases import ALLOWED, CASES, SHORT, TORCH
from tests.factories import ROOT
from tests.runs import check_that_it_imports
from tests.worker.rank import Rank


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


def start_bare(case, place):
    return start_rank(case, place, "--plain")


def check_that_it_runs_here(case):
    if case.skipped:
        pytest.skip(case.skipped)
    for library in case.needs:
        check_that_it_imports(library)


def run_all(case, places, starts, first=""):
    """Start a case in each way at once; return what each leaves."""
    begun = []
    for name, start in starts.items():
        place = places(name)
        place.fill(case, first)
        begun.append((place, start(case, place)))
    codes = [(place, process.wait(120)) for place, process in begun]
    return [place.look(case, code) for place, code in codes]


def hidden(case):
    """Return a pattern of the lines that may differ; ``None`` if no line may."""
    found = [row.hides[case.name] for row in ALLOWED if case.name in row.hides]
    return "|".join(found) or None


def without_allowed(case, seen):
    pattern = hidden(case)
    if pattern is None:
        return seen
    lines = [line for line in seen.output.splitlines() if not re.match(pattern, line)]
    return replace(seen, output="\n".join(lines))


def as_params(cases, short):
    return [
        pytest.param(case, id=case.name, marks=[] if case.name in short else [pytest.mark.long])
        for case in cases
    ]


@pytest.mark.parametrize("case", as_params([*CASES, *TORCH], SHORT))
def test_a_rank_leaves_what_python_leaves(case, places):
    check_that_it_runs_here(case)
    plain, hooked = run_all(case, places, {"plain": start_plain, "rank": start_rank})
    assert without_allowed(case, hooked) == without_allowed(case, plain)


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.torch and case.name in SHORT],
    ids=lambda case: case.name,
)
def test_a_rank_with_torch_leaves_what_python_leaves(case, places):
    check_that_it_runs_here(case)
    starts = {"plain": start_plain, "rank": start_rank}
    plain, hooked = run_all(case, places, starts, first="import torch")
    assert without_allowed(case, hooked) == without_allowed(case, plain)


OF_THE_PROCESS = frozenset(
    {
        *("fresh_main", "fresh_process", "signals_default", "module-argv", "folder-runs"),
        *("signals_die-SIGTERM", "missing"),
    }
)
"""Cases by which a process that becomes Python could differ from one that is started as Python."""


@pytest.mark.parametrize("case", as_params(CASES, OF_THE_PROCESS))
def test_a_rank_that_is_not_instrumented_leaves_what_python_leaves(case, places):
    check_that_it_runs_here(case)
    plain, bare = run_all(case, places, {"plain": start_plain, "bare": start_bare})
    assert without_allowed(case, bare) == without_allowed(case, plain)


HIDING = [(row, name) for row in ALLOWED for name in row.hides]


@pytest.mark.parametrize("name", sorted({name for _, name in HIDING}))
def test_a_difference_that_is_allowed_is_there(name, places):
    (case,) = (case for case in CASES if case.name == name)
    plain, hooked = run_all(case, places, {"plain": start_plain, "rank": start_rank})
    for row in ALLOWED:
        if name in row.hides:
            lines = [
                [line for line in seen.output.splitlines() if re.match(row.hides[name], line)]
                for seen in (plain, hooked)
            ]
            if not any(lines) and sys.version_info < (3, 11):
                pytest.skip("this Python prints no such line")
            assert lines[0] != lines[1], row.what


def test_the_docs_list_every_difference_that_is_allowed():
    page = (ROOT / "docs" / "training-script.md").read_text(encoding="utf-8")
    section = page.split("## What is different from torchrun")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", section, re.MULTILINE)
    assert rows[1:] == [(row.what, row.why) for row in ALLOWED]


def test_every_difference_that_is_allowed_is_shown_by_a_test():
    from tests.as_torchrun import test_submits

    for row in ALLOWED:
        assert row.hides or hasattr(test_submits, row.shown_by), row.what
    names = {case.name for case in CASES}
    assert len(names) == len(CASES)
    named = {name for _, name in HIDING} | OF_THE_PROCESS | SHORT
    assert named <= names

"""The reports of ``repair``, ``gc`` and ``doctor``."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.cells import cell_len

from zeusrun.history.tinydb.restore import Restoration
from zeusrun.maintenance.doctor import Check
from zeusrun.maintenance.repair import Finding
from zeusrun.maintenance.retention import OldRun
from zeusrun.view import units
from zeusrun.view.console import PlainConsole
from zeusrun.view.upkeep import doctor_sheet, old_runs_sheet, repair_sheet, restore_sheet


def render(renderable):
    console = PlainConsole(file=io.StringIO(), width=80, color_system=None, legacy_windows=False)
    console.print(renderable)
    return console.file.getvalue()


def widest(text):
    return max(map(cell_len, text.splitlines()))


def test_problems_are_left_to_the_error_that_follows():
    found = [Finding("trial", "job-1-1", "found", "job-1-1 is not recorded")]
    found.append(Finding("history", "job", "problem", "job.json is damaged"))
    text = render(repair_sheet(found, Path("/home")))
    assert text == "· job-1-1 is not recorded\n"
    assert "nothing to repair" in render(repair_sheet([], Path("/home")))
    assert not render(repair_sheet(found[1:], Path("/home"))).strip()


def test_a_restored_history_names_the_sources_of_its_trials_and_those_without_an_outcome():
    done = Restoration(
        *("bak", "2026-11-22T19:51:00Z", 8, ("slow-6-1", "slow-7-1", "slow-8-1"), ("slow-8-1",)),
        *(Path("/home" * 20), None, ("slow.json was damaged: it is empty",)),
    )
    text = render(restore_sheet("slow", done))
    moment = units.moment("2026-11-22T19:51:00Z")
    assert f"✓ slow has 8 trials: 5 from the copy of {moment}, 3 from run directories\n" in text
    assert "! 1 of them without its outcome: slow-8-1;" in text
    assert {line[0] for line in text.splitlines()} == {"✓", "!", " "}
    empty = replace(done, copy=None, trials=3, unfinished=())
    text = render(restore_sheet("slow", empty))
    assert "slow has 3 trials: 3 from run directories; there was no usable copy" in text
    assert "outcome" not in text


def test_checks_fit_80_columns_with_their_advice():
    checks = [
        Check("python", well=True, found="3.11"),
        Check("home", well=False, found="/x" * 60, advice="make it writable " * 9),
        Check("devices", well=None, found="no GPU"),
    ]
    text = render(doctor_sheet(checks))
    assert widest(text.replace("/x" * 60, "")) <= 80
    assert [text.count(mark) for mark in ("✓", "✗", "→")] == [1, 1, 1]
    assert "/x" * 60 in text
    assert "…" not in text


def test_old_runs_are_counted_with_their_size():
    runs = [OldRun(f"job-{n}-1", Path("x"), 2000 * n) for n in (1, 2)]
    assert render(old_runs_sheet(runs, dry_run=True)).splitlines() == [
        "  job-1-1  2.00 kB",
        "  job-2-1  4.00 kB",
        "the files of 2 runs, 6.00 kB, would go: this was a dry run",
    ]
    assert "✓ the files of 1 run, 2.00 kB, are removed" in render(
        old_runs_sheet(runs[:1], dry_run=False)
    )

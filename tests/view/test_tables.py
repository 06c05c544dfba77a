"""Every table fits 80 columns, and nothing that matters is cut."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.factories import build_trial as trial
from zeusrun.analysis.estimates import Estimate
from zeusrun.analysis.savings import find_savings
from zeusrun.bandit.problem import ArmBelief
from zeusrun.launcher.queue.tickets import Ticket
from zeusrun.launcher.rundir.layout import Live
from zeusrun.trial import (
    CurvePoint,
    EnergySource,
    Outcome,
    PowerPoint,
    SizeChange,
    Stage,
    TrialStatus,
)
from zeusrun.trial.values import NoisePoint, WorldChange
from zeusrun.view.belief import Belief
from zeusrun.view.console import PlainConsole
from zeusrun.view.explain import explain_table
from zeusrun.view.sheets import trial_sheet
from zeusrun.view.tables import history_table, net_lines, plan_sheet, status_table
from zeusrun.view.units import UNKNOWN, limit_text

LONG_JOB = "a-recurring-job-with-a-name-that-goes-on-and-on-for-far-more-than-eighty-columns-in-all"
ERROR = "Traceback:\n" + "  a line that goes on" * 9 + "\nValueError"
NOW = "2025-06-01T13:00:00.000+00:00"


def render(renderable, width=80):
    console = PlainConsole(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(renderable)
    return console.file.getvalue()


def widest(text):
    return max(map(cell_len, text.splitlines()))


def reached(number, cost_j, **changes):
    values = {
        "trial": f"job-{number}-1",
        "recurrence": number,
        "status": TrialStatus.REACHED,
        "energy_j": cost_j,
        "cost_j": cost_j,
        "energy_source": EnergySource.ESTIMATED,
        "time_s": 10.0,
        "epochs": 3,
    }
    return trial(**{**values, **changes})


LARGE = [
    reached(
        12345,
        123_456_789.0,
        job=LONG_JOB,
        trial=f"{LONG_JOB}-12345-5",
        attempt=5,
        status=status,
        global_batch_size=1_048_576,
        default_batch_size=32,
        power_limit_w=1000.0,
        gpu_model="NVIDIA H100 80GB HBM3",
        gpu_count=8,
        time_s=360_000.0,
        epochs=100_000,
        whole_epochs=100_000,
    )
    for status in TrialStatus
]


@pytest.mark.parametrize("limited", [True, False])
def test_a_history_of_large_numbers_fits_80_columns_and_cuts_nothing_that_matters(limited):
    trials = [
        replace(found, power_limit_w=found.power_limit_w if limited else None) for found in LARGE
    ]
    text = render(history_table(LONG_JOB, trials, None))
    assert widest(text.replace(LONG_JOB, "")) <= 80
    for found in trials:
        (row,) = [line for line in text.splitlines() if found.status.value in line]
        assert "12345-5" in row
        assert row.count("123 MJ") == row.count("34.3 kWh") == 1


def test_a_history_shows_each_trial_oldest_first():
    trials = saving()
    text = render(history_table("job", trials, None))
    rows = [line.split() for line in text.splitlines() if line[:2] == "06"]
    assert [row[2] for row in rows] == [f"{n}-1" for n in range(1, 13)]
    assert rows[11][3:] == [
        "16",
        "3",
        "10.0",
        "s",
        "~50.0",
        "J",
        "50.0",
        "J",
        "REACHED",
        "47",
        "to",
        "53",
        "%",
    ]
    assert "~ estimated from CPU time" in text


def test_a_history_marks_a_run_that_trained_with_another_batch_size_than_chosen():
    trials = [reached(1, 50.0, global_batch_size=256, observed_batch_size=64)]
    text = render(history_table("job", [*trials, reached(2, 50.0, observed_batch_size=32)], None))
    assert [row.split()[3] for row in text.splitlines() if row[:2] == "06"] == ["256≠64", "32"]
    assert "256≠64: trained with 64, teaches nothing" in text


def test_what_is_unknown_is_a_dash_and_never_0():
    text = render(history_table("job", [trial()], None))
    (row,) = [line for line in text.splitlines() if "DISPATCHED" in line]
    assert row.split().count(UNKNOWN) == 4
    assert "0 J" not in row


def test_only_the_last_trials_are_shown_and_the_others_counted():
    trials = [reached(number, 50.0) for number in range(1, 6)]
    text = render(history_table("job", trials, 2))
    assert [name in text for name in ("3-1", "4-1", "5-1")] == [False, True, True]
    assert "3 earlier: --last 5" in text


def test_a_power_limit_has_a_column_only_where_there_is_one():
    assert "limit" not in render(history_table("job", [reached(1, 50.0)], None))
    limited = reached(1, 50.0, power_limit_w=250.0)
    assert "250 W" in render(history_table("job", [limited], None))


def test_a_history_with_limits_cuts_no_heading_and_shows_epochs_where_there_is_room():
    values = {"power_limit_w": 500.0, "time_s": 2139.0, "status": TrialStatus.CANCELLED}
    trials = [reached(1, 2.83e6), reached(10, 1.92e6, **values, global_batch_size=128)]
    for width, epochs in ((72, False), (80, True), (120, True)):
        text = render(history_table("job", trials, width=width), width)
        assert widest(text) <= width
        assert "…" not in text
        assert "500 W" in text
        assert ("epochs" in text) is epochs


def saving(**changes):
    """Runs of the default of 100 J, and then of another batch size of half of that."""
    usual = {"eta_knob": 1.0, "stage": Stage.EXPLOIT, **changes}
    first = [reached(n, 100.0, **usual) for n in range(1, 7)]
    return first + [reached(n, 50.0, global_batch_size=16, **usual) for n in range(7, 13)]


def test_a_column_of_savings_is_left_out_where_nothing_is_shown_to_be_saved():
    trials = saving()
    assert "saved" not in render(history_table("job", trials[:6], None))
    assert "saved" not in render(history_table("job", trials[:7], None)).replace("be saved", "")
    assert "saved" in render(history_table("job", trials, None))


def test_limits_that_were_tried_beside_the_one_held_are_counted():
    tried = tuple(PowerPoint(limit, 10.0, limit) for limit in (None, 150.0, 200.0, 250.0))
    held = reached(1, 50.0, power_limit_w=200.0)
    assert [limit_text(replace(held, power_profile=tried[:n])) for n in (1, 2, 3, 4)] == [
        "200 W",
        "200 W, 1 other tried",
        "200 W, 1 other tried",
        "200 W, 2 others tried",
    ]


def test_the_best_limit_of_each_arm_is_explained_where_there_is_one():
    shown = render(explained("job", [belief(32)], limits={32: (150.0, 4), 64: (200.0, 1)}))
    assert "power limit: 32: 150 W, best of 4 · 64: 200 W, best of 1" in shown
    assert "power limit" not in render(explained("job", [belief(32)]))


def test_a_long_line_of_the_legend_goes_on_below_its_text():
    limits = dict.fromkeys((32, 64, 128, 256, 512), (150.0, 4))
    shown = render(explained("job", [belief(32)], limits=limits))
    assert re.search(r"  power limit: 32: .*\n  \S", shown)


def test_a_run_that_adapted_shows_its_first_and_last_batch_size():
    sizes = (SizeChange(1, 32), SizeChange(3, 128))
    text = render(history_table("job", [reached(1, 50.0, batch_sizes=sizes)]))
    assert "32→128" in text


def worlds(*sizes):
    return tuple(WorldChange(10.0 * n, n, size) for n, size in enumerate(sizes))


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_that_changed_its_ranks_shows_them_in_a_column_of_their_own(width):
    paths = [(), (2, 4), (2, 4, 3), (2, 3, 4, 1)]
    trials = [reached(n, 50.0, world_sizes=worlds(*path)) for n, path in enumerate(paths, 1)]
    text = render(history_table("job", trials, width=width), width)
    rows = [line.split() for line in text.splitlines() if line[:2] == "06"]
    assert [row[4] for row in rows] == ["2", "2→4", "2→4→3", "2→…→1"]
    assert " ranks " in text
    assert widest(text) <= width
    assert " ranks " not in render(history_table("job", trials[:1]))


def test_the_sheet_of_a_run_says_when_its_ranks_changed():
    text = render(
        trial_sheet(reached(1, 50.0, world_sizes=worlds(2, 4, 3)), None, run_dir_exists=True)
    )
    assert "ranks       2 → 4 after 1 epoch → 3 after 2 epochs" in text
    assert "2 → 4 ranks\n" in text  # of a part whose changes have no step
    assert "ranks  " not in render(trial_sheet(reached(1, 50.0), None, run_dir_exists=True))


@pytest.mark.parametrize("width", [80, 120])
def test_the_sheet_has_a_line_for_each_of_the_last_changes_of_the_ranks(width):
    changes = [WorldChange(float(n), 0, 1 + n % 2, 2.9, 0.065, 10 * n) for n in range(12)]
    trial = reached(1, 50.0, world_sizes=tuple(changes))
    text = render(trial_sheet(trial, None, run_dir_exists=True), width)
    lines = re.findall(r"^ {12}(\d → \d ranks.*)$", text, re.MULTILINE)
    how = "in 2.9 s, the others paused 65 ms, step"
    expected = [f"{2 - n % 2} → {1 + n % 2} ranks {how} {10 * n}" for n in range(4, 12)]
    assert list(map(str.strip, lines)) == expected


def test_an_empty_history_is_a_table_without_rows():
    assert "status" in render(history_table("job", [], None))


def test_what_is_saved_stands_above_the_table_with_its_range():
    lines = render(history_table("job", saving(), None)).splitlines()
    assert lines[0] == "job"
    assert re.fullmatch(
        r"  batch size 16 saves 50 % of the cost of a run \(4\d to 5\d %\) against 32", lines[1]
    )
    assert re.fullmatch(
        r"  12 recurrences, exploring included: saved 30\d J of cost \(2\d\d to 3\d\d J\)",
        lines[2],
    )


def test_a_recurrence_of_one_attempt_has_the_range_of_the_first_line():
    lines = render(history_table("job", saving(), None)).splitlines()
    (ends,) = re.findall(r"\((\d+ to \d+ %)\)", lines[1])
    rows = [line for line in lines if re.search(r" 16 .*REACHED ", line)]
    assert len(rows) == 6
    assert all(row.rstrip().endswith(ends) for row in rows)


def test_no_recurrence_saves_more_than_all_that_the_default_costs():
    """As a share of a median, it went to 198 %, beside a first line of 46 %."""
    known = saving()[5:]
    odd = [replace(known[0], cost_j=300.0, energy_j=300.0), *known[1:]]
    savings = find_savings(odd)
    assert max(each.high for each in savings.shares.values()) < 1
    assert max(each.high for each in savings.by_trial.values()) / savings.default_j > 1


def test_a_saving_has_no_colour_while_exploring_has_cost_more():
    found = find_savings(saving())
    assert net_lines(found)[0].style == "green"
    loss = Estimate(-1.0, -20.0, 9.0)  # in doubt
    assert net_lines(replace(found, net=loss))[0].style == ""


def test_what_is_in_doubt_is_said_without_colour():
    found = find_savings(saving()[:8])
    head, basis = net_lines(found)
    pattern = "batch size 16 against 32: no difference in cost can be shown yet ("
    assert pattern in head.plain
    assert head.style == ""
    assert "no saving can be shown yet (" in basis.plain


def test_a_claim_that_went_away_says_why():
    moved = [*saving()[:6], *(replace(each, gpu_model="new") for each in saving()[6:])]
    text = render(history_table("job", moved, None))
    assert "  savings: the hardware changed on 1 June, and batch size 32, the default, has" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [120, 80, 50])
def test_a_history_of_several_machines_names_them_where_there_is_room(width):
    hosts = ["node-17.cluster.example.org", "10.0.0.18", None]
    trials = [reached(number, 138.0, host=host) for number, host in enumerate(hosts, 1)]
    lines = render(history_table("job", trials, width=width), width).splitlines()
    head = next(line.split() for line in lines if "when" in line)
    assert all(len(line) <= width for line in lines)
    assert ("host" in head) is (width > 50)
    if width > 50:
        shown = [line.split()[3] for line in lines if line[:2] == "06"]
        assert shown == ["node-17", "10.0.0.18", UNKNOWN]
    assert "host" not in render(history_table("job", trials[:1], width=width), width)


def test_where_the_default_is_in_use_exploring_may_have_cost_something():
    tried = {"global_batch_size": 64, "status": TrialStatus.STOPPED, "eta_knob": 1.0}
    trials = [*saving()[:6], reached(7, 300.0, **tried), reached(8, 100.0, eta_knob=1.0)]
    text = render(history_table("job", trials, None), 120)
    assert "  batch size 32, the default, is in use\n" in text
    assert (
        "8 recurrences, exploring included: spent 300 J of cost more than always using the default"
        in text
    )


def test_what_cannot_be_compared_is_counted():
    trials = [*saving(), reached(13, 9.0, eta_knob=1.0, forgotten=True)]
    assert "12 of 13 recurrences" in render(history_table("job", trials, None))


def test_a_running_trial_has_its_live_numbers_and_a_dead_launcher_is_told():
    stored = trial()
    live = replace(stored, epochs=2, time_s=4.0, energy_j=40.0, cost_j=100.0)
    for alive in (True, False):
        running = {stored.trial: Live(live, None, None, None, alive=alive)}
        text = render(history_table("job", [stored], None, running=running))
        (row,) = [line for line in text.splitlines() if line[:2] == "06"]
        assert row.split()[4:] == [
            *("2", "4.0", "s", "40.0", "J", "100", "J"),
            "RUNNING" if alive else "DEAD",
        ]
        assert (
            "zeusrun was killed during job-1-1; `zeusrun repair` records it" in text
        ) is not alive


def test_a_trial_that_has_just_ended_is_shown_with_its_outcome():
    ended = reached(1, 50.0)
    running = {ended.trial: Live(trial(), None, None, None, alive=False)}
    text = render(history_table("job", [ended], None, running=running))
    assert "REACHED" in text
    assert "is dead" not in text


def test_a_forgotten_trial_is_shown_as_such():
    forgotten = reached(1, 50.0, forgotten=True)
    shown = render(history_table("job", [forgotten], None))
    (row,) = [line for line in shown.splitlines() if line[:2] == "06"]
    assert row.split()[-3:] == ["50.0", "J", "forgotten"]
    sheet = render(trial_sheet(forgotten, None, run_dir_exists=True), 200)
    assert "again: zeusrun history --unforget job-1-1\n" in sheet


def test_a_history_of_several_years_shows_the_year():
    trials = [reached(1, 50.0, started_at="2024-12-31T12:00:00.000+00:00"), reached(2, 50.0)]
    text = render(history_table("job", trials, None))
    assert [line.split()[0] for line in text.splitlines() if line[:2] == "20"] == [
        "2024-12-31",
        "2025-06-01",
    ]


def test_the_notes_below_a_history_are_indented_on_each_line():
    trials = [reached(1, 50.0, global_batch_size=256, observed_batch_size=64, eta_knob=0.1)]
    text = render(history_table("job", [*trials, reached(2, 50.0)], None), 60)
    notes = text[text.index("  ~ estimated") :].splitlines()
    assert len(notes) > 1
    assert all(line.startswith("  ") for line in notes)


def test_a_run_that_shared_its_devices_is_marked_and_the_mark_explained():
    text = render(history_table("job", [reached(1, 50.0, shared=True), reached(2, 50.0)], None), 80)
    assert text.count("REACHED*") == 1
    assert "* shared its GPU or CPU: its cost is not compared" in " ".join(text.split())
    assert "*" not in render(history_table("job", [reached(2, 50.0, shared=False)], None), 80)


def test_what_runs_by_samples_is_told_in_samples():
    curve = (CurvePoint(160, 1.0, None, 0.1), CurvePoint(1_234_567, 2.0, None, 0.2))
    running = trial(by_samples=curve, whole_samples=1_234_567, epochs=1, time_s=61.0)
    assert "1.23M samples" in render(status_table([Live(running, None, None, None)]))


@pytest.mark.parametrize("width", [80, 120])
def test_what_runs_fits_the_screen_with_names_and_numbers_of_any_length(width):
    sizes = (SizeChange(1, 32), SizeChange(3, 128))
    adapted = trial(batch_sizes=sizes, whole_epochs=3, time_s=61.0, energy_j=9.0, cost_j=10.0)
    found = [Live(each, None, None, None, power_w=5600.0) for each in (*LARGE[:1], adapted)]
    ticket = Ticket(1, LONG_JOB, 1, "waiting", NOW)
    text = render(status_table(found, [ticket], width=width), width)
    assert widest(text.replace(LONG_JOB, "")) <= width
    assert "…" not in text
    assert "32→128" in text
    assert "1. " in text
    assert ("power" in text) is (width == 120)
    short = render(status_table(found[1:], width=width), width)
    assert "power" in short
    assert "job-1-1 " in short
    assert render(status_table([], [ticket]), 200).startswith("  1. ")


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_screen_that_is_drawn_again_columns_keep_their_widths(width):
    name, drawn = "resnet50-imagenet-nightly", []
    for power_w, value in ((0.0, 0.07), (0.25, 0.1234), (350.0, 0.1234)):
        curve = (CurvePoint(1, 9.0, None, value),)
        shown = trial(trial=f"{name}-1-1", curve=curve, warnings=("it waits. " * 30,), time_s=14.1)
        found = [Live(shown, None, None, None, power_w=power_w)]
        drawn.append(render(status_table(found, width=width, brief=True), width).splitlines())
    assert len({lines[1] for lines in drawn}) == 1  # the rule below the headings
    assert len({len(lines) for lines in drawn}) == 1
    assert widest("\n".join(drawn[0])) <= width
    assert "cost" not in drawn[0][0]
    (warning,) = [line for line in drawn[0] if line.startswith("!")]
    assert warning.startswith(f"! {name}-1-1: it waits.")


def explained(title, arms, *arguments, **options):
    believed = Belief(tuple(arms), ("the next run uses 32", "It is the cheapest."))
    return explain_table(title, believed, *arguments, **options)


def belief(size, **changes):
    values = {
        "global_batch_size": size,
        "trials": 3,
        "reached": 2,
        "epochs": 12.25,
        "epoch_cost_j": 100.7,
        "cost_j": 1234.0,
        "cost_range_j": (1056.0, 1412.0),
        "failure_chance": 0.04,
        "chance": 0.25,
        "verdict": "the cheapest on average",
    }
    return ArmBelief(**{**values, **changes})


def test_beliefs_fit_80_columns_and_the_verdict_is_whole():
    verdict = "out: " + "it ran out of memory twice, and so will every larger one; " * 3
    large = {"trials": 999, "reached": 999, "cost_range_j": (0.5e6, 9.99e6), "value_j": -9.99e6}
    beliefs = [
        belief(1_048_576, **large, epochs=100.0, failure_chance=1.0, verdict=verdict),
        belief(32, value_j=0.0),
    ]
    text = render(explained(f"{LONG_JOB}: what zeus believes", beliefs, ["4 trials had x"]))
    assert widest(text.replace(LONG_JOB, "")) <= 80
    (row, told) = [line for line in text.splitlines() if "1048576" in line]
    for cell in ("999/999", "   100  101 J", "1.23 kJ", "100\u00a0%", "\u22129.99 MJ"):
        assert cell in row
    assert f"0.50{UNKNOWN}9.99 MJ" in row
    assert "out: it ran out" in told
    assert text.split().count("memory") == 3
    assert text.splitlines()[-1] == "· history: 4 trials had x"
    assert " 0 J" not in text
    assert "…" not in text


def test_beliefs_on_a_narrow_screen_have_fewer_columns_and_no_number_is_cut():
    beliefs = [belief(32, value_j=12.0), belief(64, value_j=-7.0)]
    text = render(explained("job", beliefs, width=40), 40)
    assert widest(text) <= 40
    assert text.splitlines()[5].split() == ["batch", "cost", "90", "%", "range", "next"]
    assert text.count(f"1.06{UNKNOWN}1.41 kJ") == 2
    assert "risk" not in text  # neither the column nor what it means


def test_a_column_that_a_policy_knows_nothing_of_is_left_out():
    assert "worth" not in render(explained("job", [belief(32)]))
    assert "worth" in render(explained("job", [belief(32), belief(64, value_j=10.0)]))


def test_an_arm_without_costs_has_dashes():
    unknown = ArmBelief(global_batch_size=64, trials=0, reached=0, chance=0.0, verdict="waits")
    lines = render(explained("job", [unknown])).splitlines()
    assert lines[8].split() == ["64", *[UNKNOWN] * 6, "0", "%"]
    assert ["64", "waits"] in [line.split() for line in lines]


def test_a_trial_is_shown_whole_in_80_columns():
    outcome = Outcome(
        TrialStatus.FAILED,
        "rank 1 at train.py:8: " + "a long reason " * 20,
        NOW,
        startup_s=3.0,
        time_s=4.0,
        energy_j=40.0,
        energy_source=EnergySource.INTEGRATED,
        cost_j=100.0,
        epochs=2,
        steps=50,
        best_metric=0.4,
        curve=(CurvePoint(1, 2.0, 20.0, 0.1), CurvePoint(2, 4.0, 40.0, 0.4)),
        power_profile=(PowerPoint(200.0, 12.34, 143.2), PowerPoint(None, 10.0, 120.0)),
        warnings=("one warning",),
    )
    shown = replace(
        trial(job=LONG_JOB, trial="job-1-1", learning_rate=0.1, run_dir="/x/" + LONG_JOB),
        gpu_count=0,
    )
    text = render(trial_sheet(shown.finish(outcome), ERROR, run_dir_exists=True))
    assert "/x/" + LONG_JOB in text  # it can be copied
    assert ERROR in text
    assert widest(text.replace("/x/" + LONG_JOB, "").replace(ERROR, "")) <= 80
    assert "…" not in text
    joined = text.replace("\n", " ")
    for word in (
        "job-1-1",
        "FAILED",
        "32 (2 ranks)",
        "explore: 32 is the default",
        "40.0 J (integrated)",
        "100 J (eta_knob 0.5)",
        "2 of at most 5",
        "best 0.4, target ≥ 0.5",
        "12.3 steps/s at 143 W (limit 200 W)",
        "10 steps/s at 120 W",
        "▁█",
        "! one warning",
        "ValueError",
    ):
        assert word in joined
    assert joined.count("long reason") > 10


def test_an_unfinished_trial_is_shown_with_what_is_known():
    text = render(trial_sheet(trial(mode="min"), None, run_dir_exists=False))
    assert "DEAD" in text
    assert "target ≤ 0.5" in text
    assert "learning rate" not in text
    assert "(gone)" in text
    assert "reason" not in text


def test_markup_in_what_users_wrote_is_text():
    marked = trial(why="[red]not markup[/red]", run_dir="/runs/[bold]x")
    text = render(trial_sheet(replace(marked, stage=Stage.FORCED), "[/]", run_dir_exists=True))
    assert "[red]not markup[/red]" in text
    assert "/runs/[bold]x" in text


def test_a_plan_shows_choice_command_and_environment():
    told = {"ZEUSRUN_JOB": "job"}
    text = render(plan_sheet(trial(), "python -m torch.distributed.run", told, ["4 were OOM"]))
    assert "· history: 4 were OOM" in text
    assert "job-1-1  batch size 32" in text
    assert "python -m torch.distributed.run" in text
    assert "ZEUSRUN_JOB=job" in text


def test_the_head_of_the_beliefs_says_what_the_numbers_are():
    text = render(explained("job", [belief(32)]))
    lines = text.splitlines()
    assert any(line.split() == ["cost/"] for line in lines)
    (head,) = [line.split() for line in lines if line.split()[:2] == ["batch", "evidence"]]
    assert head[2:5] == ["epochs", "epoch", "cost"]
    assert "risk" in head
    assert "  risk: the probability that the next run costs too much, or misses the target" in lines


def test_a_cost_of_which_little_is_known_has_no_range():
    text = render(explained("job", [replace(belief(32), cost_range_j=(32e6, 39e9))]))
    assert "hardly known" in text
    assert "39" not in text.partition("worth")[0].split("─")[-1]


@pytest.mark.parametrize(
    ("how", "note"),
    [
        ("ranks", ""),
        ("examples", " · of the normalisation layers"),
        ("micro_batches", " · from micro-batches"),
    ],
)
def test_show_says_how_the_gradients_were_measured(how, note):
    curve = (NoisePoint(640, 1.0, 1000.0, 1234.5, 1600.0),)
    outcome = Outcome(TrialStatus.REACHED, "done", NOW, noise_curve=curve, gradients_of=how)
    text = " ".join(render(trial_sheet(trial().finish(outcome), None, run_dir_exists=True)).split())
    assert f"noise scale 1,230 (1,000 to 1,600) samples{note} " in text


def test_show_draws_how_the_noise_scale_went():
    scales = [(30.0, None, None), (30.0, 40.0, 60.0), (90.0, None, None)]
    curve = tuple(NoisePoint(100 * n, 1.0 * n, *each) for n, each in enumerate(scales, 1))
    outcome = Outcome(TrialStatus.REACHED, "done", NOW, noise_curve=curve, gradients_of="ranks")
    text = render(trial_sheet(trial().finish(outcome), None, run_dir_exists=True))
    assert "noise scale ▁▂█ at least 90 samples" in text

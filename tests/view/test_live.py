"""What a submit shows: a panel that never jumps on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import math
import os
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tests.factories import build_trial as trial
from tests.launcher.values import LAUNCHED, after, report, started
from zeusrun.analysis.usual import UNKNOWN as NOTHING
from zeusrun.analysis.usual import Usual
from zeusrun.launcher.events import (
    Advanced,
    BoundChanged,
    Noted,
    Printed,
    TrialEnded,
    TrialStarts,
    Warned,
)
from zeusrun.metrics.progress import take_step_clock
from zeusrun.sidecar.events import Adapted, Loading, Regrouped, Reported, Watched
from zeusrun.sidecar.step_clock import StepCount
from zeusrun.trial import CurvePoint, EnergySource, Outcome, Stage, TrialStatus
from zeusrun.trial.values import NoisePoint, WorldChange
from zeusrun.view.console import LastingStream, PlainConsole
from zeusrun.view.live import SubmitView, epoch_line, live_panel, starting_text, summary
from zeusrun.view.units import UNKNOWN

NOW = "2025-06-01T13:00:00.000+00:00"
STATES = {
    "launched": LAUNCHED,
    "script": after(started(103.0)),
    "first report": after(started(103.0), report(105.0, 1, 0.1)),
    "NaN": after(report(105.0, 1, math.nan)),
    "infinite": after(report(105.0, 1, math.inf)),
    "large": replace(
        after(report(1e6, 100_000, 1e300)), energy_j=1e12, power_w=123_456.0, cost_j=1e13
    ),
}


def console(width=80, *, terminal=False):
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, legacy_windows=False, _environ={}
    )


def render(renderable, width=80):
    screen = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    screen.print(renderable)
    return screen.file.getvalue()


def finished(status=TrialStatus.REACHED, **changes):
    values = {"energy_j": 40.0, "energy_source": EnergySource.COUNTER, "cost_j": 100.0}
    return trial().finish(
        Outcome(status, "why it ended", NOW, **{**values, "time_s": 4.0, "epochs": 2, **changes})
    )


def panel_of(shown, progress, bound_j=None, width=80, usual=NOTHING):
    return live_panel(TrialStarts(shown, bound_j, usual), progress, width)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("bound_j", [None, 1e13])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_panel_has_the_same_height_in_every_state(width, bound_j, mode):
    shown = trial(mode=mode, metric="a_metric_of_a_name_that_is_longer_than_its_column")
    for progress in STATES.values():
        lines = render(panel_of(shown, progress, bound_j, width), width).splitlines()
        assert len(lines) == 4
        assert max(map(cell_len, lines)) <= width


def test_the_panel_shows_progress_metric_power_energy_and_cost_against_its_bound():
    progress = replace(
        after(started(103.0), report(105.0, 1, 0.1), report(107.0, 2, 0.4)),
        energy_j=40.0,
        power_w=12.0,
        cost_j=100.0,
    )
    text = render(panel_of(trial(), progress, 200.0, 80))
    assert "2/5" in text
    assert "4.0 s, at most 6.0 s left" in text
    assert "0.4  target ≥ 0.5  best 0.4" in text
    assert "12 W · 40.0 J · cost 100 J of at most 200 J" in text


def test_a_continued_run_shows_amounts_of_all_its_parts():
    earlier = {"time_s": 60.0, "energy_j": 1000.0, "cost_j": 3000.0, "preemptions": 1}
    continued = replace(trial(), **earlier)
    waiting = replace(LAUNCHED, price=0.3, currency="EUR")
    assert "1.00 kJ · 0.30 EUR · cost 3.00 kJ" in render(panel_of(continued, waiting))
    part = {"energy_j": 500.0, "cost_j": 3800.0, "price": 0.4, "currency": "EUR"}
    progress = replace(after(started(103.0), report(105.0, 1, 0.1)), **part)
    text = render(panel_of(continued, progress))
    assert "1.50 kJ · 0.40 EUR · cost 3.80 kJ" in text
    assert "1 m 02 s" in text
    assert "1 m 02 s · 1.50 kJ · cost 3.80 kJ" in str(epoch_line(continued, progress, 1e4))
    unknown = replace(continued, energy_j=None)
    assert f"{UNKNOWN} · 0.40 EUR" in render(panel_of(unknown, progress))


def within(t, value, samples):
    return Reported(t, 1, {"accuracy": value}, samples=samples)


def test_a_run_that_reports_within_epochs_shows_the_samples_of_all_its_parts():
    two = after(started(103.0), within(105.0, 0.1, 1000), within(107.0, 0.4, 2000))
    panel = render(panel_of(trial(), two))
    assert "samples     2,000  4.0 s " in panel
    assert len(panel.splitlines()) == 4
    continued = replace(trial(), time_s=60.0, samples=500, preemptions=1, by_samples=two.by_samples)
    assert "samples     2,500  1 m 04 s " in render(panel_of(continued, two))
    once = after(started(103.0), within(105.0, 0.1, 1000))
    assert str(epoch_line(continued, once, None)).startswith("  1,500 samples · accuracy 0.1")


def test_after_the_target_a_line_says_where_its_time_and_energy_end():
    reached = after(started(100.0), report(104.0, 1, 0.6))
    on = after(report(108.0, 2, 0.7), start=reached)
    assert "both to the target" not in str(epoch_line(trial(), reached, None))
    assert str(epoch_line(trial(), on, None)).endswith(" · both to the target")


def test_the_summary_of_a_run_that_reports_within_epochs_has_its_samples():
    curve = (CurvePoint(1000, 2.0, None, 0.1), CurvePoint(2000, 4.0, None, 0.6))
    text = render(summary(finished(samples=2000, whole_samples=3000, by_samples=curve, epochs=1)))
    assert "batch size 32 · 2,000 samples · 4.0 s" in text


def test_energy_that_turns_out_to_be_from_before_the_training_is_no_longer_shown():
    shown = console()
    first = after(started(100.0), report(104.0, 0, 0.1))  # perhaps the epoch of a loop from 0
    trained = take_step_clock(first, StepCount(3, 105.0, 106.0))
    second = after(report(107.0, 1, 0.2), start=trained)
    with SubmitView(shown, quiet=False) as view:
        view.show(TrialStarts(trial(), None))
        for progress, energy_j in ((first, 25.5), (trained, 0.9), (second, 1.2)):
            view.show(Advanced(replace(progress, energy_j=energy_j)))
    lines = [line.split(" · ") for line in shown.file.getvalue().splitlines() if " epoch " in line]
    assert [(line[0].split()[1], line[-1]) for line in lines] == [("1/5", "1.20 J")]


@pytest.mark.parametrize("state", [{"ending": True}, {"reached": CurvePoint(1, 3.0, 30.0, 0.9)}])
def test_the_panel_of_a_run_that_is_ending_promises_no_more_time(state):
    """Its time is that of the progress, which never decreases."""
    text = render(panel_of(trial(), replace(STATES["first report"], **state)))
    assert "2.0 s, finishing" in text


def test_before_training_the_panel_says_that_it_is_starting_and_knows_nothing_else():
    text = render(panel_of(trial(), LAUNCHED))
    assert "waits for torchrun to import torch and start the ranks · 0.0 s" in text
    assert f"{UNKNOWN} · {UNKNOWN} · cost {UNKNOWN}" in text


@pytest.mark.parametrize(
    ("events", "usual_s", "text"),
    [
        ((), None, "waits for torchrun to import torch and start the ranks · 4.0 s"),
        (
            (started(101.0),),
            9.0,
            "waits for the ranks, 1 of 2 have begun · 4.0 s, about 5.0 s left",
        ),
        (
            (started(101.0), started(101.0, 1)),
            2.5,
            "waits for imports, set-up or a report · 4.0 s, usually 2.5 s",
        ),
        (
            (started(101.0), started(101.0, 1), Loading(102.0)),
            65.0,
            "waits for first batch, step or report · 4.0 s, about 1 m 01 s left",
        ),
    ],
)
def test_start_up_says_what_it_waits_for_and_how_long_by_past_runs(events, usual_s, text):
    progress = replace(after(*events), now_t=104.0)
    usual = Usual(startup_s=usual_s)
    shown = render(panel_of(trial(), progress, usual=usual)).splitlines()
    assert shown[1].split("  ", 1)[1].strip() == text
    assert max(map(cell_len, shown)) <= 80


def test_ranks_that_cannot_say_when_they_start_are_not_waited_for():
    assert (
        starting_text(TrialStarts(trial(), None, instrumented=False), LAUNCHED)
        == "waits for the script's first report · 0.0 s"
    )


@pytest.mark.parametrize(
    ("epochs", "left"), [(4.0, "about 4.0 s left"), (2.0, "at most 6.0 s left")]
)
def test_the_time_left_is_that_of_past_runs_until_this_one_takes_longer(epochs, left):
    progress = after(started(103.0), report(105.0, 1, 0.1), report(107.0, 2, 0.4))
    text = render(panel_of(trial(), progress, usual=Usual(epochs=epochs)))
    assert f"4.0 s, {left}" in text


def test_no_time_left_is_told_while_nothing_shows_what_an_epoch_takes():
    start = started(103.0)
    late = after(start, report(115.0, 1, 0.1))  # no step is seen: its 12 s include start-up
    assert "left" not in render(panel_of(trial(), late))
    single = replace(late, steps=1)
    assert "left" not in render(panel_of(trial(), single))
    steps = replace(late, steps=9, step_times_s=(0.1,))
    assert "12.0 s, at most 48.0 s left" in render(panel_of(trial(), steps))


def test_a_log_has_one_line_about_a_start_up_that_takes_long():
    screen = console()
    with SubmitView(screen, quiet=False) as view:
        view.show(TrialStarts(trial(), 200.0, Usual(startup_s=40.0)))
        for now_t in (101.0, 121.0, 125.0):
            view.show(Advanced(replace(LAUNCHED, now_t=now_t)))
        view.show(Advanced(STATES["first report"]))
    lines = [line for line in screen.file.getvalue().splitlines() if "start-up" in line]
    assert lines == [
        "  start-up: waits for torchrun to import torch and start the ranks · 21.0 s, about 19.0 s left"
    ]


@pytest.mark.parametrize(("state", "text"), [("NaN", "nan"), ("infinite", "inf")])
def test_a_value_that_is_not_finite_is_shown_as_such(state, text):
    assert text in str(epoch_line(trial(), STATES[state], None))


def test_an_epoch_is_shown_with_its_own_batch_size_and_not_with_that_of_the_next():
    changes = (
        Adapted(t, 10, epoch, 16 * epoch, 0.1, "because") for t, epoch in [(103, 1), (106, 2)]
    )
    progress = after(started(103.0), *changes, report(105.0, 1, 0.1))
    assert str(epoch_line(trial(), progress, None)).endswith("batch size 16")


def regrouped(t, number, *members):
    return Regrouped(t, number, members, "because")


def test_the_ranks_of_an_elastic_training_are_shown_as_they_are_now():
    ranks = [started(103.0, rank) for rank in (0, 1)]
    steady = after(*ranks, regrouped(103.5, 1, 0, 1), report(105.0, 1, 0.1))
    replaced = after(regrouped(105.5, 2, 0, 2), start=steady)
    for same in (steady, replaced):
        assert "ranks" not in render(panel_of(trial(), same))
        assert "rank" not in str(epoch_line(trial(), same, None))
    grown = after(regrouped(106.0, 3, 0, 2, 3), report(107.0, 2, 0.2), start=replaced)
    assert "ranks       2 → 3 after 1 epoch " in render(panel_of(trial(), grown))
    assert str(epoch_line(trial(), grown, None)).endswith(" · 3 ranks")
    first = (*ranks, regrouped(103.5, 1, 0, 1), regrouped(104.0, 2, 0))
    at_once = after(*first, report(105.0, 1, 0.1))
    assert "2 → 1 after 1.0 s " in render(panel_of(trial(), at_once))


def test_ranks_that_have_left_are_not_among_those_that_have_begun():
    ranks = [started(103.0, rank) for rank in (0, 1)]
    changed = after(*ranks, regrouped(103.5, 1, 0, 1), regrouped(104.0, 2, 0, 2, 3))
    assert starting_text(TrialStarts(trial(), None), changed).startswith(
        "waits for the ranks, 1 of 3 have begun"
    )


def test_the_summary_names_the_ranks_if_they_changed():
    changes = (WorldChange(0.0, 0, 2), WorldChange(1.5, 1, 4))
    assert " epochs · 2→4 ranks · 4.0 s" in render(summary(finished(world_sizes=changes)))
    assert "ranks" not in render(summary(finished()))


def test_the_statistics_of_gradients_are_shown_while_it_runs_and_at_its_end():
    values = {"noise_scale": 123.0, "noise_scale_low": 90.0, "noise_scale_high": 1200.0}
    watched = Watched(104.0, 0, 10, values, samples=64)
    panel = render(panel_of(trial(), after(started(103.0), watched)))
    assert "noise scale 123 (90 to 1,200) samples" in panel
    curve = (NoisePoint(64, 1.0, 90.0, None, None),)
    text = render(summary(finished(noise_curve=curve, gradients_of="examples")))
    assert "  noise scale at least 90 samples · of the normalisation layers" in text


def test_no_energy_is_never_told_as_0():
    text = str(epoch_line(trial(), replace(STATES["first report"], energy_j=0.0), None))
    assert text.endswith(f"2.0 s · {UNKNOWN}")


def show_all(view):
    """Show a whole trial."""
    running = trial(learning_rate=0.1)
    with view:
        view.show(Noted("worth reading"))
        view.show(TrialStarts(running, 200.0))
        for progress in STATES.values():
            view.show(Advanced(progress))
        view.show(
            Printed(
                1,
                (
                    "\x1b[31mred\x1b[0m [bold]text[/bold] :smile:",
                    "x" * 200,
                ),
            )
        )
        view.show(Warned("act on this"))
        view.show(TrialEnded(finished(warnings=("a warning of the trial",)), False))


def test_elsewhere_than_on_a_terminal_there_are_plain_lines_without_escape_codes():
    screen = console()
    show_all(SubmitView(screen, quiet=False))
    text = screen.file.getvalue()
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert "· worth reading" in lines
    assert "job-1-1  batch size 32 · learning rate 0.1 · 2 ranks" in lines
    assert "  explore: 32 is the default and comes first" in lines
    assert "[rank1] red [bold]text[/bold] :smile:" in lines
    assert "[rank1] " + "x" * 200 in lines
    assert "! act on this" in lines
    assert "! a warning of the trial" in lines
    assert any("REACHED" in line for line in lines)


def test_elsewhere_than_on_a_terminal_an_epoch_is_one_line_however_often_it_is_told():
    screen = console()
    with SubmitView(screen, quiet=False) as view:
        view.show(TrialStarts(trial(), 200.0))
        for _ in range(3):
            view.show(Advanced(STATES["launched"]))
        view.show(Printed(0, ("learning rate 0.10, accuracy 0.1000",)))
        for _ in range(3):
            view.show(Advanced(STATES["first report"]))
    lines = [line for line in screen.file.getvalue().splitlines() if "epoch" in line]
    assert lines == [
        f"  epoch 1/5 · accuracy 0.1 (target 0.5) · 2.0 s · {UNKNOWN} · cost {UNKNOWN} of at most 200 J"
    ]


def test_on_a_terminal_the_panel_is_gone_at_the_end_and_the_lines_remain():
    screen = console(terminal=True)
    view = SubmitView(screen, quiet=False)
    show_all(view)
    text = screen.file.getvalue()
    assert "\x1b[?25l" in text  # the cursor was hidden …
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # … and is back
    assert " [bold]text[/bold] :smile:" in text
    assert "REACHED" in text


def test_a_terminal_gets_its_cursor_back_when_the_submit_fails():
    screen = console(terminal=True)

    def fail():
        with SubmitView(screen, quiet=False) as view:
            view.show(TrialStarts(trial(), None))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert screen.file.getvalue().rindex("\x1b[?25h") > 0


def test_a_long_note_goes_on_below_its_text():
    screen = console(terminal=True)
    with SubmitView(screen, quiet=False) as view:
        view.show(Noted("a note " * 20))
    first, *others = Text.from_ansi(screen.file.getvalue()).plain.splitlines()
    assert first.startswith("· a note")
    assert others
    assert all(re.match("  (a )?note", line) for line in others)


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_says_nothing_of_a_trial_that_reached_its_target(terminal):
    screen = console(terminal=terminal)
    with SubmitView(screen, quiet=True) as view:
        view.show(Noted("worth reading"))
        view.show(TrialStarts(trial(), None))
        view.show(Advanced(STATES["first report"]))
        view.show(Printed(0, ("printed",)))
        view.show(TrialEnded(finished(), False))
    assert screen.file.getvalue() == ""


def test_quiet_says_what_went_wrong():
    screen = console()
    with SubmitView(screen, quiet=True) as view:
        view.show(TrialStarts(trial(), None))
        view.show(Warned("act on this"))
        view.show(TrialEnded(finished(TrialStatus.FAILED, warnings=("a warning",)), False))
    text = screen.file.getvalue()
    assert "! act on this\n" in text
    assert "! a warning\n" in text
    assert "job-1-1 FAILED" in text


def test_the_summary_says_what_it_took_and_where_to_look():
    text = render(summary(finished(startup_s=3.0)))
    assert text.startswith("✓ job-1-1 REACHED")
    assert "4.0 s after 3.0 s of start-up" in text
    assert "40.0 J counter · cost 100 J" in text
    assert "zeusrun show" not in text


_FAILURES = [s for s in TrialStatus if s.finished and s not in {"REACHED", "PREEMPTED"}]


def test_the_summary_of_a_preempted_trial_says_that_it_goes_on():
    text = render(summary(finished(TrialStatus.PREEMPTED)))
    assert "the next submit goes on with it" in text
    text = render(summary(finished(TrialStatus.PREEMPTED), saved=False))
    assert "the next submit runs it again from its beginning" in text
    assert "goes on" not in text


@pytest.mark.parametrize("kept", [True, False])
def test_a_preempted_trial_whose_pod_keeps_nothing_does_not_go_on(kept):
    screen = console()
    with SubmitView(screen, quiet=False, kept=kept) as view:
        view.show(TrialEnded(finished(TrialStatus.PREEMPTED), False))
    assert ("the next submit runs it again" in screen.file.getvalue()) == kept


def test_a_note_that_is_needed_is_shown_by_a_quiet_submit_too():
    screen = console()
    with SubmitView(screen, quiet=True) as view:
        view.show(Noted("waiting for b", needed=True))
        view.show(Noted("not needed"))
    assert screen.file.getvalue() == "· waiting for b\n"


@pytest.mark.parametrize("status", _FAILURES)
def test_the_summary_of_any_other_ending_says_where_more_is(status):
    text = render(summary(finished(status)))
    assert text.startswith(f"✗ job-1-1 {status.value}")
    assert "zeusrun show job-1-1" in text


@pytest.mark.parametrize("quiet", [True, False])
def test_a_look_that_ended_is_no_failure_and_nothing_for_a_quiet_submit(quiet):
    screen = console()
    looked = replace(finished(TrialStatus.CANCELLED), stage=Stage.SPEED_CHECK)
    with SubmitView(screen, quiet=quiet) as view:
        view.show(TrialEnded(looked, True))
    text = screen.file.getvalue()
    assert "✗" not in text
    assert (text == "") == quiet


@pytest.mark.parametrize("quiet", [True, False])
def test_a_look_that_a_signal_ended_is_cancelled_like_any_trial(quiet):
    screen = console()
    cancelled = replace(finished(TrialStatus.CANCELLED), stage=Stage.SPEED_CHECK)
    with SubmitView(screen, quiet=quiet) as view:
        view.show(TrialEnded(cancelled, False))
    assert screen.file.getvalue().startswith("✗ job-1-1 CANCELLED")


def test_another_bound_is_shown_from_then_on():
    screen = console()
    with SubmitView(screen, quiet=False) as view:
        view.show(TrialStarts(trial(), 200.0))
        view.show(BoundChanged(300.0))
        view.show(Advanced(STATES["first report"]))
        view.show(Advanced(STATES["first report"]))
    assert "of at most 300 J" in screen.file.getvalue()


def test_the_summary_without_energy_claims_none():
    text = render(summary(finished(energy_j=None, energy_source=None, cost_j=None)))
    assert "J" not in text.replace("job", "")


def test_the_summary_of_an_early_crash_has_no_dashes():
    early = finished(TrialStatus.FAILED, epochs=None, time_s=None, energy_j=None)
    assert "  batch size 32 · no epoch\n" in render(summary(early))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_reason_is_indented_on_a_terminal_and_one_line_in_a_log(terminal):
    screen = PlainConsole(file=io.StringIO(), width=40, force_terminal=terminal, color_system=None)
    with SubmitView(screen, quiet=False) as view:
        view.show(TrialStarts(replace(trial(), why="a long reason " * 5), None))
    reason = [line for line in screen.file.getvalue().splitlines() if "reason" in line]
    assert len(reason) == (3 if terminal else 1)
    assert all(line.startswith("  ") for line in reason)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_view_outlives_its_reader(terminal):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        screen = PlainConsole(file=LastingStream(stream), force_terminal=terminal, width=80)
        show_all(SubmitView(screen, quiet=False))
        screen.print("to nobody")


def test_a_stream_whose_descriptor_was_closed_writes_to_nowhere(tmp_path):
    with open(tmp_path / "out", "w") as stream:
        lasting = LastingStream(stream)
        os.close(stream.fileno())  # the next file gets its number
        for _ in range(2):
            lasting.write("text")
            lasting.flush()
        assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == os.devnull


def test_after_the_target_no_bound_is_shown():
    progress = after(started(103.0), report(105.0, 1, 0.6))
    assert progress.reached is not None
    assert "of at most" not in epoch_line(trial(), progress, 200.0).plain
    assert "of at most" in epoch_line(trial(), replace(progress, reached=None), 200.0).plain

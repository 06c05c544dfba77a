"""The console prints untrusted text harmlessly, and breaks lines between words only."""

from __future__ import annotations

import io

import pytest
from rich.console import Group
from rich.live import Live
from rich.text import Text

from tests.factories import REACHED, build_trial
from zeusrun.launcher.events import Printed
from zeusrun.view.console import Labelled, PlainConsole, break_lines, plain_table
from zeusrun.view.live import SubmitView
from zeusrun.view.sheets import trial_sheet

TITLE = "\x1b]0;not yours\x1b\\"

TERMINAL = {"force_terminal": True, "color_system": "standard"}


def printed(renderable, **how):
    console = PlainConsole(file=io.StringIO(), width=40, **how)
    console.print(renderable)
    return console.file.getvalue()


def test_styles_are_obeyed_and_texts_are_not():
    seen = printed(Text(f"{TITLE}a\x1b[2Jb\u202e", style="red"), **TERMINAL)
    assert seen == "\x1b[31mab\\u202e\x1b[0m\n"


def test_the_columns_of_a_table_stay_in_line():
    table = plain_table()
    table.add_column("name")
    table.add_column("value")
    table.add_row(Text(f"{TITLE}metric"), "1")
    table.add_row("loss", "2")
    *_, first, second = printed(table).splitlines()
    assert first.index("1") == second.index("2")


def test_the_sheet_of_a_trial_holds_nothing_to_obey():
    trial = build_trial(metric=f"{TITLE}loss", gpu_model="\x1b[5mGPU", gpu_count=1)
    outcome = vars(REACHED) | {"reason": f"{TITLE}done", "warnings": ("\x9b2J",)}
    seen = printed(trial_sheet(trial.finish(type(REACHED)(**outcome)), TITLE, run_dir_exists=True))
    assert "\x1b" not in seen
    assert "\x9b" not in seen
    assert "done" in seen


def test_lines_of_ranks_keep_their_colours_only():
    console = PlainConsole(file=io.StringIO(), width=60, **TERMINAL)
    with SubmitView(console, quiet=False) as view:
        view.show(Printed(0, (f"{TITLE}\x1b[32mgreen\x1b[0m\x1b[2K", "\x9b31m")))
    seen = console.file.getvalue()
    assert "\x1b[32mgreen\x1b[0m\n" in seen
    assert "not yours" not in seen
    assert r"\x9b31m" in seen


PATH = "/a/path" * 12


def shown(renderable, **options):
    console = PlainConsole(file=io.StringIO(), width=40, color_system=None, legacy_windows=False)
    console.print(renderable, **options)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("12345678 9", ["12345678", "9"]),
        ("a\n\nb", ["a", "", "b"]),
        ("  in two\n  in", ["  in two", "  in"]),
        ("no 1234567890123 so", ["no", "1234567890123", "so"]),
        ("   ", [""]),
        ("日本 日本", ["日本", "日本"]),
    ],
)
def test_a_text_breaks_between_words(text, lines):
    assert [line.plain for line in break_lines(Text(text), 8)] == lines


def test_many_spaces_at_the_end_of_a_line_take_no_time():
    (line,) = break_lines(Text("word" + " " * 1_000_000), 8)  # for hours, if each were looked at
    assert line.plain == "word"


def test_a_path_is_whole_in_a_sentence_in_a_group_and_beside_a_label():
    sentence = f"the outcome is kept in {PATH}; the next submit records it"
    lines = ["the outcome is kept in", f"{PATH};", "the next submit records it"]
    assert shown(sentence) == lines
    assert shown(Group(Text(sentence), Text("end"))) == [*lines, "end"]
    rows = [(Text("run"), Text(PATH)), (Text("reason"), Text("why " * 12))]
    path, *reason = shown(Labelled(rows))
    assert path == f"run     {PATH}"
    assert reason == ["reason  " + " ".join(["why"] * 8), "        " + " ".join(["why"] * 4)]


def test_styles_survive_and_soft_wrapping_leaves_all_as_it_is():
    lines = break_lines(Text.assemble(("red words ", "red"), "and plain ones"), 12)
    assert [(span.start, span.end) for line in lines for span in line.spans] == [(0, 9)]
    assert shown(Text("word " * 20), soft_wrap=True) == ["word " * 20]


def test_a_path_above_a_live_panel_is_whole_too():
    console = PlainConsole(file=io.StringIO(), width=40, force_terminal=True, _environ={})
    with Live(Text("panel"), console=console, auto_refresh=False, transient=True):
        console.print(Text(f"! see {PATH}"))
    assert PATH in console.file.getvalue()

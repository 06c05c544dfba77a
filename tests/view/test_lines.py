"""Lines break between words, and a word that is wider than the terminal stays whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Group
from rich.live import Live
from rich.text import Text

from zeusrun.view.console import Labelled, PlainConsole, break_lines

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

"""Text of scripts, as it is shown: a terminal only prints it."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.plain_text import (
    has_control_character,
    plain_json,
    plain_log_line,
    plain_text,
    type_over,
)

TITLE = "\x1b]0;not yours\x07"
CLEAR = "\x1b[2J\x1b[1;1H"
RED, RESET = "\x1b[31m", "\x1b[0m"
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Any text, with more of what terminals obey than chance would bring.
TEXTS = st.lists(
    st.sampled_from([RED, "\x1b", "[", "]", "\x9b", "31m", "\x07", "\u202e", "\r", "\n"])
    | st.text()
).map("".join)


def is_harmless(text):
    bad = {"Cc", "Zl", "Zp"}
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return not any(
        char not in "\t\n" and (unicodedata.category(char) in bad or char in marks) for char in text
    )


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("accuracy 0.9\tin épocha 3 ✓\nand more", "accuracy 0.9\tin épocha 3 ✓\nand more"),
        (f"{TITLE}loss{CLEAR}", "loss"),
        (f"{RED}failed{RESET}", "failed"),
        ("\x1b]8;;http://evil/\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\rb\x08\x00", r"a\rb\x08\x00"),
        ("two\r\nlines", "two\nlines"),
        ("\x9b31mred \x1bc", r"\x9b31mred \x1bc"),
        ("user\u202ecod.exe", r"user\u202ecod.exe"),
        ("\x1b]0;without an end", r"\x1b]0;without an end"),
    ],
)
def test_control_characters_are_taken_out_or_spelt(text, plain):
    assert plain_text(text) == plain


def test_a_line_of_a_log_keeps_its_colours_and_ends_them():
    line = f"{RED}loss{TITLE} 0.5{CLEAR}"
    assert plain_log_line(line) == f"{RED}loss 0.5{RESET}"
    assert plain_log_line(f"{TITLE}loss\t0.5") == "loss\t0.5"


@given(TEXTS)
def test_no_text_harms(text):
    assert is_harmless(plain_text(text))
    assert is_harmless(COLOUR.sub("", plain_log_line(text)))


@given(TEXTS)
def test_json_keeps_its_values(text):
    document = plain_json(json.dumps({text: text}, ensure_ascii=False))
    assert is_harmless(document)
    assert json.loads(document) == {text: text}


def test_the_end_of_a_line_is_a_control_character():
    assert [has_control_character(text) for text in ("a b", "a\nb", "\x7f")] == [False, True, True]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Loss: 2.4", "Loss: 2.4"),
        ("[==>..] Acc: 12%      \b\b\b\b\b 3/9", "[==>..] Acc: 12%  3/9 "),
        ("12%\b\b\b99", "99%"),
        ("ab\b\b\b\bc", "cb"),
    ],
)
def test_backspaces_let_a_line_write_over_itself(line, shown):
    assert type_over(line) == shown

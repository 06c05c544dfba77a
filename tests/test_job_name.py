"""Which texts name jobs, and which names a text covers."""

from __future__ import annotations

import pytest

from zeusrun.job_name import is_covered, is_job_pattern


@pytest.mark.parametrize(
    ("patterns", "covered"),
    [
        ("team-a", ["team-a"]),
        ("team-*", ["team-a", "team-b"]),
        ("team-a, digits", ["team-a", "digits"]),
        ("team-[!a], d*", ["team-b", "digits"]),
        ("TEAM-*", []),
        ("team", []),
        ("*", ["team-a", "team-b", "digits"]),
    ],
)
def test_one_of_several_patterns_is_enough(patterns, covered):
    names = ["team-a", "team-b", "digits"]
    assert [name for name in names if is_covered(name, patterns)] == covered


def test_no_pattern_contains_what_separates_several():
    for text in ("team-*", "*", "a?", "[ab]*", "[!a]"):
        assert is_job_pattern(text)
    for text in ("", "a, b", "a,b", "[a,b]", "[a b]", "a b", "[", "a/b", "a\n", "*" * 201):
        assert not is_job_pattern(text)

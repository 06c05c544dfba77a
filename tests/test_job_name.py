"""Which texts name jobs."""

from __future__ import annotations

from zeusrun.job_name import is_job_pattern


def test_a_pattern_has_the_letters_of_names_and_wildcards():
    for text in ("team-*", "*", "a?", "[ab]*", "[!a]"):
        assert is_job_pattern(text)
    for text in ("", "a, b", "a,b", "[a,b]", "[a b]", "a b", "[", "a/b", "a\n", "*" * 201):
        assert not is_job_pattern(text)

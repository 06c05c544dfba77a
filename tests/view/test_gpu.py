"""The words for GPUs."""

from __future__ import annotations

from zeusrun.view.gpu import throttle_word


def test_why_clocks_are_low_is_told_in_words_of_people():
    assert throttle_word("sw_power_cap") == "power"
    assert throttle_word("unknown_0x800") == "unknown 0x800"

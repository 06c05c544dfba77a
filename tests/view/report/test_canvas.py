"""Figures as small SVGs: which ids they keep, and that names in them stay text."""

from __future__ import annotations

import pytest

from zeusrun.view.report.canvas import _TAG, _shrink


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("axes_1", False),
        ("PathCollection_12", False),
        ("C0_0_1234567890", True),  # ten of the digits of a hash, which is referred to
        ("C0_0_12345abcde", True),
        ("m0123456789", True),
    ],
)
def test_an_id_stays_if_it_may_be_referred_to(name, kept):
    assert (name in _TAG.sub(_shrink, f'<g id="{name}"/>')) == kept

"""A clock that stands until it is told to move."""

from __future__ import annotations

import pytest


class FakeClock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return FakeClock()

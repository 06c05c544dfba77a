"""What a test of a report has drawn leaves no open file."""

from __future__ import annotations

import pytest

from tests.view.report.values import close_fonts


@pytest.fixture(autouse=True)
def close_what_was_drawn():
    yield
    close_fonts()

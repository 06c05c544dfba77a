"""The fixtures of all tests; what they are made of is in ``factories.py``."""

from __future__ import annotations

import pytest

from tests.factories import Zeusrun


@pytest.fixture
def zeusrun(tmp_path, request):
    """A ``zeusrun`` command with an empty home; under ``torchrun``, over the real one."""
    real_torchrun = request.node.get_closest_marker("torchrun") is not None
    return Zeusrun(tmp_path / "home", tmp_path, real_torchrun)

"""Folders and an environment for scripts that are run twice."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.as_torchrun.observe import Place


@pytest.fixture
def places():
    """Make folders with short names: those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="as-") as root:
        yield lambda name: Place(Path(os.path.realpath(root)) / name)


@pytest.fixture(autouse=True)
def usual_python(monkeypatch):
    """Take out what changes Python, which zeusrun, torchrun and the ranks would inherit."""
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)

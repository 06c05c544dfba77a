"""The source distribution carries all that its tests need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.factories import ROOT

_FOLDERS = ("benchmarks", "deploy", "docs", "examples", "jobs", "tests", "zeusrun")


@pytest.fixture
def unpacked(tmp_path):
    """Build the sdist of this checkout and return the folder into which it was unpacked."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", str(path)], cwd=tmp_path, check=True)
    return tmp_path / path.name.removesuffix(".tar.gz")


def files(root):
    found = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    found += [path for path in root.iterdir() if path.is_file() and path.suffix != ".egg"]
    named = {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}
    return {name for name in named if not name.startswith(".")}


def test_it_has_every_file_of_the_checkout(unpacked):
    assert files(unpacked) - {"PKG-INFO"} == files(ROOT) - {"PKG-INFO"}


@pytest.mark.long  # collecting takes 10 s of CPU
def test_its_tests_can_be_collected(unpacked):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=unpacked, env=kept, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]

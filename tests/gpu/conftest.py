"""A clock that stands until it is told to move, and an NVML library of our own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


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


@pytest.fixture(scope="session")
def build_library(tmp_path_factory):
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is absent, so no fake libnvidia-ml.so.1 can be built")

    def build(*flags):
        folder = tmp_path_factory.mktemp("nvml")
        library = folder / "libnvidia-ml.so.1"
        source = HERE / "fake_nvml.c"
        warnings = ["-Wall", "-Wextra", "-Wno-sign-compare", "-Werror"]
        subprocess.run(
            [gcc, "-shared", "-fPIC", *warnings, *flags, "-o", library, source], check=True
        )
        return folder

    return build

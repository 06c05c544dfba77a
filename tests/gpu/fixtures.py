"""A clock that stands until it is told to move, and an NVML library of our own."""

from __future__ import annotations

import ctypes
import secrets
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
            [gcc, "-shared", "-fPIC", "-pthread", *warnings, *flags, "-o", library, source],
            check=True,
        )
        return folder

    return build


@pytest.fixture(scope="session")
def plain_library(build_library):
    return build_library()


class GpuMachine:
    """A machine with fake GPUs that all processes with its ``environment`` share.

    This process looks at it from beside NVML. Its GPUs follow real time and are busy only while a
    child such as ``trains_on_gpu.py`` says so (``work=1``), unless ``set`` says otherwise; see
    ``fake_nvml.c`` for the facts.
    """

    def __init__(self, library_folder, folder):
        # A copy of its own is a library of its own to the loader, with its own machine.
        self._folder = folder / "nvml"
        self._folder.mkdir()
        library = self._folder / "libnvidia-ml.so.1"
        shutil.copy(library_folder / library.name, library)
        self.state_path = self._folder / "state"
        self._library = ctypes.CDLL(str(library))
        self._library.fake_nvml_get.restype = ctypes.c_long
        self._library.fake_nvml_limit_mw.restype = ctypes.c_uint
        self._library.fake_nvml_step_s.restype = ctypes.c_double
        self._library.fake_nvml_open(str(self.state_path).encode())
        self.set("serial", secrets.randbelow(10**7))
        self.set("clock_ms", -1)
        self.set("work", 1)

    @property
    def environment(self):
        """Variables for a child that is to see this machine; add them to its own."""
        return {
            "LD_LIBRARY_PATH": str(self._folder),
            "FAKE_NVML": "clock_ms=-1 work=1",
            "FAKE_NVML_STATE": str(self.state_path),
        }

    def get(self, key):
        return self._library.fake_nvml_get(key.encode())

    def set(self, key, value):
        self._library.fake_nvml_set(key.encode(), ctypes.c_long(value))

    def uuid(self, gpu):
        return f"GPU-{gpu}{self.get('serial'):07d}-1111"

    def limit_w(self, gpu):
        return self._library.fake_nvml_limit_mw(gpu) / 1000

    def set_limit_w(self, gpu, watts):
        """Set a limit as root would, whatever ``permission`` says; return NVML's code."""
        return self._library.fake_nvml_force_limit(gpu, ctypes.c_uint(round(watts * 1000)))

    def step_s(self, gpu):
        """Seconds that an optimizer step takes at the limit in force."""
        return self._library.fake_nvml_step_s(gpu)


@pytest.fixture
def gpu_machine(plain_library, tmp_path):
    return GpuMachine(plain_library, tmp_path)

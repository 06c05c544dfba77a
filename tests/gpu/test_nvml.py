"""The real ``pynvml`` over a library of our own, in a child Python that finds no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


def run_python(arguments, library_folder, **variables):
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("CUDA_")
    }
    environment |= {"LD_LIBRARY_PATH": str(library_folder), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


DESCRIBE = """
from zeusrun.gpu.nvml import gpus_of_job
for device in gpus_of_job({}, None):
    print(device.uuid, device.energy_source.value, device.read().energy_j, device.read().power_w)
"""


def test_the_nvml_suite_passes(build_library):
    suite = str(HERE / "nvml_suite.py")
    child = run_python(["-m", "pytest", "-p", "no:cacheprovider", suite], build_library())
    assert child.returncode == 0, child.stdout + child.stderr
    assert "skipped" not in child.stdout


def test_a_driver_older_than_the_energy_counter_is_integrated(build_library):
    folder = build_library("-DWITHOUT_ENERGY")
    child = run_python(["-c", DESCRIBE], folder, FAKE_NVML="gpus=1")
    assert child.stdout == "GPU-00000000-1111 integrated None 250.0\n", child.stderr


def test_a_file_that_is_no_library_counts_as_no_driver(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library", encoding="ascii")
    child = run_python(["-c", DESCRIBE], tmp_path)
    assert (child.returncode, child.stdout) == (0, ""), child.stderr


def test_importing_the_room_does_not_import_pynvml():
    code = "import sys, zeusrun.gpu.nvml, zeusrun.gpu.monitor; print('pynvml' in sys.modules)"
    assert run_python(["-c", code], "").stdout == "False\n"

"""The real ``pynvml`` over a library of our own, in a child Python that finds no other."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

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
        timeout=300,
        check=False,
    )


DESCRIBE = """
from zeusrun.gpu.nvml import gpus_of_job
for device in gpus_of_job({}, None):
    reading = device.read()
    print(device.uuid, device.energy_source.value, reading.energy_j, reading.power_w)
"""
PRINT = "from zeusrun.gpu.nvml import gpus_of_job; device, *_ = gpus_of_job({}, None); print(%s)"


def test_the_nvml_suite_passes(build_library):
    # With a folder of its own: in pytest's, it would delete those of earlier runs.
    with tempfile.TemporaryDirectory(dir="/tmp") as own:  # short enough for sockets
        given = ["-p", "no:cacheprovider", "--basetemp", f"{own}/t", str(HERE / "nvml_suite.py")]
        child = run_python(["-m", "pytest", *given], build_library())
    assert child.returncode == 0, child.stdout + child.stderr
    assert "skipped" not in child.stdout


@pytest.mark.parametrize(
    ("flag", "question", "answer"),
    [
        (
            "-DWITHOUT_ENERGY",
            "device.energy_source.value, device.read().energy_j",
            "integrated None",
        ),
        ("-DWITHOUT_FIELDS", "device.read().power_w", "250.0"),
        ("-DWITHOUT_EVENT_REASONS", "device.read().health.throttle_reasons", "None"),
        ("-DWITHOUT_PROCESSES_V3", "device.compute_processes()", "None"),
    ],
)
def test_a_driver_older_than_a_question_is_asked_another_or_none(
    build_library, flag, question, answer
):
    child = run_python(["-c", PRINT % question], build_library(flag), FAKE_NVML="gpus=1 foreign=1")
    assert child.stdout == answer + "\n", child.stderr


def test_a_file_that_is_no_library_counts_as_no_driver(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library", encoding="ascii")
    child = run_python(["-c", DESCRIBE], tmp_path)
    assert (child.returncode, child.stdout) == (0, ""), child.stderr


def test_a_variable_that_is_not_usable_says_nothing_where_there_is_no_gpu(tmp_path, plain_library):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library", encoding="ascii")
    code = "from zeusrun.gpu.nvml import gpus_of_job; print(gpus_of_job({%r: 'none'}, None))"
    ask = ["-c", code % "CUDA_VISIBLE_DEVICES"]
    for library, facts in ((tmp_path, ""), (plain_library, "gpus=0")):
        child = run_python(ask, library, FAKE_NVML=facts)
        assert child.stdout == "[]\n", child.stderr
    child = run_python(ask, plain_library, FAKE_NVML="gpus=1")
    assert "'none' is neither an index nor a GPU or MIG UUID" in child.stderr


def test_importing_the_room_does_not_import_pynvml():
    code = "import sys, zeusrun.gpu.nvml, zeusrun.energy.monitor; print('pynvml' in sys.modules)"
    assert run_python(["-c", code], "").stdout == "False\n"


# The machine that processes share


def test_a_limit_set_in_one_process_is_in_force_in_all(gpu_machine):
    gpu_machine.set_limit_w(1, 150.0)
    code = "import sys; [_, gpu] = gpus_of_job({}, 2); gpu.set_power_limit_w(gpu.read().power_limit_w + 50)"
    environment = gpu_machine.environment
    child = run_python(
        ["-c", "from zeusrun.gpu.nvml import gpus_of_job; " + code],
        environment.pop("LD_LIBRARY_PATH"),
        **environment,
    )
    assert child.returncode == 0, child.stderr
    assert (gpu_machine.limit_w(0), gpu_machine.limit_w(1)) == (400.0, 200.0)


def test_a_process_killed_at_any_moment_leaves_the_machine_usable(gpu_machine):
    code = "import ctypes; nvml = ctypes.CDLL('libnvidia-ml.so.1'); print(flush=True)\n"
    work = "while True: nvml.fake_nvml_work(0, ctypes.c_double(9.0))"
    for _ in range(10):
        child = subprocess.Popen(
            [sys.executable, "-c", code + work],
            env={**os.environ, **gpu_machine.environment},
            stdout=subprocess.PIPE,
        )
        child.stdout.readline()
        child.kill()
        child.communicate()
        gpu_machine.set_limit_w(0, 200.0)
    assert gpu_machine.limit_w(0) == 200.0


def test_steps_take_longer_the_lower_the_limit_and_a_limit_above_the_demand_changes_nothing(
    gpu_machine,
):
    steps_s = []
    for watts in (400.0, 250.0, 200.0, 150.0, 100.0):
        gpu_machine.set_limit_w(0, watts)
        steps_s.append(gpu_machine.step_s(0))
    assert steps_s == pytest.approx([0.02, 0.02, 0.02106, 0.02309, 0.03216], rel=1e-3)


def test_training_keeps_the_gpu_busy_and_lists_its_process(gpu_machine):
    script = str(REPOSITORY / "tests" / "children" / "trains_on_gpu.py")
    environment = {**os.environ, **gpu_machine.environment, "PYTHONPATH": str(REPOSITORY)}
    watch = (
        "import time\nfrom zeusrun.gpu.nvml import gpus_of_job\n(gpu,) = gpus_of_job({}, 1)\n"
        "while not gpu.compute_processes(): time.sleep(0.01)\n"
        "reading = gpu.read(); print(*gpu.compute_processes(), reading.power_w)"
    )
    with subprocess.Popen([sys.executable, script, "--steps", "9999"], env=environment) as child:
        seen = subprocess.check_output([sys.executable, "-c", watch], env=environment, timeout=300)
        child.kill()
    assert seen.decode().split() == [str(child.pid), "250.0"]

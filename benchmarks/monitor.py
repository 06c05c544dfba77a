"""What the energy monitor costs at 10 Hz: CPU time as a share of one core, and memory.

Targets for 8 GPUs: at most 1 % and 20 MB. ``python benchmarks/monitor.py [--seconds 10]
[--repeats 5]``

The GPUs are simulated (all that is measured is the monitor's own) and, where gcc is, those of the
tests' NVML library (what ``pynvml`` costs comes to it; no driver is behind it). On a machine with
NVIDIA GPUs they are metered, too. The CPU is metered while a process tree works. A thread that only
wakes up as often is measured beside: on some virtual machines that alone is several percent.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path

from timing import describe_machine, show

from zeusrun.energy.cpu import cpu_device
from zeusrun.energy.device import Health, Reading
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.series import MAX_SAMPLES
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.trial import EnergySource

FAKE_LIBRARY = Path(__file__).resolve().parents[1] / "tests" / "gpu" / "fake_nvml.c"
GPUS = 8

# A root with as many children as asked for, each asleep most of the time like a data loader.
TREE = (
    "import subprocess, sys, time\n"
    "loop = 'import time\\nwhile True: sum(range(999)); time.sleep(0.05)'\n"
    "child = [sys.executable, '-c', loop]\n"
    "children = [subprocess.Popen(child) for _ in range(int(sys.argv[1]))]\n"
    "print('ready', flush=True)\n"
    "time.sleep(3600)"
)


class FreeDevice:
    """A GPU that costs next to nothing to read, so that what is left is the monitor's own."""

    is_gpu = True
    model = "Free GPU"
    max_power_w = 400.0
    energy_source = EnergySource.COUNTER
    caveat = None
    _health = Health(0.98, 65.0, 1410.0, 1215.0, ("sw_power_cap",))

    def __init__(self, number: int) -> None:
        self.uuid = f"GPU-{number}0000000-1111-2222-3333-444455556666"
        self._energy_j = 0.0

    def read(self) -> Reading:
        """See ``Device.read``."""
        self._energy_j += 25.0
        return Reading(self._energy_j, 250.123, 300.0, self._health)

    def compute_processes(self) -> frozenset[int]:
        """See ``Device.compute_processes``: this process alone."""
        return frozenset({os.getpid()})

    def close(self) -> None:
        """See ``Device.close``; nothing is held."""


def thread_cpu_share(devices: list, seconds: float, folder: Path) -> float:
    """Meter for a while; return the monitor thread's CPU time in percent of one core."""
    with EnergyMonitor(devices, folder / "power.csv", foreign=ForeignProcesses()):
        (thread,) = [t for t in threading.enumerate() if t.name == "zeusrun-energy"]
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        began_cpu, began = time.clock_gettime(clock), time.monotonic()
        time.sleep(seconds)
        return (time.clock_gettime(clock) - began_cpu) / (time.monotonic() - began) * 100


def idle_cpu_share(seconds: float) -> float:
    """As ``thread_cpu_share``, of a thread that only wakes up: what the machine makes of that."""
    stop = threading.Event()

    def idle() -> None:
        while not stop.wait(0.1):
            pass

    thread = threading.Thread(target=idle)
    thread.start()
    clock = time.pthread_getcpuclockid(thread.ident or 0)
    began_cpu, began = time.clock_gettime(clock), time.monotonic()
    time.sleep(seconds)
    share = (time.clock_gettime(clock) - began_cpu) / (time.monotonic() - began) * 100
    stop.set()
    thread.join()
    return share


def warm_cpu_share(devices: list, folder: Path) -> float:
    """Return what samples taken one right after the other would cost ten times a second.

    Waking up is not in it, nor what a processor needs that was asleep.
    """
    now_s, count = 0.0, 600
    monitor = EnergyMonitor(
        devices,
        folder / "warm.csv",
        period_s=3600.0,
        clock=lambda: now_s,
        foreign=ForeignProcesses(),
    )
    with monitor:
        began = time.thread_time()
        for _ in range(count):
            now_s += 0.1
            monitor.sample()
        return (time.thread_time() - began) / count * 10 * 100


def tree_cpu_share(children: int, seconds: float, folder: Path) -> float:
    """As ``thread_cpu_share``, of the CPU while a tree of processes works."""
    command = [sys.executable, "-c", TREE, str(children)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tree:
        tree.stdout.readline()  # type: ignore[union-attr] - it is a pipe
        share = thread_cpu_share([cpu_device(os.environ)], seconds, folder)
        subprocess.run(["pkill", "-P", str(tree.pid)], check=False)
        tree.kill()
    return share


def fake_nvml_cpu_shares(library: Path, seconds: float) -> list[float]:
    """As ``thread_cpu_share`` and ``warm_cpu_share``, of the GPUs of the tests' library."""
    done = subprocess.run(
        [sys.executable, __file__, "--gpus", "--seconds", str(seconds)],
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("CUDA_")},
            "LD_LIBRARY_PATH": str(library),
            "FAKE_NVML": f"gpus={GPUS} clock_ms=-1",
        },
        check=True,
        capture_output=True,
        text=True,
    )
    count, *shares = done.stdout.split()
    if int(count) != GPUS:
        raise SystemExit(f"the fake library has {count} GPUs instead of {GPUS}")
    return [float(share) for share in shares]


def build_fake_nvml(folder: Path) -> Path | None:
    """Return the folder of the tests' NVML library; ``None`` without gcc."""
    gcc = shutil.which("gcc")
    if gcc is None:
        return None
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O2"]
    subprocess.run([gcc, *flags, "-o", library, FAKE_LIBRARY, "-lm"], check=True)
    return folder


def peak_mb(folder: Path) -> float:
    """Return the most memory that metering 8 GPUs ever took, once all series have been full."""
    now_s = 0.0
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    devices = [FreeDevice(number) for number in range(GPUS)]
    monitor = EnergyMonitor(
        devices, folder / "power.csv", period_s=3600.0, clock=lambda: now_s, foreign=None
    )
    with monitor:
        for _ in range(MAX_SAMPLES + 1000):
            now_s += 0.1
            monitor.sample()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return (peak - before) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gpus", action="store_true", help="one run of this machine's GPUs only")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    gpus = gpus_of_job(os.environ, None)
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.gpus:
            warm = warm_cpu_share(gpus, folder)
            print(len(gpus), thread_cpu_share(gpus, seconds, folder), warm)
            return
        library = build_fake_nvml(folder)
        for _ in range(arguments.repeats):
            free = [FreeDevice(number) for number in range(GPUS)]
            shares = {"waking up alone": idle_cpu_share(seconds)}
            shares[f"{GPUS} simulated GPUs"] = thread_cpu_share(free, seconds, folder)
            shares["the same, without waking up"] = warm_cpu_share(free, folder)
            if library is not None:
                share, warm = fake_nvml_cpu_shares(library, seconds)
                shares[f"{GPUS} GPUs, pynvml over the tests' library"] = share
                shares["these, without waking up"] = warm
            if gpus:
                shares[f"NVML, {len(gpus)} GPUs"] = thread_cpu_share(gpus, seconds, folder)
            for children in (2, 16):
                share = tree_cpu_share(children, seconds, folder)
                shares[f"CPU, {children + 1} processes"] = share
            for what, share in shares.items():
                figures.setdefault(what, []).append(share)
        memory_mb = peak_mb(folder)
    print(describe_machine())
    print(f"10 Hz for {seconds:g} s, {arguments.repeats} runs each, interleaved")
    show(figures, "% of one core")
    print(f"memory of {GPUS} GPUs at most: {memory_mb:.1f} MB")


if __name__ == "__main__":
    main()

"""CPU time of the energy monitor at 10 Hz, as a share of one core, while a process tree works.

Target: at most 1 %. ``python benchmarks/monitor.py [--seconds 10] [--repeats 5]``
On a machine with NVIDIA GPUs they are metered, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from timing import describe_machine, show

from zeusrun.gpu.cpu import cpu_device
from zeusrun.gpu.monitor import EnergyMonitor
from zeusrun.gpu.nvml import gpus_of_job

# A root with as many children as asked for, each asleep most of the time like a data loader.
TREE = (
    "import subprocess, sys, time\n"
    "loop = 'import time\\nwhile True: sum(range(999)); time.sleep(0.05)'\n"
    "child = [sys.executable, '-c', loop]\n"
    "children = [subprocess.Popen(child) for _ in range(int(sys.argv[1]))]\n"
    "print('ready', flush=True)\n"
    "time.sleep(3600)"
)


def thread_cpu_share(devices: list, seconds: float, folder: Path) -> float:
    """Meter for a while; return the monitor thread's CPU time in percent of one core."""
    with EnergyMonitor(devices, folder / "power.csv"):
        (thread,) = [t for t in threading.enumerate() if t.name == "zeusrun-energy"]
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        began_cpu, began = time.clock_gettime(clock), time.monotonic()
        time.sleep(seconds)
        return (time.clock_gettime(clock) - began_cpu) / (time.monotonic() - began) * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = {}
    gpus = gpus_of_job(os.environ, None)
    with tempfile.TemporaryDirectory() as name:
        for _ in range(arguments.repeats):
            for children in (2, 16):
                tree = subprocess.Popen(
                    [sys.executable, "-c", TREE, str(children)], stdout=subprocess.PIPE
                )
                tree.stdout.readline()  # type: ignore[union-attr] - it is a pipe
                share = thread_cpu_share([cpu_device(os.environ)], arguments.seconds, Path(name))
                figures.setdefault(f"CPU, {children + 1} processes", []).append(share)
                subprocess.run(["pkill", "-P", str(tree.pid)], check=False)
                tree.kill()
                tree.wait()
            if gpus:
                share = thread_cpu_share(gpus, arguments.seconds, Path(name))
                figures.setdefault(f"NVML, {len(gpus)} GPUs", []).append(share)
    print(describe_machine())
    print(f"10 Hz for {arguments.seconds:g} s, {arguments.repeats} runs each, interleaved")
    show(figures, "% of one core")


if __name__ == "__main__":
    main()

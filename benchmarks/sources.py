"""What reading a metric source costs at 1,000 rows a second, polled as often as a run is.

Target: at most 3 % of a core each. ``python benchmarks/sources.py [--seconds 5]``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from timing import describe_machine

from zeusrun.jobfile.metrics_section import Metrics
from zeusrun.launcher.processes.torchrun import TICK_S
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.rows import SourceContext

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = round(1000 * TICK_S)  # a tick
LINES = {
    "stdout": "Epoch: [{0}]  [ 10/100]  eta: 0:00:10  lr: 0.1  loss: 2.5 (2.5)  acc1: 9.0 (9.0)\n",
    "csv": "{0},{1},0.5,0.25,,0.001\n",
    "jsonl": '{{"epoch": {0}, "step": {1}, "loss": 0.5, "accuracy": 0.25, "lr": 0.001}}\n',
}
SECTIONS = {
    "auto": {},
    "stdout": {"pattern": r"Epoch: \[(?P<epoch>\d+)\].* loss: (?P<accuracy>\S+)"},
    "csv": {"path": "**/log.csv"},
    "jsonl": {"path": "log.jsonl"},
}


def line_writer(path: Path, line: str) -> Callable[[int], None]:
    if path.suffix == ".csv":
        path.write_text("epoch,step,loss,accuracy,note,lr\n", encoding="utf-8")

    def write(tick: int) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(line.format(tick // 10, tick * ROWS + row) for row in range(ROWS))

    return write


def open_writer(name: str, folder: Path) -> Callable[[int], None]:
    if name in {"stdout", "auto"}:
        return line_writer(folder / "logs" / "rank0.log", LINES["stdout"])
    return line_writer(folder / f"log.{name}", LINES[name])


def measure(name: str, seconds: float) -> tuple[float, int]:
    """Return the CPU seconds a second, and the number of events."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "logs").mkdir()
        section = Metrics.model_validate({"source": name, **SECTIONS[name]})
        context = SourceContext(folder, folder, section, "accuracy")
        *_, source = open_sources(context).values()
        write = open_writer(name, folder)
        ticks, used_s, events = round(seconds / TICK_S), 0.0, 0
        for tick in range(ticks):
            next_t = time.monotonic() + TICK_S
            write(tick)
            began_s = time.thread_time()
            events += len(source.read())
            used_s += time.thread_time() - began_s
            time.sleep(max(0.0, next_t - time.monotonic()))
        return used_s / (ticks * TICK_S), events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    seconds = parser.parse_args().seconds
    print(describe_machine())
    print(f"{ROWS / TICK_S:.0f} rows a second for {seconds:g} s, read every {TICK_S:g} s")
    for name in SECTIONS:
        share, events = measure(name, seconds)
        print(f"{name:12} {share:6.2%} of a core, {events} events")


if __name__ == "__main__":
    main()

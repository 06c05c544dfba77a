"""Throughput by ranks and nodes against ideal, and the energy of a sample beside it.

``python benchmarks/scaling.py [--hosts a,b:4 | --namespaces [--mbit 200]] [--figure scaling.svg]``

Each configuration, such as 2x4 (nodes x ranks on each), is measured by ``zeusrun scale``, which
keeps the batch size of each rank (weak scaling, as KungFu: Mai et al., OSDI 2020); the runs take
turns. Ideal is the median of 1x1 times the ranks. ``--hosts`` is a list as in ``run_on``, this host
first.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from timing import describe_machine, interleave

from zeusrun.jobfile.hosts import parse_hosts
from zeusrun.view.report import canvas
from zeusrun.view.units import short_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # for tests.hosts


class Run(NamedTuple):
    """What one short run has shown; ``joules`` is ``None`` where they are unknown."""

    rate: float  # samples a second
    joules: float | None  # a sample
    source: str | None

    def figures(self) -> tuple[float, float]:
        """Return samples a second and millijoules a sample; NaN: unknown."""
        return self.rate, float("nan") if self.joules is None else 1000 * self.joules


def write_job(path: Path, options: argparse.Namespace) -> Path:
    """Write the job of one rank; JSON is YAML, too."""
    job = {
        "name": path.stem,
        "script": str(ROOT / "benchmarks" / "scripts" / "scales.py"),
        "args": ["--steps", str(options.steps), "--width", str(options.width)],
        "objective": {"metric": "done", "target": 1.0, "max_epochs": 5},
        "batch_size": {"default": options.batch_size, "candidates": [options.batch_size]},
        "run_on": {"hosts": [f"{options.hosts[0].name}:1"], "nic": options.nic},
    }
    job["run_on"]["fan_out"] = options.fan_out
    path.write_text(json.dumps(job))
    return path


def measure(
    job: Path,
    each: tuple[int, int],
    options: argparse.Namespace,
    prefix: Sequence[str],
    env: Mapping[str, str],
) -> Run:
    """Run ``zeusrun scale`` once; ``prefix`` stands before a command on the host that submits."""
    nodes, ranks = each
    words = ["scale", str(job), "--ranks", str(nodes * ranks), "--steps", str(options.steps)]
    if nodes > 1:
        words += ["--hosts", ",".join(f"{host.name}:{ranks}" for host in options.hosts[:nodes])]
    command = [*prefix, sys.executable, "-m", "zeusrun", *words, "--json"]
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        what = f"{nodes}x{ranks} ended with {done.returncode}"
        raise SystemExit(f"{what}:\n{done.stdout}{done.stderr}")
    (row,) = json.loads(done.stdout)
    return Run(row["samples_per_s"], row["j_per_sample"], row["source"])


def summarise(own: Sequence[Run]) -> list[tuple[float, float, float]]:
    """Return median, least and largest of each figure."""
    columns = zip(*(run.figures() for run in own), strict=True)
    return [(statistics.median(values), min(values), max(values)) for values in columns]


def show(runs: Mapping[tuple[int, int], Sequence[Run]]) -> None:
    """Print a row for each configuration."""
    spreads = {each: summarise(own) for each, own in runs.items()}
    print(f"{'':6}{'samples/s':>28}{'ideal':>8}{'efficiency':>12}  mJ/sample")
    for (nodes, ranks), (rates, joules) in spreads.items():
        ideal = nodes * ranks * spreads[1, 1][0][0]
        energy = "{:.3g} ({:.3g} to {:.3g})  {}".format(*joules, runs[nodes, ranks][0].source)
        print(
            f"{nodes}x{ranks:<4}{'{:.0f} ({:.0f} to {:.0f})'.format(*rates):>28}{ideal:8.0f}"
            f"{rates[0] / ideal:12.0%}  {'unknown' if math.isnan(sum(joules)) else energy}"
        )


def draw(runs: Mapping[tuple[int, int], Sequence[Run]], path: Path) -> None:
    """Draw throughput and energy against the ranks, in a colour for each number of nodes."""
    spreads = {each: summarise(own) for each, own in runs.items()}
    palette, counts = canvas.LIGHT, sorted({nodes for nodes, _ in runs})
    ticks = sorted(set(map(math.prod, runs)))
    with canvas.drawing():
        figure = canvas.blank(246)
        canvas.add_legend(figure, [f"nodes: {n}" for n in counts], palette, range(len(counts)))
        for number, title in enumerate(("samples a second (dashed: ideal)", "mJ a sample")):
            panel = canvas.add_panel(figure, palette, (48 + number * 335, 46, 280, 156))
            canvas.set_title(panel, title, palette)
            canvas.set_label(panel, "ranks", palette)
            for index, count in enumerate(counts):
                style = {"color": palette.size(index, len(counts)), "lw": 1.4}
                own = sorted(each for each in runs if each[0] == count)
                y, low, high = zip(*(spreads[each][number] for each in own), strict=True)
                panel.plot([math.prod(each) for each in own], y, "o-", ms=5.6, **style)
                panel.vlines([math.prod(each) for each in own], low, high, **style)
            if number == 0:
                ends = [0, ticks[-1]]
                panel.plot(ends, [n * spreads[1, 1][0][0] for n in ends], **canvas.dashes(palette))
                panel.yaxis.set_major_formatter(lambda value, _place: short_count(value))
            panel.set(xlim=(0, ticks[-1] * 1.05), ylim=(0, None), xticks=ticks)
        figure.savefig(path, dpi=200)


def nodes_x_ranks(text: str) -> tuple[int, int]:
    nodes, ranks = map(int, text.split("x"))
    return nodes, ranks


def read_options() -> tuple[argparse.Namespace, list[tuple[int, int]]]:
    """Return the options and the configurations; ends the process if they do not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--configurations", nargs="+", type=nodes_x_ranks, help="nodes x ranks: 1x1 2x4"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256, help="of each rank")
    parser.add_argument("--width", type=int, default=512, help="of the network")
    parser.add_argument("--hosts", help="a,b:4, this one first")
    parser.add_argument("--nic", help="network interface, as run_on.nic")
    parser.add_argument("--fan-out", default="ssh -o BatchMode=yes {host}")
    parser.add_argument("--namespaces", action="store_true", help="two hosts on this one, as root")
    parser.add_argument("--mbit", type=int, help="Mbit/s of the cable between these")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--figure", type=Path, help="NAME.svg, .png or .pdf")
    options = parser.parse_args()
    several = options.hosts or options.namespaces
    options.hosts = parse_hosts((options.hosts or "a,b").split(","))[: None if several else 1]
    wanted = options.configurations or [(1, 1), (1, 2), (2, 1), (2, 2)][: 4 if several else 2]
    for nodes, ranks in wanted:
        if sum((host.slots or ranks) >= ranks for host in options.hosts[:nodes]) < nodes:
            parser.error(f"{nodes}x{ranks} needs {nodes} --hosts with {ranks} slots each")
    if (1, 1) not in wanted:
        parser.error("1x1 is what the others are compared with; add it to --configurations")
    return options, wanted


def main() -> None:
    options, wanted = read_options()
    print(f"{describe_machine()}; {options.steps} steps of {options.batch_size} samples a rank")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scaling-")))
        prefix: list[str] = []
        if options.namespaces:
            from tests.hosts import NIC, TwoHosts, missing  # noqa: PLC0415 - needs pytest

            if reason := missing(sshd=True):
                raise SystemExit(f"--namespaces: {reason}")
            hosts = stack.enter_context(TwoHosts(folder / "hosts", sshd=True))
            options.nic, options.fan_out = NIC, f"{' '.join(hosts.ssh_command)} {{host}}"
            prefix = hosts.a.inside([], cwd=folder)
            if options.mbit:
                hosts.shape(options.mbit)
        env = {**os.environ, "ZEUSRUN_HOME": str(folder / "home")}
        job = write_job(folder / "scaling.yaml", options)
        trainings = {each: partial(measure, job, each, options, prefix, env) for each in wanted}
        runs = interleave(trainings, options.repeats)
    show(runs)
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["nodes", "ranks_per_node", *Run._fields])
            writer.writerows((*each, *run) for each, own in runs.items() for run in own)
    if options.figure:
        draw(runs, options.figure)


if __name__ == "__main__":
    main()

"""Nothing lost, whatever dies: faults tried on the real command, and what they have left.

``python benchmarks/faults.py`` tries all: 200 random kills, 200 kills of the watchdog of a script
that forks, 50 parallel submits 5 times, a minute of all verbs mixed, every fault of every system
call of a write, and nights: ticks at once, homes that change the crontab at once, flipped bits,
what is in the way of a history, a disk that fills up. Name some of ``--kills``,
``--watchdog-kills``, ``--parallel``, ``--mix``, ``--io``, ``--nights`` to try those alone. Target:
nothing lost, nothing there twice, nothing left behind. Exits with 1 otherwise, keeps the homes of
what failed, and says how to try it again. Needs gcc; GPUs are fakes (``tests/gpu/fake_nvml.c``),
all else is real.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults_crowd import run_mix, run_parallel
from faults_forks import run_watchdog_kills
from faults_home import KINDS, ROOT, Experiment, build_library
from faults_io import run_write_faults
from faults_kills import run_kills
from faults_nights import run_nights
from faults_scene import PHASES
from faults_submits import run_disks, run_submit_faults
from timing import describe_machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ALL = {
    "kills": 200,
    "watchdog_kills": 200,
    "parallel": 50,
    "mix": 60.0,
    "io": True,
    "nights": True,
}
_MOST_TOLD = 20


def main() -> None:
    arguments = parse()
    folder = Path(tempfile.mkdtemp(prefix="zeusrun-faults-"))
    begun_t = time.monotonic()
    experiments = []
    for experiment in run_all(arguments, folder):
        experiments.append(experiment)
        if not experiment.findings:
            shutil.rmtree(experiment.home, ignore_errors=True)
    failed = [experiment for experiment in experiments if experiment.findings]
    if not failed:
        shutil.rmtree(folder)
    seconds = time.monotonic() - begun_t
    if arguments.json:
        print(json.dumps(build_report(experiments, seconds), default=str))
    else:
        show(experiments, seconds)
    sys.exit(1 if failed else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, help="random kills (200)")
    parser.add_argument("--watchdog-kills", type=int, help="of a script that forks (200)")
    parser.add_argument("--parallel", type=int, help="submits started at once (50)")
    parser.add_argument("--rounds", type=int, default=5, help="how often they are (5)")
    parser.add_argument("--mix", type=float, help="seconds of all verbs mixed (60)")
    parser.add_argument("--io", action="store_true", help="faults of the disk")
    parser.add_argument("--nights", action="store_true", help="ticks, crontabs, bits, files, disks")
    parser.add_argument("--io-past", help="only writes to the kind of history with this name")
    parser.add_argument("--io-submits", type=int, default=24, help="whole submits among them (24)")
    parser.add_argument("--jobs", type=int, default=2, help="experiments at a time (2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    arguments = parser.parse_args()
    if not any(getattr(arguments, name) for name in _ALL):
        vars(arguments).update(_ALL)
    return arguments


def run_all(arguments: argparse.Namespace, folder: Path) -> Iterator[Experiment]:
    """Yield the experiments asked for, as each is done."""
    jobs, seed = arguments.jobs, arguments.seed
    if arguments.io:
        yield from run_write_faults(_made(folder / "writes"), jobs, arguments.io_past)
        yield from run_disks(_made(folder / "disks"))
    if arguments.io and arguments.io_submits:
        submits = _made(folder / "submits")
        yield from run_submit_faults(submits, seed, arguments.io_submits, jobs)
    if arguments.kills:
        source = ROOT / "tests" / "gpu" / "fake_nvml.c"
        library = build_library(folder, source, "libnvidia-ml.so.1")
        yield from run_kills(_made(folder / "kills"), library, seed, arguments.kills, jobs)
    if arguments.watchdog_kills:
        forks = _made(folder / "forks")
        yield from run_watchdog_kills(forks, seed, arguments.watchdog_kills, jobs)
    if arguments.parallel:
        crowds = _made(folder / "crowds")
        yield from run_parallel(crowds, arguments.parallel, arguments.rounds)
    if arguments.nights:
        yield from run_nights(_made(folder / "nights"), seed)
    if arguments.mix:
        yield run_mix(_made(folder / "mixed"), seed, arguments.mix)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def build_rows(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Count, by fault: how often it was tried, and what was found of each kind."""
    rows: dict[str, Counter[str]] = {}
    for experiment in experiments:
        row = rows.setdefault(experiment.fault, Counter())
        row["tried"] += 1
        row.update(finding.kind for finding in experiment.findings)
    return [
        {"fault": fault, "tried": row["tried"], **{kind: row[kind] for kind in KINDS}}
        for fault, row in sorted(rows.items())
    ]


def build_phases(experiments: Sequence[Experiment]) -> dict[str, int]:
    """Count into which phase of a submit the kills fell."""
    counted = Counter(each.facts["phase"] for each in experiments if "phase" in each.facts)
    return {phase: counted[phase] for phase in PHASES} if counted else {}


def build_report(experiments: Sequence[Experiment], seconds: float) -> dict[str, Any]:
    """Return all that was found, as plain values."""
    return {
        "machine": describe_machine(),
        "seconds": round(seconds, 1),
        "rows": build_rows(experiments),
        "phases": build_phases(experiments),
        "failed": [
            {
                "fault": experiment.fault,
                "label": experiment.label,
                "home": str(experiment.home),
                "replay": experiment.replay,
                "findings": [vars(finding) for finding in experiment.findings],
            }
            for experiment in experiments
            if experiment.findings
        ],
    }


def show(experiments: Sequence[Experiment], seconds: float) -> None:
    """Print the table, and how to try again what failed."""
    rows = build_rows(experiments)
    width = max(len(row["fault"]) for row in rows)
    print(f"\n{describe_machine()}; {seconds:.0f} s")
    print(f"{'fault':{width}}  tried  {'  '.join(KINDS)}")
    for row in rows:
        counts = "  ".join(f"{row[kind]:{len(kind)}}" for kind in KINDS)
        print(f"{row['fault']:{width}}  {row['tried']:5}  {counts}")
    phases = build_phases(experiments)
    if phases:
        print("kills: " + ", ".join(f"{times} {phase}" for phase, times in phases.items()))
    for name, what in (("gone_s", "until all was gone"), ("next_s", "for the next submit")):
        known = sorted(e.facts[name] for e in experiments if e.facts.get(name) is not None)
        if known:
            print(f"{what}: median {known[len(known) // 2]:.2f} s, longest {known[-1]:.2f} s")
    failed = [experiment for experiment in experiments if experiment.findings]
    for experiment in failed[:_MOST_TOLD]:
        print(f"\n{experiment.label}")
        for finding in experiment.findings:
            print(f"  {finding.kind}: {finding.text}")
        print(f"  kept in {experiment.home}; again: benchmarks/faults.py {experiment.replay}")
    if len(failed) > _MOST_TOLD:
        print(f"\nand {len(failed) - _MOST_TOLD} more: --json tells of all")


if __name__ == "__main__":
    main()

"""What each way in which ranks agree costs, and what it does to the learning: one table.

``python benchmarks/sync.py [--rounds 3] [--seeds 3]``; as root, with iproute2 and scikit-learn.
With ``--recovery [--figure FILE.svg]`` only the last part.

Four network namespaces are four hosts with one rank each, joined by a bridge. A model of one
megabyte trains over gloo; in each round, all ways train after one another. *Calm*: each cable has
200 Mbit/s. *Disturbed*: that of rank 0 has 40. *Straggler*: the cables have no limit; a step also
sleeps for 20 ms, on the last rank for 80, and the steps of all ranks together are counted.
*Digits*: submits of jobs/digits.yaml with four ranks on this machine: epochs to the target, and
joules.

Then ``on_slow: compress`` and ``vote`` train on, while the cable of rank 0 becomes slow and calm
again: steps a second after each check, over those before. That is KungFu's recovery from
interference.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import yaml
from timing import describe_machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks/scripts/sync_ranks.py"
sys.path.append(str(ROOT))

from zeusrun.sync.rank.vote import CHECK  # noqa: E402
from zeusrun.sync.section import Topology  # noqa: E402 - see above
from zeusrun.view.report import canvas  # noqa: E402 - see above

RANKS, NIC = 4, "eth0"
WARMUP = 20  # passes, which are over before a round begins, and an epoch of the digits
WAYS = {
    "all-reduce": {},
    "bf16": {"compress": "bf16"},
    "fp16": {"compress": "fp16"},
    "powersgd": {"compress": "powersgd", "warmup": WARMUP},
    "every 8": {"every": 8, "warmup": WARMUP},
    "sma": {"method": "sma"},
    "sma, then all-reduce": {"method": "sma", "switch_at": 60},
    "pair": {"method": "pair"},
    **{name: {"topology": name} for name in get_args(Topology)},
}
FIRST = {"powersgd": WARMUP + 4, "every 8": WARMUP + 4}  # steps before a round is measured
CHECKS = {"before": 5, "slow": 10, "calm again": 7}  # of sixteen steps each


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Make the namespaces zs0 to zs3, and zsb with the bridge; they are gone afterwards."""
    names = ["zsb", *(f"zs{rank}" for rank in range(RANKS))]
    remove(names)  # of a benchmark that was killed
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "-n", "zsb", "link", "add", "br0", "type", "bridge")
        run("ip", "-n", "zsb", "link", "set", "br0", "up")
        for rank in range(RANKS):
            own, port = f"zs{rank}", f"p{rank}"
            run(
                *("ip", "-n", own, "link", "add", NIC, "type", "veth"),
                *("peer", "name", port, "netns", "zsb"),
            )
            run("ip", "-n", "zsb", "link", "set", port, "master", "br0", "up")
            run("ip", "-n", own, "addr", "add", f"10.78.0.{rank + 1}/24", "dev", NIC)
            run("ip", "-n", own, "link", "set", NIC, "up")
            run("ip", "-n", own, "link", "set", "lo", "up")
        yield
    finally:
        remove(names)


def remove(names: list[str]) -> None:
    """Remove namespaces, if they are there."""
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def shape(rank: int, mbit: int | None) -> None:
    """Limit the cable of a host in both directions; ``None``: no longer."""
    # With a smaller burst than before, a packet that waits could never leave.
    burst = "64kb" if mbit is None or mbit < 1000 else "512kb"
    for name, device in ((f"zs{rank}", NIC), ("zsb", f"p{rank}")):
        if mbit is None:
            run("tc", "-n", name, "qdisc", "del", "dev", device, "root")
            continue
        run(
            *("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "tbf"),
            *("rate", f"{mbit}mbit", "burst", burst, "latency", "400ms"),
        )


def start(given: dict[str, object]) -> list[subprocess.Popen[str]]:
    """Start a rank on each host; only the first one's output is read."""
    ranks = []
    for rank in range(RANKS):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": "0",
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": str(RANKS),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "10.78.0.1",
            "MASTER_PORT": "29500",
            "GLOO_SOCKET_IFNAME": NIC,
            "PYTHONPATH": str(ROOT),
        }
        own = ("ip", "netns", "exec", f"zs{rank}")
        command = [*own, sys.executable, str(SCRIPT), json.dumps(given)]
        output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        ranks.append(subprocess.Popen(command, env=env, stdout=output, text=True))
    return ranks


def train(ways: dict[str, dict[str, object]], **more: object) -> Iterator[list[object]]:
    """Train on all hosts; yield what rank 0 prints."""
    given = {"ways": ways, "sleeps_s": [0] * RANKS, "steps": 8, "first": FIRST, **more}
    ranks = start(given)
    assert ranks[0].stdout is not None
    for line in ranks[0].stdout:
        yield json.loads(line)
    if any(rank.wait() for rank in ranks):
        raise SystemExit("a rank failed")


def measure(**more: object) -> dict[str, list[float]]:
    """Return what each way reaches, a number for each round."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    begun = time.monotonic()
    for name, number in train(WAYS, **more):
        found[name].append(number)
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return found


def answer(section: dict[str, object], mbit: int, slow: int) -> list[tuple[str, str, float]]:
    """Return a phase, the ways and the steps a second for each check of a training."""
    checks = [phase for phase, count in CHECKS.items() for _ in range(count)]
    found: list[tuple[str, str, float]] = []
    ways: list[str] = []
    seconds = 0.0
    for number, (way, took) in enumerate(
        train({"": section}, steps=None, rounds=CHECK * len(checks))
    ):
        ways.append(way)
        seconds += took
        if (number + 1) % CHECK == 0:
            names = ", ".join(dict.fromkeys(ways))
            found.append((checks[number // CHECK], names, CHECK / seconds))
            ways, seconds = [], 0.0
            after = (number + 1) // CHECK
            if after < len(checks) and checks[after] != checks[after - 1]:
                shape(0, slow if checks[after] == "slow" else mbit)
    return found


def learn(section: dict[str, object], seed: int) -> tuple[bool, int, float]:
    """Submit the digits; return whether they reach the target, in how many epochs and joules."""
    with tempfile.TemporaryDirectory() as home:
        job = yaml.safe_load((ROOT / "jobs/digits.yaml").read_text())
        job |= {"script": str(ROOT / "examples/digits/train.py"), "args": ["--seed", str(seed)]}
        job |= {"launch": {"nproc_per_node": RANKS}, "attempts": 1, "sync": section}
        job["batch_size"] = {"default": 64, "candidates": [64]}
        job["objective"] |= {"target": 0.97, "max_epochs": 30}
        path = Path(home, "job.yaml")
        path.write_text(yaml.safe_dump(job))
        result = subprocess.run(
            [sys.executable, "-m", "zeusrun", "submit", str(path), "--json"],
            check=False,
            env={**os.environ, "ZEUSRUN_HOME": home, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
    (trial,) = json.loads(result.stdout)["trials"]
    return trial["status"] == "REACHED", trial["epochs"], trial["energy_j"]


def spread(numbers: Sequence[float], digits: int = 0) -> str:
    low, middle, high = min(numbers), statistics.median(numbers), max(numbers)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def describe_learning(runs: list[tuple[bool, int, float]]) -> tuple[str, str]:
    """Return the epochs and the joules of the runs that reached the target."""
    if not runs:
        return "as all-reduce", ""
    reached = [run for run in runs if run[0]]
    if not reached:
        return f"0 of {len(runs)}", ""
    few = "" if len(reached) == len(runs) else f", {len(reached)} of {len(runs)}"
    return spread([run[1] for run in reached]) + few, spread([run[2] for run in reached])


def tell(answers: dict[str, list[tuple[str, str, float]]], figure: Path | None) -> None:
    """Print how the ranks answered a slow cable, and draw it."""
    shares: dict[str, list[float]] = {}
    for name, checks in answers.items():
        before = statistics.median(rate for phase, _, rate in checks[2:] if phase == "before")
        shares[name] = [rate / before for _, _, rate in checks]
        print(f"\n{name}: steps a second of each check, over {before:.1f} before")
        for phase in CHECKS:
            own = [(ways, rate / before) for each, ways, rate in checks if each == phase]
            print(f"{phase:12}" + "; ".join(f"{share:.0%} {ways}" for ways, share in own))
    if figure is not None:
        draw(shares, figure)


def draw(shares: dict[str, list[float]], path: Path) -> None:
    """Draw the steps a second of each check, over those before the cable became slow."""
    palette, first = canvas.LIGHT, CHECKS["before"]
    with canvas.drawing():
        figure = canvas.blank(246)
        canvas.add_legend(figure, list(shares), palette, range(len(shares)))
        panel = canvas.add_panel(figure, palette, (48, 46, 610, 156))
        title = "steps a second, in % (slow between the lines)"
        canvas.set_title(panel, title, palette)
        canvas.set_label(panel, f"checks, of {CHECK} steps each", palette)
        for number, own in enumerate(shares.values()):
            percent = [100 * share for share in own]
            colour = palette.size(number, len(shares))
            panel.plot(range(1, len(own) + 1), percent, "o-", ms=4, lw=1.4, color=colour)
        for at in (first + 0.5, first + CHECKS["slow"] + 0.5):
            panel.axvline(at, **canvas.dashes(palette))
        panel.set_ylim(0, None)
        figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, default=200)
    parser.add_argument("--slow", type=int, default=40, help="of rank 0, disturbed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="of the digits")
    parser.add_argument("--recovery", action="store_true", help="only the answer to a slow cable")
    parser.add_argument("--figure", type=Path, help="of that answer: NAME.svg")
    options = parser.parse_args()
    calm, slow = options.mbit, options.slow
    print(f"{describe_machine()}; {RANKS} hosts at {calm} Mbit/s, rank 0 at {slow}")
    networks = {
        "calm": (calm, calm, [0.0] * RANKS),
        "disturbed": (slow, calm, [0.0] * RANKS),
        "straggler": (None, None, [0.02] * (RANKS - 1) + [0.08]),
    }
    tables = {}
    with hosts():
        for name, (of_head, of_others, sleeps_s) in (
            networks.items() if not options.recovery else ()
        ):
            for rank in range(RANKS):
                shape(rank, of_others if rank else of_head)
            tables[name] = measure(rounds=options.rounds, sleeps_s=sleeps_s)
        for rank in range(RANKS):
            shape(rank, calm)
        sections = {"on_slow: compress": {"on_slow": "compress"}}
        sections["star, vote"] = {"topology": "star", "vote": True}
        answers = {name: answer(section, calm, slow) for name, section in sections.items()}
    tell(answers, options.figure)
    if options.recovery:
        return
    learned = {
        name: [learn(section, seed) for seed in range(options.seeds)]
        for name, section in WAYS.items()
        if "topology" not in section  # they learn as an all-reduce does
    }
    heads = ("", "calm, ms", "disturbed, ms", "straggler, steps/s", "digits: epochs", "joules")
    rows = [heads]
    for name in WAYS:
        cells = [spread(table[name]) for table in tables.values()]
        rows.append((name, *cells, *describe_learning(learned.get(name, []))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"{row[0]:{widths[0]}}", *cells]).rstrip())


if __name__ == "__main__":
    main()

"""Whole ``zeusrun submit`` against bare ``torchrun`` on the same script.

Targets: ratio at most 1.00 on a 10 s script, no more than torchrun on an empty one.
``python benchmarks/submit_overhead.py [--repeats 7] [--trials 10 10000]``; with ``--trials`` only
submits with so many trials in the history, one against the other.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

from startup import fill_history
from timing import describe_machine, interleave, run_seconds, show

SCRIPTS = Path(__file__).resolve().parent / "scripts"
RANKS = 2


def write_job(folder: Path, script: str, args: list[str]) -> Path:
    path = folder / f"{Path(script).stem}.yaml"
    path.write_text(
        f"name: {path.stem}\nscript: {SCRIPTS / script}\nargs: {args}\n"
        f"launch: {{nproc_per_node: {RANKS}}}\n"
        "objective: {metric: accuracy, target: 0.5}\n"
        "early_stop: {cost_factor: null}\n"
        "batch_size: {default: 64, candidates: [64]}\n"
    )
    return path


def torchrun(script: str, args: list[str]) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    return [*launcher, str(SCRIPTS / script), *args]


def calibrate(seconds: float) -> list[str]:
    """Return arguments that make ten_seconds.py last about so long with all ranks at work."""
    few, many = 2_000, 60_000  # far apart: both take seconds to start, give or take
    base = run_seconds(torchrun("ten_seconds.py", ["--steps", str(few)]))
    more = run_seconds(torchrun("ten_seconds.py", ["--steps", str(many)]))
    step_s = max(1e-6, (more - base) / (many - few))
    return ["--steps", str(max(few, int((seconds - base) / step_s) + few))]


def compare_histories(counts: list[int], repeats: int) -> None:
    """Submit the same job with histories of different lengths."""
    script = "reports_once.py"
    with tempfile.TemporaryDirectory() as name:
        calls = {}
        for count in counts:
            folder = Path(name) / str(count)
            folder.mkdir()
            job = write_job(folder, script, [])
            fill_history(folder / "home", job.stem, count)
            env = {**os.environ, "ZEUSRUN_HOME": str(folder / "home")}
            submit = [sys.executable, "-m", "zeusrun", "submit", str(job), "--quiet"]
            calls[f"{count} trials"] = partial(run_seconds, submit, env, 0)
        print(f"\nsubmit of {script}, {RANKS} ranks, {repeats} runs each, interleaved")
        show(interleave(calls, repeats), "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--trials", type=int, nargs="+", help="trials in the history")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    print(describe_machine())
    if arguments.trials:
        compare_histories(arguments.trials, repeats)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "ZEUSRUN_HOME": str(folder / "home")}
        # A script that never reports is recorded as failed: exit code 3.
        scripts = (
            ("empty.py", [], 3),
            ("imports_torch.py", [], 3),
            ("reports_once.py", [], 0),
            ("ten_seconds.py", calibrate(10.0), 0),
        )
        for script, args, code in scripts:
            job = write_job(folder, script, args)
            submit = [sys.executable, "-m", "zeusrun", "submit", str(job), "--quiet"]
            print(f"\n{' '.join([script, *args])}, {RANKS} ranks, {repeats} runs each, interleaved")
            figures = interleave(
                {
                    "torchrun": partial(run_seconds, torchrun(script, args)),
                    "zeusrun submit": partial(run_seconds, submit, env, code),
                },
                repeats,
            )
            show(figures, "s")
            bare, ours = figures["torchrun"], figures["zeusrun submit"]
            ratios = [b / a for a, b in zip(bare, ours, strict=True)]
            extra = [b - a for a, b in zip(bare, ours, strict=True)]
            print(
                f"pair by pair: ratio {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f}), extra {statistics.median(extra):.2f} s "
                f"({min(extra):.2f} to {max(extra):.2f} s)"
            )


if __name__ == "__main__":
    main()

"""Describes which trials read otherwise than they ended, and what of them still counts."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from zeusrun.bandit.proof import (
    CRASHED,
    Doubt,
    prove,
    same_energy,
    same_hardware,
    same_learning,
    same_speed,
    same_split,
    with_ranks_of,
)
from zeusrun.bandit.reinterpret import CUT_SHORT, complete, read_trial
from zeusrun.trial import TrialStatus, split_variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial


def find_ignored(trials: Sequence[Trial]) -> Trial | None:
    """Return the newest trial whose script trained with another batch size than the chosen one.

    ``None`` if a later batch size arrived that is not that one, as after a repair.
    """
    arrived: set[int] = set()
    for trial in reversed(trials):
        unknown = trial.observed_batch_size is None and not trial.unapplied
        if trial.forgotten or unknown or _exceeds_data(trial):
            continue
        if not trial.teaches:
            default = trial.observed_batch_size or trial.default_batch_size  # the script's
            return None if arrived - {default} else trial
        arrived.add(trial.global_batch_size)
    return None


def find_largest(trials: Sequence[Trial]) -> Trial | None:
    """Return the newest trial whose batch size was larger than the data; ``None`` if none was."""
    return next((e for e in reversed(trials) if _exceeds_data(e) and not e.forgotten), None)


def _exceeds_data(trial: Trial) -> bool:
    """Whether an epoch has fewer samples than the batch size, so that a step had those."""
    size, samples, epochs = trial.observed_batch_size, trial.samples, trial.progress
    if size is None or samples is None or not epochs or trial.unapplied:
        return False
    return samples / epochs / 2 < size < trial.global_batch_size  # a part may be dropped


def find_own_size(trials: Sequence[Trial]) -> int | None:
    """Return the batch size with which the script trains whatever it gets; ``None`` if not known.

    It is known once the newest trials were to train with at least two batch sizes, and trained with
    one. A script may also train with a multiple of what it gets: its own ranks, or accumulation.
    """
    seen = [each for each in trials if each.observed_batch_size and not each.forgotten]
    newest = seen[-1].observed_batch_size if seen else None
    asked = {
        each.global_batch_size
        for each in itertools.takewhile(lambda e: e.observed_batch_size == newest, reversed(seen))
    }
    return newest if len(asked) > 1 else None


def describe_kept(problem: Problem, trials: Sequence[Trial]) -> list[str]:
    """Describe which finished trials read otherwise than they ended, and what still counts.

    Such as ``4 runs had another target: read again from their learning curves``. A trial is counted
    under its first difference.
    """
    problem = complete(problem, trials)
    counts: Counter[tuple[str, str]] = Counter()
    for trial in (with_ranks_of(problem, each) for each in trials):
        if (what := _find_difference(problem, trial)) is not None:
            counts[what, _what_counts(problem, trial)] += 1
    clauses = []
    if (ignored := find_ignored(trials)) is not None:
        clauses.append(_describe_ignored(problem, ignored))
    if (largest := find_largest(trials)) is not None:
        clauses.append(
            f"{largest.trial} trained with batch size {largest.observed_batch_size}, not with "
            f"{largest.global_batch_size}: an epoch has too few samples for a larger one. When the "
            f"data have grown, run zeusrun history --forget {largest.trial}"
        )
    for (what, kept), count in counts.items():
        some, own = ("runs", "their") if count > 1 else ("run", "its")
        clauses.append(f"{count} {some} {what}: {kept}".format(own=own, s=some[3:]))
    return clauses


def _describe_ignored(problem: Problem, ignored: Trial) -> str:
    observed, asked = ignored.observed_batch_size, ignored.global_batch_size
    size = f"batch size {observed}" if observed else "its own batch size"
    return (
        f"{ignored.trial} trained with {size}, not with {asked}: only {problem.default} runs until "
        f"another one arrives. Once the script takes it: zeusrun history --forget {ignored.trial}"
    )


def _find_difference(problem: Problem, trial: Trial) -> str | None:
    """Return how a finished trial differs from a trial of today, by the first difference."""
    if not trial.status.finished:
        return None
    if trial.status in {CUT_SHORT, TrialStatus.PREEMPTED} and not (
        trial.epochs or trial.power_profile or trial.forgotten
    ):
        return None  # it ended too early to teach anything
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    if proof.nothing and proof.learning is not None:
        return proof.learning.value
    (adapts, sync), now = split_variant(trial.variant), split_variant(problem.variant)
    devices = "GPUs" if trial.gpu_count else "CPU"
    shared = f"shared {{own}} {devices} (policy.learn_from_shared is false)"
    found = {
        "adapted {own} batch size in another way": adapts != now[0],
        "had another sync": sync != now[1],
        shared: proof.speed is Doubt.SHARED,
        "had other hardware": not same_hardware(problem, trial),
        "had other micro-batches": not same_split(problem, trial),
    }
    if trial.status not in CRASHED:
        found |= {doubt.value: True for doubt in proof if doubt is not None}
        found |= {
            "had another kind of energy": not same_energy(problem, trial),
            "had another loader.workers": not same_speed(problem, trial),
            "had another metric": (trial.metric, trial.mode) != (problem.metric, problem.mode),
            "had another learning rate": not same_learning(problem, trial),
        }
        if trial.curve:
            names = ("target", "max_epochs", "eta_knob")
            found |= {f"had another {n}": getattr(trial, n) != getattr(problem, n) for n in names}
            no_candidate = trial.global_batch_size not in problem.candidates
            found["had a batch size that is no candidate"] = no_candidate
    return next((what for what, holds in found.items() if holds), None)


def _what_counts(problem: Problem, trial: Trial) -> str:
    run = read_trial(problem, trial) if trial.variant == problem.variant else None
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    timed = proof.speed not in {Doubt.INTERRUPTED, Doubt.RESIZED}
    if run is None or (run.epochs is None and not timed):
        return "left out"
    if run.epochs is None:
        return "kept for {own} speed"
    if proof.speed is Doubt.SHARED:
        return "kept for {own} epochs, and for {own} speed while no better one is known"
    whole = timed and run.local
    return "read again from {own} learning curve{s}" if whole else "kept for {own} epochs"

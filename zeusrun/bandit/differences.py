"""Describes which trials read otherwise than they ended, and what of them still counts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from zeusrun.bandit.proof import (
    CRASHED,
    Doubt,
    changed_parts,
    prove,
    same_energy,
    same_hardware,
    same_learning,
    same_split,
    with_ranks_of,
)
from zeusrun.bandit.reinterpret import CUT_SHORT, complete, read_trial
from zeusrun.trial import TrialStatus, is_baseline, split_variant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial

_FEW = 3  # values to name of each difference


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

    Such as ``4 runs had another target (0.9): read again from their learning curves``. A trial is
    counted under its first difference.
    """
    problem = complete(problem, trials)
    values: dict[tuple[str, str], list[str]] = {}
    for trial in (with_ranks_of(problem, each) for each in trials):
        difference = next(_differences(problem, trial), None)
        if difference is not None:
            what, value = difference
            values.setdefault((what, _what_counts(problem, trial)), []).append(value)
    clauses = []
    if (ignored := find_ignored(trials)) is not None:
        clauses.append(_describe_ignored(problem, ignored))
    if (largest := find_largest(trials)) is not None:
        clauses.append(
            f"{largest.trial} trained with batch size {largest.observed_batch_size}, not with "
            f"{largest.global_batch_size}: an epoch has no more samples, so no larger one runs. "
            f"Once it has: zeusrun history --forget {largest.trial}"
        )
    for (what, kept), seen in values.items():
        distinct = list(dict.fromkeys(seen))
        few = ", ".join(distinct[:_FEW]) + (", …" if len(distinct) > _FEW else "")
        some, own = ("runs", "their") if len(seen) > 1 else ("run", "its")
        clause = f"{len(seen)} {some} {what} ({{few}}): {kept}"
        clauses.append(clause.format(few=few, own=own, s=some[3:]))
    return clauses


def _describe_ignored(problem: Problem, ignored: Trial) -> str:
    observed, asked = ignored.observed_batch_size or 0, ignored.global_batch_size
    size = f"batch size {observed}" if observed else "its own batch size"
    text = (
        f"{ignored.trial} trained with {size}, not with {asked}: only "
        f"{problem.default} runs until another one arrives. "
    )
    times, rest = divmod(observed, asked)
    if problem.default != observed > 0 == rest:
        text += (
            f"If the script trains with {times} times what it gets, pass ${{batch_size/{times}}} "
            f"in args, and make {times * problem.default} the default. "
        )
    return f"{text}Once the script takes it: zeusrun history --forget {ignored.trial}"


def _differences(problem: Problem, trial: Trial) -> Iterator[tuple[str, str]]:
    """Yield how a finished trial differs from a trial of today, and its value of that."""
    if not trial.status.finished:
        return
    if trial.status in {CUT_SHORT, TrialStatus.PREEMPTED} and not (
        trial.epochs or trial.power_profile or trial.forgotten
    ):
        return  # it ended too early to teach anything
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    if proof.nothing and proof.learning is not None:
        other = str(trial.observed_batch_size or "its own")
        values = {Doubt.OTHER_SIZE: other, Doubt.NO_CRASH: trial.trial}
        first = next((point.epoch for point in trial.curve if not is_baseline(point)), 0)
        values[Doubt.CONTINUED] = f"epoch {first}"
        yield proof.learning.value, values.get(proof.learning, trial.status.value)
    (adapts, sync), now = split_variant(trial.variant), split_variant(problem.variant)
    if adapts != now[0]:
        yield "adapted {own} batch size in another way", adapts or "not at all"
    if sync != now[1]:
        yield "had another sync", sync or "none"
    if proof.speed is Doubt.SHARED:
        device = "GPUs" if trial.gpu_count else "CPU"
        why = "with other programs, and policy.learn_from_shared is false"
        yield f"shared {{own}} {device}", why
    if not same_hardware(problem, trial):
        watts = "" if trial.max_power_w is None else f" of {trial.max_power_w:g} W"
        device = f"{trial.gpu_count} x {trial.gpu_model}" if trial.gpu_count else f"CPU{watts}"
        ranks = f"{trial.world_size} rank{'' if trial.world_size == 1 else 's'}"
        yield "had other hardware", f"{device} with {ranks}"
    if not same_split(problem, trial):
        samples = trial.micro_batch_size or trial.global_batch_size // trial.world_size
        yield "had other micro-batches", f"{samples} samples"
    if trial.status not in CRASHED:
        epochs = ", ".join(f"epoch {each.epochs + 1}" for each in trial.interruptions)
        values = {Doubt.CHANGED: ", ".join(changed_parts(trial))}
        values |= dict.fromkeys((Doubt.RESTARTED, Doubt.UNCLEAR, Doubt.INTERRUPTED), epochs)
        ranks = "→".join(str(each.world_size) for each in trial.world_sizes)
        values |= {Doubt.SHORT: trial.status.value, Doubt.RESIZED: ranks}
        yield from ((doubt.value, values[doubt]) for doubt in proof if doubt in values)
        yield from _job_differences(problem, trial)


def _job_differences(problem: Problem, trial: Trial) -> Iterator[tuple[str, str]]:
    if not same_energy(problem, trial):
        source = trial.energy_source
        yield "had another kind of energy", source.value if source else "none"
    if (trial.metric, trial.mode) != (problem.metric, problem.mode):
        yield "had another metric", f"{trial.metric}, {trial.mode}"
    if not same_learning(problem, trial):
        rate = trial.learning_rate
        yield "had another learning rate", "none" if rate is None else f"{rate:g}"
    for name in ("target", "max_epochs", "eta_knob") if trial.curve else ():
        if getattr(trial, name) != getattr(problem, name):
            yield f"had another {name}", f"{getattr(trial, name):g}"
    if trial.curve and trial.global_batch_size not in problem.candidates:
        yield "had a batch size that is no candidate", str(trial.global_batch_size)


def _what_counts(problem: Problem, trial: Trial) -> str:
    run = read_trial(problem, trial) if trial.variant == problem.variant else None
    proof = prove(trial, learn_from_shared=problem.learn_from_shared)
    timed = proof.speed not in {Doubt.INTERRUPTED, Doubt.RESIZED}
    if run is None or (run.epochs is None and not timed):
        return "left out"
    if run.epochs is None:
        return "kept for {own} speed"
    whole = timed and run.local
    return "read again from {own} learning curve{s}" if whole else "kept for {own} epochs"

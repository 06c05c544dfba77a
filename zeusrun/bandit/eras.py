"""What has changed about a training between its runs, by their fingerprints."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.proof import THEN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zeusrun.trial import Trial

# A part is ignored if three of the last four comparisons of two runs, and half of the last twelve,
# show a change: not because somebody has edited a script of a long history three times.
_COMPARISONS, _CHANGES = 4, 3
_EARLIER = 12


class Change(NamedTuple):
    """A part of a training that is not what the last run had."""

    part: str
    since: int  # the recurrence of that run


class Eras(NamedTuple):
    """How a training differs from the runs before it."""

    changes: tuple[Change, ...] = ()  # without those of ignored parts
    ignored: frozenset[str] = frozenset()  # parts that change in nearly every run
    newly_ignored: tuple[str, ...] = ()  # those for the first time


def compare_training(now: Mapping[str, str], trials: Sequence[Trial]) -> Eras:
    """Compare the fingerprint of a training with the finished trials of its job, oldest first.

    A part that is absent from a fingerprint is unknown there, and not compared.
    """
    changes, ignored, newly = [], set(), []
    for part, value in now.items():
        # The last of a recurrence stands for it: most of its attempts train the same.
        known = {
            trial.recurrence: last_hash(trial.fingerprint[part])
            for trial in trials
            if trial.status.finished and trial.fingerprint and part in trial.fingerprint
        }
        if not known:
            continue
        values = [*known.values(), value]
        changed = [then != later for then, later in itertools.pairwise(values)]
        if _is_ignored(changed):
            ignored.add(part)
            if not any(_is_ignored(changed[:end]) for end in range(len(changed))):
                newly.append(part)
        elif changed[-1]:
            changes.append(Change(part, list(known)[-1]))
    return Eras(tuple(changes), frozenset(ignored), tuple(newly))


def _changed_parts(
    then: Mapping[str, str], now: Mapping[str, str], ignored: Collection[str]
) -> list[str]:
    return [
        part
        for part, print_ in then.items()
        if now.get(part, last := last_hash(print_)) != last and part not in ignored
    ]


def find_differences(
    trials: Sequence[Trial], now: Mapping[str, str], ignored: Collection[str] = ()
) -> list[str | None]:
    """Return what of each of a job's trials is not as today, oldest first.

    Such as ``script:5c1d… env:90ab…``; ``None`` if it was the same training, or unknown. A part
    that is absent from a fingerprint is taken to be that of the next trial that has it, else
    today's.
    """
    found: list[str | None] = []
    later = dict(now)
    for trial in reversed(trials):
        its_parts = trial.fingerprint or {}
        then = {**later, **its_parts}
        parts = [] if then == now else _changed_parts(then, now, ignored)
        found.append(" ".join(f"{part}:{last_hash(then[part])}" for part in parts) or None)
        later |= {part: print_.partition(THEN)[0] for part, print_ in its_parts.items()}
    return found[::-1]


def last_hash(print_: str) -> str:
    """Return the hash that a part ended with."""
    return print_.rpartition(THEN)[2]


def _is_ignored(changed: Sequence[bool]) -> bool:
    earlier = changed[-_EARLIER:]
    return sum(changed[-_COMPARISONS:]) >= _CHANGES and 2 * sum(earlier) >= len(earlier)


_NAMES = {
    "args": "the arguments",
    "env": "the variables in env",
    "learning": "the learning rate, per_device_max, metric or mode of the job file",
}


def name_part(part: str, script: str = "the script") -> str:
    """Return what to call a part of a training."""
    return script if part == "script" else _NAMES.get(part, part)


def describe_eras(eras: Eras, script: str) -> list[str]:
    """Describe in sentences what has changed; ``script`` is what to call the script."""
    sentences = []
    for change in eras.changes:
        sentence = f"{name_part(change.part, script)} changed since run {change.since}"
        if change.part != "learning":  # the learning rate and the metric have their own sentences
            sentence += "; the next runs will show how far earlier ones count"
        sentences.append(sentence)
    sentences += [
        f"{name_part(part, script)} changed in nearly every run; from now on zeusrun ignores this"
        for part in eras.newly_ignored
    ]
    return sentences


def continue_training(
    trial: Trial, now: Mapping[str, str], ignored: Collection[str], script: str
) -> tuple[Trial, str | None]:
    """Return a trial that is continued after a preemption, and a warning if its training changed.

    A part that changed gets its first and its last hash; one that is ``ignored`` keeps the first.
    """
    then = trial.fingerprint
    if trial.time_s is None:  # it was preempted before its training began
        return replace(trial, fingerprint=dict(now)), None
    if then is None:
        return trial, None
    changed = _changed_parts(then, now, ignored)
    mixed = {part: f"{then[part].partition(THEN)[0]}{THEN}{now[part]}" for part in changed}
    trial = replace(trial, fingerprint={**now, **then, **mixed})
    if not changed:
        return trial, None
    names = " and ".join(name_part(part, script) for part in changed)
    warning = (
        f"{names} changed while {trial.trial} was preempted; it is continued, but only its speed "
        "counts for later choices"
    )
    return replace(trial, warnings=(*trial.warnings, warning)), warning

r"""Proposes a ``metrics.pattern`` from the lines that a short run has printed.

``Epoch 1 | val acc: 87.10%`` gives ``^Epoch\s*(?P<epoch>\d+).*?\bval\s*acc:\s*(?P<val_acc>\S+)``.
A number is a metric if the words before it name one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.printed import MAX_LINE, Number, read_line, shows_evaluation
from zeusrun.metrics.propose import propose
from zeusrun.metrics.rows import number_of
from zeusrun.metrics.seen import Seen, names_an_evaluation, names_training
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.metrics.propose import Proposal
    from zeusrun.metrics.seen import SeenMetrics

_SIGNS = ",;:%)]"  # which metrics ignore after a number
# The batches so far, and a mean behind the value of one: ``[20/40] Acc 18.7 (21.9)``.
_OF_BATCH = re.compile(r"\[ *\d+/ *\d+ *\].*\d \( *[\d.e+-]+ *\)")
_MAX_SHAPES = 100


class Shape(NamedTuple):
    """A pattern, the line that it was made of, and what it proposes."""

    pattern: str
    line: str
    proposal: Proposal


def propose_pattern(
    lines: Sequence[str],
    likely: str = "",
    each_step: float = math.inf,
    monitor: tuple[str, str | None] = ("", None),
    evaluations: int = 0,
) -> Shape | None:
    """Propose a pattern for lines without colours; ``None`` if none looks like a result.

    A line looks like one if it has a metric and an epoch, or a metric of an evaluation, or an
    accuracy or the like that is printed no more often than there were ``evaluations``. Where the
    pattern matches another line, it reads what that line says. ``likely`` and ``monitor`` are as in
    ``propose``. An accuracy that is always 0 is no result, nor is a value that is the same in every
    epoch, nor what so many lines have as would be printed in ``each_step``.
    """
    shapes, seen = _find(lines, each_step, evaluations)
    found = {key: values for key, values in seen.items() if not values.each_step}
    # Of the patterns with the best metric: one with an epoch, then the one that matches least.
    merged = {(name, "stdout"): values for (name, _), values in found.items()}
    if (best := propose(merged, likely, monitor)) is None:
        return None
    usable = [shape for name, shape in found if name == best.metric]
    shape = min(usable, key=lambda each: ("<epoch>" not in each, found[best.metric, each].times))
    others = {key: values for key, values in merged.items() if key[0] != best.metric}
    others[best.metric, "stdout"] = found[best.metric, shape]
    proposal = propose(others, best.metric, (best.metric, best.mode))
    return proposal and Shape(shape, shapes[shape], proposal)


def _find(
    lines: Sequence[str], each_step: float, evaluations: int = 0
) -> tuple[dict[str, str], SeenMetrics]:
    """Return a line of each pattern, and what the metrics of each pattern look like."""
    known = [(line, read_line(line)) for line in lines if len(line) <= MAX_LINE]
    shapes: dict[str, str] = {}
    rare: Counter[str] = Counter()
    for line, numbers in known:
        names = {number.name for number in numbers if number.is_metric}
        by_epoch = any(number.name == "epoch" for number in numbers)
        evaluated = by_epoch or names_an_evaluation(dict.fromkeys(names, 0.0))
        good = not any(map(names_training, names)) and "max" in map(likely_mode, names)
        result = evaluated or (evaluations and good)
        if names and result and not _OF_BATCH.search(line):
            shape = _build(line, numbers)
            rare[shape] += not evaluated
            shapes.setdefault(shape, line)
    last = [each for each in shapes if rare[each] <= evaluations][-_MAX_SHAPES:]
    found = {
        (name, shape): Seen(
            *(looks[0], looks[-1], len(looks), min(looks), max(looks)),
            each_step=len(looks) >= each_step,
        )
        for shape in last
        for name, looks in _check(shape, known).items()
    }
    return shapes, found


def list_likely(lines: Sequence[str], count: int = 3) -> list[tuple[str, str]]:
    """Return the lines that look most like a result, the newest of each kind, with a pattern each.

    Only those with a metric: first those whose numbers change, then those of an evaluation.
    """
    kinds: dict[str, list[str]] = {}  # by pattern; the one printed last stands last
    for line in (line for line in lines if len(line) <= MAX_LINE):
        numbers = read_line(line)
        if any(number.is_metric for number in numbers):
            pattern = _build(line, numbers)
            kinds[pattern] = [*kinds.pop(pattern, []), line]

    def rank(pattern: str) -> tuple[bool, bool, int]:
        printed = kinds[pattern]
        return len({*printed}) > 1, shows_evaluation(printed[-1]), len(printed)

    best = sorted(kinds, key=rank)[-count:]
    return [(kinds[pattern][-1], pattern) for pattern in reversed(best)]


def _build(line: str, numbers: Sequence[Number]) -> str:
    """Return the pattern of a line, up to its last metric; what is between two may be anything."""
    out = ""
    for number in (number for number in numbers if number.name):
        if out:
            out += ".*?"
        elif digit := re.search(r"\d", line[: number.label]):
            begin = line[: digit.start()].rstrip()
            out = (f"^{_escape(begin)}" if begin else "") + ".*?"
        else:
            out = "^" + _escape(line[: number.label])
        label, text = line[number.label : number.start], line[number.start : number.end]
        out += (r"\b" if out[-1] == "?" and label[:1].isalnum() else "") + _escape(label)
        tail = line[number.end :].split(" ", 1)[0]
        values = r"\S+" if not tail.strip(_SIGNS) else r"[\d.eE+-]*\d"
        if number.name == "epoch":
            values = r"\d+" if text.isdigit() else r"[\d.]+"
        out += f"(?P<{number.name}>{values})"
    return out.removeprefix(".*?")


def _escape(text: str) -> str:
    """Return a pattern of a text, whatever its spaces are."""
    out = re.sub(r"(?:\\?\s)+", r"\\s*", re.escape(text))
    out = re.sub(r"\d{3,}", r"\\d+", out)  # a date or a number of a run
    return "".join(letter if letter.isprintable() else "." for letter in out)


def _check(
    shape: str, known: Sequence[tuple[str, Sequence[Number]]]
) -> Mapping[str, Sequence[float]]:
    """Return the values of the metrics; none if the pattern reads a line in another way.

    The states of a progress bar are one look at an epoch.
    """
    pattern, found = re.compile(shape), dict[str, list[tuple[object, float]]]()
    for at, (line, numbers) in enumerate(known):
        if not (match := pattern.search(line)):
            continue
        texts = {each.name: line[each.start : each.end] for each in numbers}
        for name, raw in match.groupdict().items():
            value = number_of(raw)
            if value is None or name not in texts or repr(value) != repr(float(texts[name])):
                return {}
            if name != "epoch":
                found.setdefault(name, []).append((texts.get("epoch", at), value))
    return {
        name: [value for _, value in looks]
        for name, looks in found.items()
        if _varies(name, [*dict(looks).values()])
    }


def _varies(name: str, looks: Sequence[float]) -> bool:
    """Whether the values are like those of a metric: not always the same, no accuracy of 0."""
    if len(looks) > 1:
        return len(set(looks)) > 1
    return looks[0] != 0 or likely_mode(name) != "max"

r"""Proposes a ``metrics.pattern`` from the lines that a short run has printed.

``Epoch 1 | val acc: 87.10%`` gives ``^Epoch +(?P<epoch>\d+) \| val acc: *(?P<val_acc>\S+)``.
A number is a metric if the words before it name one. Text stays as it is; between two metrics, what
follows another number may be anything.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.printed import (
    MAX_LINE,
    NUMBER,
    Number,
    read_lines,
    shows_evaluation,
)
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
_BATCHES = re.compile(r"\[ *(\d{1,6})/ *\d{1,6} *\]")
_METER = re.compile(r"\d \( *[\d.e+-]+ *\)")
_RANK = re.compile(r"\b(rank\W*)(\d+)$", re.IGNORECASE)
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
    ``propose``. An
    accuracy that is always 0 is no result, nor is a value that is the same in every epoch, nor what
    so many lines have as would be printed in ``each_step``.
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
    known = [*read_lines([line for line in lines if len(line) <= MAX_LINE])]
    shapes: dict[str, str] = {}
    batches: dict[str, list[int]] = {}
    rare: Counter[str] = Counter()
    for line, numbers in known:
        names = {number.name for number in numbers if number.is_metric}
        by_epoch = any(number.name == "epoch" for number in numbers)
        evaluated = by_epoch or names_an_evaluation(dict.fromkeys(names, 0.0))
        good = not any(map(names_training, names)) and "max" in map(likely_mode, names)
        if names and (evaluated or (evaluations and good)):
            shape = _build(line, numbers)
            rare[shape] += not evaluated
            shapes.setdefault(shape, line)
            if count := _BATCHES.search(line):
                batches.setdefault(shape, []).append(int(count[1]))
    for shape, counts in batches.items():
        steps = {after - before for before, after in itertools.pairwise(counts)}
        if steps - {1} or _METER.search(shapes[shape]):
            del shapes[shape]  # of single batches: the result comes after them
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
    kinds: dict[str, list[str]] = {}  # the one printed last stands last
    patterns: dict[str, str] = {}
    for line, numbers in read_lines([line for line in lines if len(line) <= MAX_LINE]):
        if any(number.is_metric for number in numbers):
            kind = NUMBER.sub("0", line)
            kinds[kind] = kinds.pop(kind, [])
            kinds[kind].append(line)
            patterns[kind] = _build(line, numbers)

    def rank(kind: str) -> tuple[bool, bool, int]:
        printed = kinds[kind]
        return len({*printed}) > 1, shows_evaluation(printed[-1]), len(printed)

    best = sorted(kinds, key=rank)[-count:]
    return [(kinds[kind][-1], patterns[kind]) for kind in reversed(best)]


def _build(line: str, numbers: Sequence[Number]) -> str:
    """Return the pattern of a line, up to its last metric."""
    out, done = "^", 0
    named = [number for number in numbers if number.name]
    for number in named:
        begin = max(done, number.label)
        if others := [each for each in numbers if done <= each.start < begin and each.end <= begin]:
            out += _skip(line, done, others)
            out += r"\b" if line[begin : begin + 1].isalnum() else ""
        else:
            begin = done
        for each in numbers:
            if begin <= each.start < number.start:
                out += _escape(line[begin : each.start]) + r"\S+"
                begin = each.end
        out += _escape(line[begin : number.start])
        done = number.end
        if number.name == "epoch":
            whole = line[number.start : done].isdigit()
            out += r"(?P<epoch>\d+)" if whole else r"(?P<epoch>[\d.]+)"
            if total := re.match(r" */ *\d+", line[done:]):
                out += ("/" if total[0][0] == "/" else " */") + r" *\d+"
                done += total.end()
            continue
        tail = line[done:].split(maxsplit=1)[0] if line[done : done + 1].strip() else ""
        if not tail.strip(_SIGNS):
            out, done = out + rf"(?P<{number.name}>\S+)", done + len(tail)
        elif tail[0] in ".eE+-":
            out += rf"(?P<{number.name}>[\d.eE+-]*\d)"
        else:
            out += rf"(?P<{number.name}>[^\s{_escape(tail[0])}]+)"
    out = re.sub(r"^\^(?:\.\*\?(?:\\b)?)", "", out)
    # It may be centred, as wide as the terminal is, or follow a progress bar.
    return re.sub(r"^\^(?: |\\s)[+*]?", r"^\\s*", out)


def _skip(line: str, done: int, others: Sequence[Number]) -> str:
    """Return a pattern that skips other numbers, but keeps the number of a rank.

    Where each rank prints such a line, the pattern matches the lines of one rank.
    """
    text = _escape(line[done : others[0].start])
    ranks = [_RANK.search(line[done : each.end]) for each in others]
    out = "" if ranks[0] is not None else re.sub(r"(?: |\\s)[*+]$", "", text)
    out += ".*?" if ranks[0] is None or ranks[0].start() else ""
    return out + "".join(rf"\b{_escape(rank[1])}{rank[2]}\b.*?" for rank in ranks if rank)


def _escape(text: str) -> str:
    """Return a pattern of a text before a number; numbers may be padded with spaces."""
    out = ""
    for each in re.finditer(r"\s+|\d{3,}|([^\w\s])\1{3,}|.", text):
        piece = each[0]
        if len(piece) > 2 and piece.isdecimal():  # a date or a number of a run in a name
            out += r"\d+"
        elif each[1]:  # a bar, as wide as the terminal
            out += re.escape(each[1]) + "+" if each[1].isprintable() else ".+"
        elif not piece.isspace():
            special = piece in r"\.^$*+?{}[]|()"
            out += "\\" + piece if special else piece if piece.isprintable() else "."
        elif each.end() == len(text) and text[: each.start()].endswith((":", "=", "[", "(", "/")):
            out += " *" if piece.strip(" ") == "" else r"\s*"
        elif piece == " " and each.end() < len(text):
            out += " "
        else:
            out += " +" if piece.strip(" ") == "" else r"\s+"
    return out


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

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
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.propose import NO_METRIC, propose
from zeusrun.metrics.rows import number_of
from zeusrun.metrics.seen import EVALUATIONS, Seen, names_an_evaluation, names_training
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from zeusrun.metrics.propose import Proposal
    from zeusrun.metrics.seen import SeenMetrics

# Not 57,3 and 1,234: a comma between digits is a decimal one, or separates thousands.
_NUMBER = re.compile(
    r"(?:(?<![a-zA-Z0-9_.@])(?<![a-zA-Z]-)(?<!\d,)|(?i:(?<=epoch)|(?<=epoch_)))"
    r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?!\.?\d)(?!,(?:\d{3}\b|\d+(?![\d.])))"
    r"|nan\b|inf\b)"
)
_WORD = re.compile(r"[^\W\d][\w./@-]*")
# What ends the words before a number, a unit such as "ms/step", and what begins no words.
_BREAK = re.compile(r"[|,;{\[\t:=<>]|\s[-\u2013\u2014]+\s|\.\s")
_UNIT = re.compile(r"[^\W\d]*(?:/[^\W\d]+)?")
_SHARE = re.compile(r" \(| ?= ?")
_EDGE = " '\"/%)].*"
_SIGNS = ",;:%)]"  # which metrics ignore after a number
_EPOCH = {"epoch", "ep"}
_SPLIT = re.compile(r"train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?|eval(?:uation)?")
_FILLING = {"the", "is", "of", "on", "at", "a", "was", "are", "to", "for", "in", "after", "with"}
_COUNTED = {"the", "of", "on", "at", "to", "for", "in", "after", "with"}  # "on the 10000 images"
_SETTING = re.compile(
    r"(?:^|_)(?:best|size|batch|split|ratio|interval|freq|every|seed|workers|num|eta|elapsed|took"
    r"|iter|mem|memory|gpu|params?|parameters|ms|sec|secs|seconds|speed|patience|lr|rank|data|time)"
    r"(?:_|$)"
)
# A row in a frame, such as one of a model summary.
_FRAMED = re.compile(r"\s*(?:[\u2502\u2503\u2506\u250a\u250c-\u254b\u2551-\u2570]|\|.*\|\s*$)")
_COUNT = re.compile(r"\W{0,3}(\d{1,6}) ?/ ?(\d{1,6})\b")
_EPOCH_OF = re.compile(r"\bep(?:och)?\b\W{0,3}(\d{1,6}) ?/ ?(\d{1,6})\b", re.IGNORECASE)
# The batches so far, and a mean behind the value of one: ``[20/40] Acc 18.7 (21.9)``.
_BATCHES = re.compile(r"\[ *(\d{1,6})/ *\d{1,6} *\]")
_METER = re.compile(r"\d \( *[\d.e+-]+ *\)")
_MAX_LINE = 1000
_MAX_SHAPES = 100


class _Number(NamedTuple):
    """A number of a line; its name is empty if it is neither a metric nor the epoch."""

    name: str
    label: int  # where its name begins
    start: int
    end: int
    head: str = ""  # the part of the data that a heading names; empty if the name has its own
    near: str = ""  # the last such part before it, likewise

    @property
    def is_metric(self) -> bool:
        """Whether it is a metric."""
        return self.name not in {"", "epoch"}


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
    own = {key: values for key, values in merged.items() if key[0] != best.metric}
    own[best.metric, "stdout"] = found[best.metric, shape]
    proposal = propose(own, best.metric, (best.metric, best.mode))
    return proposal and Shape(shape, shapes[shape], proposal)


def list_each_step(lines: Sequence[str], each_step: float) -> list[str]:
    """Return the metrics that so many lines have as would be printed in each step."""
    _, found = _find(lines, each_step)
    return sorted({name for (name, _), seen in found.items() if seen.each_step})


def _find(
    lines: Sequence[str], each_step: float, evaluations: int = 0
) -> tuple[dict[str, str], SeenMetrics]:
    """Return a line of each pattern, and what the metrics of each pattern look like."""
    known = [*_read([line for line in lines if len(line) <= _MAX_LINE])]
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


def find_epochs(lines: Sequence[str], shape: Shape | None) -> int | None:
    """Return how many epochs a script trains, as it prints: ``Epoch 3/60``, or ``[3/60]``.

    The second form counts only at the beginning of the line that is read for the metric. Where the
    first epoch is 0, the number may be that of the last one: ``Epoch 0/99``. It is taken for that
    unless it is a round one, because a limit that is one too low would cost the last epoch.
    """
    own = [] if shape is None else [_COUNT.match(shape.line)]
    found = [match for match in (*own, *map(_EPOCH_OF.search, lines)) if match]
    counts = [(int(match[1]), int(match[2])) for match in found]
    totals = {total for number, total in counts if number <= total}
    if len(totals) != 1 or totals == {0}:
        return None
    total, numbers = totals.pop(), {number for number, _ in counts}
    return total + (0 in numbers and (total in numbers or total % 5 != 0))


def read_line(line: str) -> list[_Number]:
    """Return the numbers of a line, and the names of those that are metrics or the epoch."""
    numbers: list[_Number] = []
    first = _WORD.match(line)
    head = near = _part(first[0]) if first else ""
    begin = 0  # where the words of the next name begin
    for match in _NUMBER.finditer(line):
        start, end = match.span()
        *before, (label, text) = _segments(line, begin, start)
        words, own = _WORD.findall(text), _part(text)
        if headings := [(at, part) for at, each in before if (part := _part(each))]:
            at, head = headings[-1]
            near, label = head, min(label, at)
        over = line[start - 1 : start] == "/"  # the second number of 3/90
        counts = over or line[end : end + 1] == "/" or (words and words[-1].lower() in _COUNTED)
        name = _name(words)
        if words and words[-1].lower().rstrip("_") in _EPOCH:
            name, counts, head = "epoch", False, own or head
        elif counts or not _is_metric(name, line, start, end):
            name, head = "", own or head
        elif head and own:
            head = own
        near = own or near
        parts = () if own else (head, near)
        numbers.append(_Number(name, label, start, end, *parts))
        # The words before a count go on: "Accuracy: 98/100 (98%)", "score: 98/100 = 98%".
        if not (counts and words) or (over and not _SHARE.match(line, end)):
            unit = _UNIT.match(line, end)
            begin = unit.end() if unit else end
    if _FRAMED.match(line) and all(number.name != "epoch" for number in numbers):
        return [number._replace(name="") for number in numbers]
    return _unique(numbers)


def has_metric(line: str) -> bool:
    """Whether a line looks like one with a metric."""
    return any(number.is_metric for number in read_line(line[:_MAX_LINE]))


def shows_evaluation(line: str) -> bool:
    """Whether a line looks like one with a metric of an evaluation."""
    names = [number.name for number in read_line(line[:_MAX_LINE])]
    return names_an_evaluation(dict.fromkeys(names, 0.0))


def list_likely(lines: Sequence[str], count: int = 3) -> list[tuple[str, str]]:
    """Return the lines that look most like a result, the newest of each kind, with a pattern each.

    Only those with a metric: first those whose numbers change, then those of an evaluation.
    """
    kinds: dict[str, list[str]] = {}  # the one printed last stands last
    patterns: dict[str, str] = {}
    for line, numbers in _read([line for line in lines if len(line) <= _MAX_LINE]):
        if any(number.is_metric for number in numbers):
            kind = _NUMBER.sub("0", line)
            kinds[kind] = kinds.pop(kind, [])
            kinds[kind].append(line)
            patterns[kind] = _build(line, numbers)

    def rank(kind: str) -> tuple[bool, bool, int]:
        printed = kinds[kind]
        return len({*printed}) > 1, shows_evaluation(printed[-1]), len(printed)

    best = sorted(kinds, key=rank)[-count:]
    return [(kinds[kind][-1], patterns[kind]) for kind in reversed(best)]


def _segments(line: str, begin: int, end: int) -> list[tuple[int, str]]:
    """Return the pieces before a number and where they begin; the last one has its words."""
    text = _NUMBER.sub(lambda match: "/" * len(match[0]), line[begin:end])
    found, at = [], 0
    for each in _BREAK.finditer(text):
        found.append((begin + at, text[at : each.start()]))
        at = each.end()
    found.append((begin + at, text[at:]))
    while len(found) > 1 and not _WORD.search(found[-1][1]):
        found.pop()
    return [(at + len(each) - len(each.lstrip(_EDGE)), each) for at, each in found]


def _part(text: str) -> str:
    words = re.findall(r"[a-z]+", text.lower())
    return next((word for word in words if _SPLIT.fullmatch(word)), "")


def _name(words: list[str]) -> str:
    kept = [word for word in words if word.lower() not in _FILLING][-4:]
    return re.sub(r"[\W_]+", "_", "_".join(kept).lower().replace("@", "")).strip("_")


def _is_metric(name: str, line: str, start: int, end: int) -> bool:
    if not name.isidentifier() or NO_METRIC.search(name) or _SETTING.search(name):
        return False
    if re.match(r"[^\W_]|[:\-/.]\d", line[end:]):  # a unit, a time, a date
        return False
    return likely_mode(name) is not None or not re.fullmatch(r"[-+]?\d+", line[start:end])


def _unique(numbers: list[_Number]) -> list[_Number]:
    """Put the part of the data before names that lack it; what is still there twice loses it."""
    named = [
        each._replace(name=f"{each.head}_{each.name}") if each.head and each.is_metric else each
        for each in numbers
    ]
    names = [each.name for each in named]
    taken = {""}
    for at, each in enumerate(named):
        name = each.name
        if each.near and not each.head and names.count(name) > 1 and each.is_metric:
            name = f"{each.near}_{name}"
        named[at] = each._replace(name="" if name in taken else name)
        taken.add(name)
    return named


def _read(lines: Sequence[str]) -> Iterator[tuple[str, list[_Number]]]:
    """Yield the lines and their numbers; a table has its names in a line that begins with epoch."""
    header: list[str] = []
    for line in lines:
        cells = [*re.finditer(r"[^\s|\u2502\u2503]+", line)]
        if len(cells) > 1 and cells[0][0].lower() in _EPOCH and not _NUMBER.search(line):
            header = ["epoch", *(_name([cell[0]]) for cell in cells[1:])]
        if not header or len(cells) != len(header) or not cells[0][0].isdigit():
            yield line, read_line(line)
            continue
        numbers = []
        for name, cell in zip(header, cells, strict=True):
            start, end = cell.span()
            good = name == "epoch" or _is_metric(name, line, start, end)
            good = good and number_of(cell[0]) is not None
            numbers.append(_Number(name if good else "", 0, start, end))
        yield line, _unique(numbers)


def _build(line: str, numbers: Sequence[_Number]) -> str:
    """Return the pattern of a line, up to its last metric."""
    out, done = "^", 0
    named = [number for number in numbers if number.name]
    for number in named:
        begin = max(done, number.label)
        if others := [each for each in numbers if done <= each.start < begin and each.end <= begin]:
            text = _escape(line[done : others[0].start])
            edge = r"\b" if line[begin : begin + 1].isalnum() else ""
            out += re.sub(r"(?: |\\s)[*+]$", "", text) + ".*?" + edge
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
    shape: str, known: Sequence[tuple[str, Sequence[_Number]]]
) -> Mapping[str, Sequence[float]]:
    """Return the values of the metrics; none if the pattern reads a line in another way.

    The states of a progress bar are one look at an epoch.
    """
    pattern, found = re.compile(shape), dict[str, list[tuple[object, float]]]()
    for at, (line, numbers) in enumerate(known):
        if not (match := pattern.search(line)):
            continue
        own = {each.name: line[each.start : each.end] for each in numbers}
        for name, raw in match.groupdict().items():
            value = number_of(raw)
            if value is None or name not in own or repr(value) != repr(float(own[name])):
                return {}
            if name != "epoch":
                found.setdefault(name, []).append((own.get("epoch", at), value))
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


def find_agreeing(printed: Sequence[str], metric: str, value: float) -> str | None:
    """Return the last printed line with a metric of such a name and value; ``None`` without one.

    A line of the same data (validation, test) goes before one of other data.
    """
    names = set(re.findall(r"[a-z]+", metric.lower()))
    own, part = ({word[:3] for word in each} for each in (names - EVALUATIONS, names & EVALUATIONS))
    found = None
    for line in reversed(printed):
        for number in read_line(line[:1000]):
            text = line[number.start : number.end]
            words = {word[:3] for word in re.findall(r"[a-z]+", number.name)}
            if "." not in text or not own or not own <= words or "tra" in words - own:
                continue
            scale = 100 if line[number.end : number.end + 1] == "%" else 1
            if _rounds_to(value * scale, text) or (scale == 1 and _rounds_to(value * 100, text)):
                if not part or part & words:
                    return line
                found = found or line
    return found


def _rounds_to(value: float, text: str) -> bool:
    """Whether a value is a printed number, within one of its last digit."""
    try:
        shown = Decimal(text)
    except ArithmeticError:
        return False
    exponent = shown.as_tuple().exponent
    digits = len(shown.as_tuple().digits)
    return (
        isinstance(exponent, int)
        and digits > 1
        and abs(Decimal(repr(value)) - shown) <= Decimal(1).scaleb(exponent)
    )

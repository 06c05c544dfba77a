"""What the numbers of a printed line are: metrics, the epoch, or neither."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.metrics.rows import number_of
from zeusrun.metrics.seen import EVALUATIONS, names_an_evaluation, names_training
from zeusrun.target import likely_mode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What libraries report and print beside metrics.
NO_METRIC = re.compile(
    r"(runtime|per_sec|_time|^time|samples|steps?$|^epoch|learning_rate|^lr\b|lr-|grad_norm|flos)"
)
# Not 57,3 and 1,234: a comma between digits is a decimal one, or separates thousands.
NUMBER = re.compile(
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
MAX_LINE = 1000


class Number(NamedTuple):
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


def read_line(line: str) -> list[Number]:
    """Return the numbers of a line, and the names of those that are metrics or the epoch."""
    numbers: list[Number] = []
    first = _WORD.match(line)
    head = near = _part(first[0]) if first else ""
    begin = 0  # where the words of the next name begin
    for match in NUMBER.finditer(line):
        start, end = match.span()
        *before, (label, text) = _segments(line, begin, start)
        words, named = _WORD.findall(text), _part(text)
        if headings := [(at, part) for at, each in before if (part := _part(each))]:
            at, head = headings[-1]
            near, label = head, min(label, at)
        over = line[start - 1 : start] == "/"  # the second number of 3/90
        counts = over or line[end : end + 1] == "/" or (words and words[-1].lower() in _COUNTED)
        name = _name(words)
        if words and words[-1].lower().rstrip("_") in _EPOCH:
            name, counts, head = "epoch", False, named or head
        elif counts or not _is_metric(name, line, start, end):
            name, head = "", named or head
        elif head and named:
            head = named
        near = named or near
        parts = () if named else (head, near)
        numbers.append(Number(name, label, start, end, *parts))
        # The words before a count go on: "Accuracy: 98/100 (98%)", "score: 98/100 = 98%".
        if not (counts and words) or (over and not _SHARE.match(line, end)):
            unit = _UNIT.match(line, end)
            begin = unit.end() if unit else end
    if _FRAMED.match(line) and all(number.name != "epoch" for number in numbers):
        return [number._replace(name="") for number in numbers]
    return _unique(numbers)


def has_metric(line: str) -> bool:
    """Whether a line looks like one with a metric."""
    return any(number.is_metric for number in read_line(line[:MAX_LINE]))


def shows_evaluation(line: str) -> bool:
    """Whether a line looks like one with a metric of an evaluation."""
    names = [number.name for number in read_line(line[:MAX_LINE])]
    return names_an_evaluation(dict.fromkeys(names, 0.0))


def _segments(line: str, begin: int, end: int) -> list[tuple[int, str]]:
    """Return the pieces before a number and where they begin; the last one has its words."""
    text = NUMBER.sub(lambda match: "/" * len(match[0]), line[begin:end])
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


def _unique(numbers: list[Number]) -> list[Number]:
    """Put the part of the data before names that lack it; what is still there twice loses it.

    Behind ``val loss``, a name alone is of the validation, too, if the line names no other part.
    Behind ``train loss`` it may be of either.
    """
    named = [
        each._replace(name=f"{each.head}_{each.name}") if each.head and each.is_metric else each
        for each in numbers
    ]
    names = [each.name for each in named]
    alone = not any(names_training(name) for name in names)
    taken = {""}
    for at, each in enumerate(named):
        name = each.name
        unclear = names.count(name) > 1 or (alone and each.near in EVALUATIONS)
        if each.near and not each.head and unclear and each.is_metric:
            name = f"{each.near}_{name}"
        named[at] = each._replace(name="" if name in taken else name)
        taken.add(name)
    return named


def read_lines(lines: Sequence[str]) -> Iterator[tuple[str, list[Number]]]:
    """Yield the lines and their numbers; a table has its names in a line that begins with epoch."""
    header: list[str] = []
    for line in lines:
        cells = [*re.finditer(r"[^\s|\u2502\u2503]+", line)]
        if len(cells) > 1 and cells[0][0].lower() in _EPOCH and not NUMBER.search(line):
            header = ["epoch", *(_name([cell[0]]) for cell in cells[1:])]
        if not header or len(cells) != len(header) or not cells[0][0].isdigit():
            yield line, read_line(line)
            continue
        numbers = []
        for name, cell in zip(header, cells, strict=True):
            start, end = cell.span()
            good = name == "epoch" or _is_metric(name, line, start, end)
            good = good and number_of(cell[0]) is not None
            numbers.append(Number(name if good else "", 0, start, end))
        yield line, _unique(numbers)

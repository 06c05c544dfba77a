"""What the numbers of a printed line are: metrics, the epoch, or neither."""

from __future__ import annotations

import re
from typing import NamedTuple

from zeusrun.metrics.seen import EVALUATIONS, names_an_evaluation
from zeusrun.target import likely_mode

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
_PARTS = EVALUATIONS | {"train", "training"}
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

    @property
    def is_metric(self) -> bool:
        """Whether it is a metric."""
        return self.name not in {"", "epoch"}


def read_line(line: str) -> list[Number]:
    """Return the numbers of a line, and the names of those that are metrics or the epoch.

    Behind a word such as ``val``, a name alone is of the validation, too. Behind ``train`` it may
    be of either, unless the line begins so. Of two equal names, the first one counts.
    """
    numbers: list[Number] = []
    first = _WORD.search(line)
    part = head = _part(first[0]) if first else ""
    begin, taken = 0, {""}  # where the words of the next name begin
    for match in NUMBER.finditer(line):
        start, end = match.span()
        *before, (label, text) = _segments(line, begin, start)
        words = _WORD.findall(text)
        if said := _part(line[begin:start]):
            part = said if said in EVALUATIONS else head
        over = line[start - 1 : start] == "/"  # the second number of 3/90
        counts = over or line[end : end + 1] == "/" or (words and words[-1].lower() in _COUNTED)
        name = _name(words)
        if words and words[-1].lower().rstrip("_") in _EPOCH:
            name, counts = "epoch", False
        elif counts or not _is_metric(name, line, start, end):
            name = ""
        elif part and not _part(text):
            name = f"{part}_{name}"
            label = next((at for at, each in reversed(before) if _part(each)), label)
        numbers.append(Number("" if name in taken else name, label, start, end))
        taken.add(name)
        # The words before a count go on: "Accuracy: 98/100 (98%)", "score: 98/100 = 98%".
        if not (counts and words) or (over and not _SHARE.match(line, end)):
            unit = _UNIT.match(line, end)
            begin = unit.end() if unit else end
    if _FRAMED.match(line) and "epoch" not in taken:
        return []
    return numbers


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
    """Return the last word that names a part of the data."""
    words = re.findall(r"[a-z]+", text.lower())
    return next((word for word in reversed(words) if word in _PARTS), "")


def _name(words: list[str]) -> str:
    kept = [word for word in words if word.lower() not in _FILLING][-4:]
    return re.sub(r"[\W_]+", "_", "_".join(kept).lower().replace("@", "")).strip("_")


def _is_metric(name: str, line: str, start: int, end: int) -> bool:
    if not name.isidentifier() or NO_METRIC.search(name) or _SETTING.search(name):
        return False
    if re.match(r"[^\W_]|[:\-/.]\d", line[end:]):  # a unit, a time, a date
        return False
    return likely_mode(name) is not None or not re.fullmatch(r"[-+]?\d+", line[start:end])

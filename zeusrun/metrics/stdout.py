"""The lines that a training prints, read with regular expressions."""

from __future__ import annotations

import contextlib
import re
import signal
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.jobfile.metrics_section import COUNTERS, READY
from zeusrun.metrics.base import SidecarReader
from zeusrun.metrics.printed import has_metric, shows_evaluation
from zeusrun.metrics.rows import Rows, RowSource
from zeusrun.plain_text import type_over
from zeusrun.sidecar.events import SIDECAR_NAME, Ended
from zeusrun.sidecar.orders import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from zeusrun.metrics.rows import SourceContext

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_DIGIT = re.compile(r"\d")
_DIGITS = frozenset("0123456789.")
# What follows or precedes a number in percent; ``\s`` is also a no-break space.
_PERCENT = re.compile(r"\s*(?:[%\uff05]|(?:percent|pct)\b)")
_OF_PERCENT = re.compile(r"(?:[(\[]|[^\W\d][ _]?)[%\uff05][)\]]?\s*[:=|]?\s*$")
# What is left of a number that a pattern has cut, such as 0,91 or 1.5e-05 or -3; 1,0.5 are two.
_REST = re.compile(r"\d|\.\d|,(?:\d{3}\b|\d+(?![\d.]))|[eE][-+]?\d")
_HEAD = re.compile(r"\d[.,]?$|(?:^|[\s=:(\[])[-\u2212]$")
_MAX_KEPT, _SHOWN_LETTERS = 50, 120
_RESULTS = 3  # so many results that no pattern matches are no accident
_MAX_CHUNKS = 4  # 1 MB at a time, so that supervision never waits long
_MAX_LINE = 4096  # characters at each end; docs/metrics.md names it
_MAX_S = 1.0  # of CPU for a chunk of 256 KB, which takes about 0.02 s


def split_states(line: bytes) -> list[str]:
    """Return a printed line without colours; each state of a progress bar is one of its own."""
    text = line.decode(errors="replace")
    states = (_COLOUR.sub("", text) if "\x1b" in text else text).split("\r")
    return [type_over(state) for state in states] if "\b" in text else states


class _SlowPatternError(Exception):
    """A pattern backtracks for too long."""


class PrintedLines(RowSource):
    """Reads the log of rank 0.

    Without ``metrics.pattern``, it looks for all ready patterns.
    """

    def __init__(self, run: SourceContext) -> None:
        super().__init__(Rows(run, "group"))
        self._run = run
        self._quiet = run.section.source == "auto"
        self._matched = self._has_raised = False
        self._unmatched = deque[str](maxlen=_MAX_KEPT)  # lines with numbers
        self._results = 0  # of evaluations, in lines that no pattern matched
        self._tried = ""  # the pattern that is being matched
        texts = (READY.get(name, (name,)) for name in run.section.pattern or READY)
        self._patterns = [re.compile(text) for each in texts for text in each]
        self._tail = LineTail(run.log)
        self._tail.skip_backlog(1)  # of a continued run: only new lines count

    @property
    def warnings(self) -> Sequence[str]:
        """What could not be read, each once; nothing with ``source: auto``."""
        return () if self._quiet else self._rows.warnings

    def _collect(self, *, final: bool) -> bool:
        if not self._patterns:
            return True
        chunks, tail = 0, self._tail
        while (chunks < _MAX_CHUNKS or final) and (lines := tail.read_lines(final=final)):
            chunks += 1
            try:
                with _limited_time():
                    past = sum(map(len, lines)) + len(lines)
                    ends = accumulate((len(line) + 1 for line in lines), initial=-past)
                    for line, end in zip(lines, [*ends][1:], strict=True):
                        self._take(line, tail.modified_s or 0.0, tail.position + end)
            except _SlowPatternError:
                self._give_up()
                return True
        lacks = self._results == _RESULTS or (final and self._has_trained())
        if lacks and not self._matched:
            self._results += 1  # said once
            newest = dict.fromkeys(each.strip() for each in reversed(self._unmatched))
            likely = sorted(newest, key=has_metric, reverse=True)[:2]
            shown = " or ".join(repr(each[:_SHOWN_LETTERS]) for each in likely)
            should = "" if final else " so far"
            should += f"; should it match {shown}?" if shown else ""
            self._rows.warn("lines", f"no line of rank 0 has matched metrics.pattern{should}")
        return True  # the log is always there

    def _has_trained(self) -> bool:
        """Whether the log should have contained a result, at its end."""
        trained = self._run.count is not None and any(map(has_metric, self._unmatched))
        return trained or _has_ended_well(self._run)

    def _give_up(self) -> None:
        """Read no more lines: supervision must not wait."""
        self._patterns, self._quiet = [], False
        self._rows.warn(
            "slow",
            f"the pattern {self._tried[:200]!r} took more than {_MAX_S:g} s for a line of rank 0, "
            "so no more lines are read in this run; simplify it, without repeats in repeats such "
            "as (a+)+",
        )

    def _take(self, line: bytes, written_s: float, at: int) -> None:
        if MISSING in line:  # the disk was full: a number may be cut
            return
        for whole in split_states(line):
            part, row, last = whole[:_MAX_LINE], dict[str, str](), ""
            if part != whole:
                _, _, last = whole[-_MAX_LINE:].partition(" ")  # no part of a number
                self._rows.warn(
                    "long",
                    f"a line of rank 0 has {len(whole):,} characters; only the first and the last "
                    f"{_MAX_LINE:,} of a line are searched",
                )
            for pattern in self._patterns:
                self._tried = pattern.pattern
                if match := pattern.search(part) or (pattern.search(last) if last else None):
                    row |= self._read(match)
            if row:
                self._matched = True
                self._rows.take(row, written_s, log_bytes=at)
            elif part.startswith("Traceback (most recent call last)"):
                self._has_raised = True
            elif not (self._matched or self._has_raised) and _DIGIT.search(part):
                self._unmatched.append(part)
                self._results += self._results < _RESULTS and shows_evaluation(part)

    def _read(self, match: re.Match[str]) -> dict[str, str]:
        """Return the named groups of a match: percent with their sign, no part of a number."""
        found = {}
        for name, raw in match.groupdict().items():
            if not raw:
                continue
            if _is_cut(match, name):
                line = match.string.strip()[:_SHOWN_LETTERS]
                self._rows.warn(
                    f"cut {name}",
                    f"metrics.pattern takes {raw!r}, a part of a number, for {name} from {line!r}; "
                    "such values do not count. Let the group take the whole number, such as "
                    f"(?P<{name}>\\S+); a decimal comma cannot be read",
                )
                continue
            text, (start, end) = match.string, match.span(name)
            before = text[max(0, start - 8) : start]
            percent = _PERCENT.match(text, end) or _OF_PERCENT.search(before)
            found[name] = f"{raw}%" if percent and raw[-1] != "%" else raw
        return found


def _is_cut(match: re.Match[str], name: str) -> bool:
    """Whether a group is a part of a number, and the pattern does not name what stands between."""
    text, (start, end), raw = match.string, match.span(name), match[name]
    cuts = []
    if raw[0] in _DIGITS and _HEAD.search(text[max(0, start - 3) : start]):
        cuts.append(start - 1)
    if raw[-1] in _DIGITS and _REST.match(text, end):
        cuts.append(end)
    for at in cuts:
        mark = text[at]
        between = mark == "," and "." in raw  # two numbers
        missing = at == end and (mark.isdigit() if "." in raw else mark == "." and name in COUNTERS)
        if not between and not missing:  # would another character do?
            other = match.re.search(f"{text[:at]}\0{text[at + 1 :]}")
            if other is not None and other.span(name) == (start, end):
                return True
    return False


def _has_ended_well(run: SourceContext) -> bool:
    """Whether the script of rank 0 has come to its end; true if unknown."""
    events = SidecarReader(run.run_dir / SIDECAR_NAME).read()
    ends = [each.code for each in events if isinstance(each, Ended) and each.rank == 0]
    return not events or 0 in ends


@contextlib.contextmanager
def _limited_time() -> Iterator[None]:
    """Raise ``_SlowPatternError`` in the block after ``_MAX_S``, also while a pattern is tried.

    The module ``re`` runs signal handlers while it searches; they run in the main thread.
    """

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _SlowPatternError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, _MAX_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


open_source = PrintedLines

"""Makes text from training scripts safe to show: it cannot control a terminal or reorder text.

Such text is in exception messages, names of metrics and lines of logs.
"""

from __future__ import annotations

import re

# Whole escape sequences of ECMA-48: CSI, then OSC and other strings up to their end; and the
# carriage return of a Windows line end.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\r(?=\n)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_BACKSPACES = re.compile("(\b+)")
_RESET = "\x1b[0m"
_LINE = "\t\n"
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
# Marks, embeddings, overrides and isolates of bidirectional text; line separators.
_BIDI = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_HARMFUL = re.compile(f"[{_CONTROL}{_BIDI}]")
_ANY_CONTROL = re.compile(f"[{_LINE}{_CONTROL}]")


def plain_text(text: str) -> str:
    r"""Return text that a terminal only prints; tabs and newlines stay.

    Escape sequences are removed. Other control characters, and those that change the direction of
    writing, appear as ``\x07`` or ``\u202e``.
    """
    return _HARMFUL.sub(_spelt, _SEQUENCE.sub("", text)) if _HARMFUL.search(text) else text


def type_over(text: str) -> str:
    """Return what a terminal shows of a line whose backspaces let it write over itself."""
    if "\b" not in text:
        return text
    shown, at = list[str](), 0
    for part in _BACKSPACES.split(text):
        if part.startswith("\b"):
            at = max(0, at - len(part))
        else:
            shown[at : at + len(part)] = part
            at += len(part)
    return "".join(shown)


def storable_text(text: str) -> str:
    """Return text without lone surrogates: names of metrics and processes may hold any bytes."""
    return text.encode("utf-8", "replace").decode()


def plain_log_line(line: str) -> str:
    """Return a line of a log as ``plain_text`` does, but keep its colours."""
    if not _HARMFUL.search(line):
        return line
    texts, colours = _COLOUR.split(line), _COLOUR.findall(line)
    parts = [plain_text(texts[0])]
    for colour, text in zip(colours, texts[1:], strict=True):
        parts += [colour, plain_text(text)]
    return "".join(parts) + _RESET * bool(colours)  # so that the next line has no colour


def plain_json(document: str) -> str:
    """Return a JSON document with the same values, in which harmful characters are escaped."""
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def has_control_character(text: str) -> bool:
    """Whether text contains a newline or another control character."""
    return _ANY_CONTROL.search(text) is not None


def _spelt(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()

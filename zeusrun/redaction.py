"""Removes the values of secrets from text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = "***"
"""What replaces a secret."""

_LEAST = 6  # characters; shorter values would match all over a log


@dataclass(frozen=True)
class Mask:
    """Replaces its pieces, longest first, by ``***``; without pieces it is false."""

    pieces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to hide."""
        return bool(self.pieces)

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        for piece in self.pieces:
            if piece in text:
                text = text.replace(piece, MASK)
        return text

    def cut_text(self, text: str) -> str:
        """Return a text that was cut off, without secrets and without the first part of one."""
        text = self.text(text)
        for piece in self.pieces:
            for length in range(min(len(piece), len(text)), _LEAST - 1, -1):
                if text.endswith(piece[:length]):
                    return text[:-length] + MASK
        return text


def mask_values(values: Iterable[str]) -> Mask:
    """Return a mask of secrets, of their lines, and of both as ``repr``, JSON and URLs write them.

    It ignores values and lines of fewer than 6 characters.
    """
    pieces: set[str] = set()
    for value in values:
        for plain in (value, *value.splitlines()):
            quoted = [repr(plain)[1:-1], json.dumps(plain)[1:-1], unquote(plain)]
            quoted += (quote(plain, safe, errors="replace") for safe in ("", "/"))
            pieces.update(form.strip() for form in (plain, *quoted))
    known = (piece for piece in pieces if len(piece) >= _LEAST)
    return Mask(tuple(sorted(known, key=lambda piece: (-len(piece), piece))))


# Up to the last "@": people do not escape those of a password.
_IN_URL = re.compile(r"(://[^:@/\s]*):\S*@")
_IN_QUERY = re.compile(r"([?&](?:\w*password|passwd|pwd|token)=)[^&\s]*", re.IGNORECASE)


def hide_password(url: str) -> str:
    """Return a URL, or a text with one, without its password."""
    return _IN_QUERY.sub(rf"\1{MASK}", _IN_URL.sub(rf"\1:{MASK}@", url))

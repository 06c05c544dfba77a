"""Keeps secrets out of what Python prints in a rank.

What C libraries and other processes write goes to the rank's log as it is, and so does a value that
is written in several pieces.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.masking import Mask


class _MaskedText(io.TextIOWrapper):
    """A text stream that writes ``***`` for secrets."""

    def __init__(self, stream: io.TextIOWrapper, mask: Mask) -> None:
        encoding, errors = stream.encoding, stream.errors
        super().__init__(
            stream.detach(), encoding=encoding, errors=errors, newline="\n", write_through=True
        )
        self.mask = mask

    def write(self, text: str) -> int:
        super().write(self.mask.text(text))
        return len(text)


def mask_output(mask: Mask) -> None:
    """Put streams that mask in the place of ``sys.stdout`` and ``sys.stderr``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            masked = _MaskedText(stream, mask)
            setattr(sys, name, masked)
            setattr(sys, f"__{name}__", masked)

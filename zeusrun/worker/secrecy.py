"""Keeps secrets out of what Python prints in a rank.

What C libraries and other processes write goes to the rank's log as it is; the launcher masks that
when the run has ended.
"""

from __future__ import annotations

import atexit
import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zeusrun.redaction import Mask


class _MaskedText(io.TextIOWrapper):
    """A text stream that writes ``***`` for secrets, also for one that comes in pieces.

    The end of a text is held back while it could be the beginning of a secret.
    """

    def __init__(self, stream: io.TextIOWrapper, mask: Mask) -> None:
        encoding, errors = stream.encoding, stream.errors
        super().__init__(
            stream.detach(), encoding=encoding, errors=errors, newline="\n", write_through=True
        )
        self.mask = mask
        self._held = ""
        atexit.register(self.release)

    def write(self, text: str) -> int:
        known = self.mask.text(self._held + text)
        start = self.mask.begun(known)
        self._held = known[start:]
        super().write(known[:start])
        return len(text)

    def release(self) -> None:
        """Write what is held back."""
        held, self._held = self._held, ""
        super().write(held)


def mask_output(mask: Mask) -> None:
    """Put streams that mask in the place of ``sys.stdout`` and ``sys.stderr``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            masked = _MaskedText(stream, mask)
            setattr(sys, name, masked)
            setattr(sys, f"__{name}__", masked)

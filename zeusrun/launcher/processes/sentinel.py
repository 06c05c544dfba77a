"""A process that does nothing but end when its scheduler signals it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

_SIGNALLED = frozenset(128 + n for n in (signal.SIGTERM, signal.SIGKILL))
_END_S = 5.0


class Sentinel:
    """A command, such as srun, that runs ``cat`` until this process closes its input or dies."""

    def __init__(self, words: Sequence[str]) -> None:
        """Start it. If that fails, it never hears anything."""
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                [*words, "cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def was_signalled(self) -> bool:
        """Whether SIGTERM or SIGKILL has ended it; ``srun`` exits with 128 and the signal."""
        return self._process is not None and self._process.poll() in _SIGNALLED

    def end(self) -> None:
        """End it, and wait for that."""
        if self._process is None:
            return
        cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

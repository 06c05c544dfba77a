"""What a running trial tells its user, and which of it is recorded."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from zeusrun.launcher.events import Noted, Printed, Warned
from zeusrun.launcher.rundir.logs import log_tails, read_text_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.rundir.layout import RunPaths

_MAX_BACKLOG_BYTES = 256 << 10  # about 5,000 lines, a third of a second to print


class Messages:
    """Shows notes and warnings; keeps the warnings, which are recorded with the trial."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.warnings: list[str] = []
        self._told: set[str] = set()

    def note(self, text: str) -> None:
        """Show a sentence to read."""
        self.emit(Noted(text))

    def warn(self, text: str) -> None:
        """Show a sentence that a user should act on, and keep it."""
        self.warnings.append(text)
        self.emit(Warned(text))

    def warn_once(self, kind: str, text: str) -> None:
        """Warn, unless something of this kind was warned of before."""
        if kind not in self._told:
            self._told.add(kind)
            self.warn(text)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """If a file of the run or a source cannot be read, warn once and continue without it."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            where = error.filename or name
            self.warn_once(str(where), f"{where} cannot be read: {why}; zeusrun tries again")


class RankLogs:
    """Shows what the ranks print."""

    def __init__(self, paths: RunPaths, ranks: Iterable[int], messages: Messages) -> None:
        self._paths, self._messages = paths, messages
        self._tails = log_tails(paths, ranks)

    def show(self, *, final: bool = False) -> None:
        """Show what is new, but never so much that supervision has to wait."""
        for rank, tail in self._tails.items():
            where = self._paths.rank_log(rank)
            with self._messages.reading(str(where)):
                if skipped := tail.skip_backlog(_MAX_BACKLOG_BYTES):
                    self._messages.note(
                        f"{skipped / 1e6:.1f} MB of rank {rank} are not shown; they are in {where}"
                    )
                while lines := read_text_lines(tail, final=final):
                    self._messages.emit(Printed(rank, tuple(lines)))
                    if not final:
                        break

"""The file that ``zeusrun init`` writes."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.jobfile.guess.draft import write_draft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.guess.guess import Guess


class DraftFile:
    """A job file that ``init`` has written."""

    def __init__(self, path: Path, words: Sequence[str], guess: Guess) -> None:
        self.path, self.guess = path, guess
        self._words = words
        self._text = ""

    @property
    def name(self) -> str:
        """The name of the job, from that of the file."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.path.stem).lstrip("._-")[:64] or "job"

    def write(self, objective: tuple[str, str, float, str] | None = None) -> str:
        """Return the text of the file."""
        workdir = os.path.relpath(Path.cwd(), self.path.parent)
        return write_draft(
            self.guess,
            name=self.name,
            words=self._words,
            file=str(self.path),
            workdir=workdir,
            objective=objective,
        )

    def create(self) -> None:
        """Write the file; raise ``UsageError`` if there is one, or it cannot be written."""
        self._text = self.write()
        try:
            with self.path.open("x", encoding="utf-8") as file:
                file.write(self._text)
        except FileExistsError as error:
            raise UsageError(
                f"{self.path} exists, and init overwrites nothing; name another file with -o"
            ) from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror}") from error

    def improve(self, guess: Guess, objective: tuple[str, str, float, str] | None) -> bool:
        """Write it again with more knowledge, unless somebody has changed it meanwhile."""
        if self.path.read_text(encoding="utf-8") != self._text:
            return False
        self.guess = guess
        self._text = self.write(objective)
        self.path.write_text(self._text, encoding="utf-8")
        return True

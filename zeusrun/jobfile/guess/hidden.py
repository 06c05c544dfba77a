"""Finds the secrets of a command; its job file reads each from a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.jobfile.secrets import find_secrets, make_file, mask_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.guess.command import Launched


@dataclass(frozen=True)
class Hidden:
    """An argument or a variable that must not be written into the job file."""

    place: int | str  # the index of the argument, or the name of the variable
    text: str  # as in a job file: ``$$`` for ``$``
    name: str  # the option or the variable, for people
    whole: bool  # whether the text is more than the value of an option or a variable
    file: str  # from which the job file reads it

    @property
    def sentence(self) -> str:
        """What the user has to do."""
        what = "the whole argument" if self.whole else "its value"
        if Path(self.file).expanduser().exists():
            return (
                f"{self.name} is secret, so the job file reads {what} from {self.file}. That file "
                "exists already; if it contains another secret, name another file in the job file"
            )
        return (
            f"{self.name} is secret, so the job file reads {what} from {self.file}; make that file "
            f"with `{make_file(self.file)}`: paste {what}, then press Enter and Ctrl-D"
        )


def split_options(words: Sequence[str]) -> tuple[str, ...]:
    """Return arguments with ``--option=SECRET`` as two words, so that the second can be a file."""
    secrets, found = find_secrets(words), list[str]()
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        splits = place in secrets and word.startswith("-") and equals and value[:1] != "-"
        found += [option, value] if splits else [word]
    return tuple(found)


def find_hidden(launched: Launched) -> tuple[Hidden, ...]:
    """Return the secrets of a command whose options are split, with a file for each."""
    assignments = [f"{name}={value}" for name, value in launched.env.items()]
    words = [*assignments, *launched.args]
    masked = mask_words(words)
    stem = _slug(Path(launched.script or str(launched.module)).stem)
    hidden: list[Hidden] = []
    for place, (word, shown) in enumerate(zip(words, masked, strict=True)):
        if shown == word:
            continue
        number = place - len(assignments)  # below 0: a variable
        before = masked[place - 1] if number > 0 else ""
        of_option = before.startswith("-") and "=" not in before
        own = re.match(r"[-+]*([A-Za-z_][\w.-]*)=", shown)
        name = before if of_option else own[0][:-1] if own else f"argument {number + 1}"
        taken = sum(each.file.startswith(_file(stem, name)) for each in hidden)
        hidden.append(
            Hidden(
                place=name if number < 0 else number,
                text=word.partition("=")[2].replace("$", "$$") if number < 0 else word,
                name=name,
                whole=number >= 0 and not of_option,
                file=_file(stem, name) + (f"-{taken + 1}" if taken else ""),
            )
        )
    return tuple(hidden)


def _file(stem: str, name: str) -> str:
    return f"~/.secrets/{stem}-{_slug(name)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")

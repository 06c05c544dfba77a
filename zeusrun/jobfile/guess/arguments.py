"""The arguments of a script, in which placeholders take the places of numbers."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.options import match_option, normal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.guess.script import Script

# Of a script that declares it elsewhere: --lr 0.1, data.batch_size=64, ++model.lr=0.1.
_OPTION = re.compile(r"(?P<name>(?:--?|\+{1,2})?[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_CONFIG = re.compile(r"-c|--?(?:[\w-]+[_.-])?(?:config|cfg|conf)(?:[_-](?:path|file))?")
_FILE = re.compile(r"[^-\s]\S*\.(?:json|ya?ml|toml)")


@dataclass(frozen=True)
class Found:
    """An option and its value, which is above 0."""

    name: str  # as ``normal`` returns it
    written: str  # in the command or the script
    value: float
    place: int | None  # of the word that contains the value; ``None`` if it is a default
    before: str = ""  # what precedes the value in that word

    @property
    def origin(self) -> str:
        """Where the value is from, for people."""
        default = " (the script's default)" if self.place is None else ""
        return f"{self.written} {self.value:g}{default}"


class Arguments:
    """The arguments of a script, in which placeholders take the places of numbers."""

    def __init__(self, words: Sequence[str], script: Script) -> None:
        self.script = script
        self.words = [word.replace("$", "$$") for word in words]  # only ours are placeholders

    def find(
        self, names: Sequence[str], *, whole: bool = True, default: bool = True
    ) -> Found | None:
        """Return the last option of these names in the command, else the script's default."""
        found, given, taken = None, set[str](), -1
        for place, word in enumerate(self.words):
            if place == taken or (known := self._read_word(word)) is None:
                continue
            own, written, text, takes = known
            following = "".join(self.words[place + 1 : place + 2])
            if takes and following[:1] not in {"", "-"}:
                taken = place + 1  # its value names no option
            name = next((name for name in names if name in own), None)
            if name is None or (text is None and word[0] not in "-+"):
                continue  # of no number, or a plain word
            given |= own
            where = place
            if text is None and word.startswith("-") and place + 1 < len(self.words):
                text, where = self.words[place + 1], place + 1
            if (value := _read(text, whole=whole)) is not None:
                before = self.words[where].removesuffix(str(text))
                found = Found(name, written, value, where, before)
        if found is not None or not default or self._has_file():
            return found  # what a file sets must not be replaced by a default of the text
        return self._find_default([name for name in names if name not in given], whole=whole)

    def _has_file(self) -> bool:
        """Whether the script may read its options from a file: its only argument, or --config."""
        if _FILE.fullmatch(" ".join(self.words)):
            return True
        words = [part for word in self.words for part in word.split("=", 1)]
        pairs = itertools.pairwise(words)
        return any(_CONFIG.fullmatch(name) and _FILE.fullmatch(word) for name, word in pairs)

    def _find_default(self, names: Sequence[str], *, whole: bool) -> Found | None:
        for name in names:
            for option in reversed(self.script.options):
                value = _read(option.default, whole=whole) if name in option.names else None
                if value is not None:
                    return Found(name, option.written, value, None)
        return None

    def _read_word(self, word: str) -> tuple[frozenset[str], str, str | None, bool] | None:
        """Return the names of the option that a word gives, as it is written, and its value.

        The last value: whether the script says that the next word is its value.
        """
        if (known := match_option(word, self.script.options)) is not None:
            option, written, text = known
            return option.names, written, text, text is None and not option.switch
        if (match := _OPTION.fullmatch(word)) is None:
            return None
        return frozenset({normal(match["name"])}), match["name"], match["value"], False

    def put(self, found: Found, placeholder: str) -> None:
        """Replace a value by a placeholder, or add the option if it is not in the command."""
        text = f"${{{placeholder}}}"
        if found.place is not None:
            self.words[found.place] = found.before + text
        elif len(found.written) == 2:  # click reads -e=30 as the value =30
            self.words += [found.written, text]
        elif found.written.startswith("-"):
            self.words.append(f"{found.written}={text}")


def _read(value: object, *, whole: bool) -> float | None:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < math.inf and (not whole or number == int(number)) else None

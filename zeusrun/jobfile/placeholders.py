"""The ``${...}`` placeholders of a job file: their names, how they are checked and expanded."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACEHOLDERS = (
    "job",
    "trial",
    "recurrence",
    "attempt",
    "batch_size",
    "local_batch_size",
    "micro_batch_size",
    "accumulation_steps",
    "total_accumulation_steps",
    "learning_rate",
    "max_epochs",
    "metric",
    "target",
    "world_size",
    "run_dir",
    "checkpoint_dir",
    "sidecar",
)
"""Names that may stand in ``${...}``; the launcher has a value for each."""

# Braces are required. "$HOME" is meant for a shell, and no shell reads the args: an error says how
# to write a placeholder and how to write a plain "$".
_TOKEN = re.compile(
    r"\$(?:(?P<escaped>\$)|\{(?P<name>[^${}/]*)(?:/(?P<share>[^${}]*))?\}|(?P<word>\w*))"
)
_DIVISIBLE = ("batch_size", "local_batch_size")


def find_placeholders(text: str) -> tuple[str, ...]:
    """Return the names in ``text`` in order, each as often as it appears.

    Raises:
        ValueError: At an unknown name or a single ``$``; the message continues a sentence that
            starts with the key.
    """
    names: list[str] = []
    for token in _TOKEN.finditer(text):
        name, word = token["name"], token["word"]
        if word is not None:
            meant = f"'${{{word}}}' for the placeholder, " if word in PLACEHOLDERS else ""
            plain = f"'$${word}' for a plain '${word}'"
            raise ValueError(f"has a stray '$' in {text!r}; write {meant}{plain}")
        if name is not None and name not in PLACEHOLDERS:
            close = difflib.get_close_matches(name, PLACEHOLDERS, n=1)
            known = f"known: {', '.join(PLACEHOLDERS)}; a plain '$' is written '$$'"
            hint = f"did you mean '${{{close[0]}}}'?" if close else known
            raise ValueError(f"uses the unknown placeholder '${{{name}}}'; {hint}")
        if name is not None:
            names.append(name)
        share = token["share"]
        if share is not None and (name not in _DIVISIBLE or not re.fullmatch("[1-9][0-9]?", share)):
            raise ValueError(
                f"has '${{{name}/{share}}}'; only ${{batch_size}} and ${{local_batch_size}} can be "
                "divided, by a whole number from 1 to 99"
            )
    return tuple(names)


def find_shares(text: str) -> tuple[tuple[str, int], ...]:
    """Return the names in a checked text that are divided, such as ``${batch_size/2}``, by what."""
    tokens = (token for token in _TOKEN.finditer(text) if token["share"])
    return tuple((token["name"], int(token["share"])) for token in tokens)


def expand_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with every ``${name}`` replaced by its value and every ``$$`` by ``$``.

    A ``$`` inside a value is not expanded again.

    Raises:
        JobFileError: If a placeholder has no value, or ``find_placeholders`` refuses ``text``.
    """
    try:
        names = find_placeholders(text)
    except ValueError as error:
        raise JobFileError(f"a text of the job {error}") from error
    missing = [name for name in names if name not in values]
    if missing:
        raise JobFileError(f"'${{{missing[0]}}}' in {text!r} has no value in this run")

    def expand(token: re.Match[str]) -> str:
        if token["escaped"] or not token["share"]:
            return "$" if token["escaped"] else values[token["name"]]
        value, rest = divmod(int(values[token["name"]]), int(token["share"]))
        if rest:
            raise JobFileError(f"'{token[0]}' is no whole number for {values[token['name']]}")
        return str(value)

    return _TOKEN.sub(expand, text)


def literal_parts(text: str) -> list[str]:
    """Return what stands between the placeholders of a text, with ``$`` for ``$$``."""
    return _TOKEN.sub(lambda t: "$" if t["escaped"] else "\0", text).split("\0")

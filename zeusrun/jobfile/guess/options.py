"""The options that a script declares, and their values in a command.

A script declares options by calls of argparse and click. zeusrun reads only
values that the text of the script contains; a computed default is unknown.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_CHOICES = {"local_batch_size", "global_batch_size", "learning_rate", "epochs"}  # of zeusrun
# Of a script that declares it elsewhere: --lr 0.1, data.batch_size=64, ++model.lr=0.1.
_OPTION = re.compile(r"(?P<name>(?:--?|\+{1,2})?[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_CONFIG = re.compile(r"-c|--?(?:[\w-]+[_.-])?(?:config|cfg|conf)(?:[_-](?:path|file))?")
_FILE = re.compile(r"[^-\s]\S*\.(?:json|ya?ml|toml)")
_VALUED = {"store", "append", "extend"}  # actions of argparse that take a value
# Of transformers' TrainingArguments, which HfArgumentParser makes options of.
_OF_TRAINER = {"per_device_train_batch_size": 8.0, "learning_rate": 5e-5, "num_train_epochs": 3.0}


@dataclass(frozen=True)
class Option:
    """An option with all its spellings."""

    flags: tuple[str, ...]  # such as ``-e`` and ``--epochs``; a call of zeusrun: ``run.epochs``
    dest: str = ""  # the attribute or the parameter with its value
    default: object = None  # ``None``: it has none; ``...``: it is not known
    switch: bool = False  # whether it takes no value

    @property
    def names(self) -> frozenset[str]:
        """Its flags as ``normal`` returns them; a letter counts only where there is no word."""
        words = [flag for flag in self.flags if len(flag.lstrip("-")) > 1]
        return frozenset(map(normal, words or self.flags))

    @property
    def written(self) -> str:
        """The flag to write it with: the first long one, if any."""
        return max(self.flags, key=lambda flag: flag.startswith("--"))


def normal(name: str) -> str:
    """Return the name of an option without dashes and sections: ``--data.batch-size``."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()


def match_option(word: str, options: Iterable[Option]) -> tuple[Option, str, str | None] | None:
    """Return the option that a word of a command gives, as it is written there, and its value.

    The value is ``None`` if the word contains none: it is the next word. Returns ``None`` for
    another word. ``-e30``, ``-e=30`` and ``--epo 30`` are read as argparse does.
    """
    if not word.startswith("-"):
        return None
    by_flag = {flag: option for option in options for flag in option.flags}
    name, equals, value = word.partition("=")
    if name in by_flag:
        return by_flag[name], name, value if equals else None
    begun = {
        option.written: option
        for flag, option in by_flag.items()
        if len(name) > 3 and flag.startswith(name)  # argparse accepts it
    }
    if len(begun) == 1:
        return begun.popitem()[1], name, value if equals else None
    attached = by_flag.get(word[:2])
    return None if attached is None or attached.switch else (attached, word[:2], word[2:] or None)


def read_options(tree: ast.Module, text: str) -> tuple[Option, ...]:
    """Return the options of a script; if two have the same flag, the last one is valid.

    ``tree`` is the syntax tree of ``text``; it is empty if the text is not Python.
    """
    try:
        return tuple(_read(tree, text))
    except RecursionError:  # nested too deep
        return ()


def _read(tree: ast.Module, text: str) -> Iterator[Option]:
    if "configurator.py" in text:  # nanoGPT's sets variables by --name=value
        for name, value in _find_constants(tree, once=False).items():
            yield Option((f"--{name}",), name, value)
        return
    constants = _find_constants(tree, once=True)
    if re.search(r"HfArgumentParser|TrlParser", text) and re.search(r"TrainingArg|Config\b", text):
        # Each …Config of TRL has a learning rate of its own.
        names = _OF_TRAINER if "TrainingArg" in text else _OF_TRAINER.keys() - {"learning_rate"}
        for name in sorted(names):
            flags = f"--{name}", f"--{name.replace('_', '-')}"
            yield Option(flags, name, _OF_TRAINER[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node, constants, zeusrun="zeusrun" in text)


def _of_call(call: ast.Call, constants: Mapping[str, float], *, zeusrun: bool) -> Iterator[Option]:
    """Yield the option of a call of argparse or click, or a call of zeusrun with a default."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    keys = {word.arg: _value(word.value, constants) for word in call.keywords}
    if zeusrun and name in _CHOICES:
        first = keys.get("default", _value(call.args[0], constants) if call.args else None)
        yield Option((f"run.{name}",), name, first)
    elif name in {"add_argument", "option"}:
        values = (getattr(each, "value", None) for each in call.args)
        texts = [value for value in values if isinstance(value, str)]
        flags = tuple(text for text in texts if text.startswith("-"))
        if not flags:
            return
        action = keys.get("action")
        switch = (isinstance(action, str) and action not in _VALUED) or bool(
            keys.get("is_flag") or keys.get("count")
        )
        default = keys.get("default", True if action == "store_false" else None)
        parameters = [
            text for text in texts if text not in flags
        ]  # click: the name of the parameter
        longest = next((flag for flag in flags if flag.startswith("--")), flags[0])
        dest = keys.get("dest") or (
            parameters[0] if parameters else longest.lstrip("-").replace("-", "_")
        )
        yield Option(flags, str(dest), default, switch)


def _find_constants(tree: ast.Module, *, once: bool) -> dict[str, float]:
    """Return the numbers that a module assigns to names; ``once``: to no other value anywhere."""
    stored = Counter(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    found = dict[str, float]()
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _value(node.value, {})
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if stored[name] == 1 or not once:
                found[name] = value
    return found


def _value(node: ast.AST, constants: Mapping[str, float]) -> object:
    """Return a constant, a product of numbers, or what a name stands for; ``...`` if not known."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):  # 5 * 8
        left, right = _value(node.left, constants), _value(node.right, constants)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return left * right
    if isinstance(node, ast.Name):
        return constants.get(node.id, ...)
    return node.value if isinstance(node, ast.Constant) else ...


@dataclass(frozen=True)
class OptionValue:
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

    def __init__(self, words: Sequence[str], options: Sequence[Option]) -> None:
        self.options = options  # of the script
        self.words = [word.replace("$", "$$") for word in words]  # only ours are placeholders

    def find(
        self, names: Sequence[str], *, whole: bool = True, default: bool = True
    ) -> OptionValue | None:
        """Return the last option of these names in the command, else the script's default."""
        found, given, taken = None, set[str](), -1
        for place, word in enumerate(self.words):
            if place == taken or (known := self._read_word(word)) is None:
                continue
            names_known, written, text, takes = known
            following = "".join(self.words[place + 1 : place + 2])
            if takes and following[:1] not in {"", "-"}:
                taken = place + 1  # its value names no option
            name = next((name for name in names if name in names_known), None)
            if name is None or (text is None and word[0] not in "-+"):
                continue  # of no number, or a plain word
            given |= names_known
            where = place
            if text is None and word.startswith("-") and place + 1 < len(self.words):
                text, where = self.words[place + 1], place + 1
            if (value := _read_number(text, whole=whole)) is not None:
                before = self.words[where].removesuffix(str(text))
                found = OptionValue(name, written, value, where, before)
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

    def _find_default(self, names: Sequence[str], *, whole: bool) -> OptionValue | None:
        for name in names:
            for option in reversed(self.options):
                value = _read_number(option.default, whole=whole) if name in option.names else None
                if value is not None:
                    return OptionValue(name, option.written, value, None)
        return None

    def _read_word(self, word: str) -> tuple[frozenset[str], str, str | None, bool] | None:
        """Return the names of the option that a word gives, as it is written, and its value.

        The last value: whether the script says that the next word is its value.
        """
        if (known := match_option(word, self.options)) is not None:
            option, written, text = known
            return option.names, written, text, text is None and not option.switch
        if (match := _OPTION.fullmatch(word)) is None:
            return None
        return frozenset({normal(match["name"])}), match["name"], match["value"], False

    def put(self, found: OptionValue, placeholder: str) -> None:
        """Replace a value by a placeholder, or add the option if it is not in the command."""
        text = f"${{{placeholder}}}"
        if found.place is not None:
            self.words[found.place] = found.before + text
        elif len(found.written) == 2:  # click reads -e=30 as the value =30
            self.words += [found.written, text]
        elif found.written.startswith("-"):
            self.words.append(f"{found.written}={text}")


def _read_number(value: object, *, whole: bool) -> float | None:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < math.inf and (not whole or number == int(number)) else None

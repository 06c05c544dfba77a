"""The options that a script declares: by calls of argparse and click, in signatures, in classes.

Only what its own text shows for certain: a default that is computed is not known.
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_CHOICES = {"local_batch_size", "global_batch_size", "learning_rate", "epochs"}  # of zeusrun
_FLAG = re.compile(r"--?[A-Za-z][\w-]*")
# What makes options of the parameters of a function, or of the fields of a dataclass.
_READERS = re.compile(
    r"(?P<fire>(?:fire\.)?Fire)|(?P<hyphens>(?P<typer>typer\.run)|tyro\.cli)"
    r"|(?:simple_parsing|draccus|pyrallis)\.(?:parse|wrap)|[\w.]+\.add_arguments"
    r"|(?:[\w.]+\.)?(?:HfArgumentParser|TrlParser)"
)
_VALUED = {"store", "append", "extend"}  # actions of argparse that take a value
# Of transformers' TrainingArguments, which HfArgumentParser makes options of.
_OF_TRAINER = {"per_device_train_batch_size": 8.0, "learning_rate": 5e-5, "num_train_epochs": 3.0}


@dataclass(frozen=True)
class Option:
    """An option with all its spellings."""

    flags: tuple[str, ...]  # such as ``-e`` and ``--epochs``; a call of zeusrun: ``run.epochs``
    dest: str = ""  # the attribute or the parameter with its value
    default: object = None  # ``None``: it has none; ``...``: it is not known
    abbreviated: bool = False  # whether the beginning of a flag is enough
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
    another word. ``-e30``, ``-ve 30``, ``-e=30`` and ``--epo 30`` are read as argparse does.
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
        if option.abbreviated and len(name) > 2 and flag.startswith(name)
    }
    if len(begun) == 1:
        return begun.popitem()[1], name, value if equals else None
    for at in range(1, len(word)):
        option = by_flag.get(f"-{word[at]}")
        if option is None:
            return None
        if not option.switch:
            return option, f"-{word[at]}", word[at + 1 :] or None
    return None


def parse(text: str) -> ast.Module:
    """Return the tree of a script; an empty one if it is not of this Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about the script's own text
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep
        return ast.Module([], [])


def read_options(tree: ast.Module, text: str, words: Sequence[str]) -> tuple[Option, ...]:
    """Return the options of a script; of two with the same flag, the last one counts.

    Args:
        tree: Of its text; empty if it is no Python.
        text: Of the script.
        words: Its arguments: they say which function ``fire`` calls.
    """
    try:
        return tuple(_read(tree, text, words))
    except RecursionError:  # nested too deep
        return ()


def _read(tree: ast.Module, text: str, words: Sequence[str]) -> Iterator[Option]:
    if "configurator.py" in text:  # nanoGPT's sets variables by --name=value
        for name, value in _find_constants(tree, once=False).items():
            yield Option((f"--{name}",), name, value)
        return
    constants = _find_constants(tree, once=True)
    if re.search(r"HfArgumentParser|TrlParser", text) and re.search(r"TrainingArg|Config\b", text):
        # Each …Config of TRL has a learning rate of its own.
        names = _OF_TRAINER if "TrainingArg" in text else _OF_TRAINER.keys() - {"learning_rate"}
        yield from (_spell(name, _OF_TRAINER[name]) for name in sorted(names))
    reader = _Signatures(tree, constants, words)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node, constants, zeusrun="zeusrun" in text)
            yield from reader.read_call(node)


def _spell(
    name: str, default: object, more: Iterable[str] = (), *, hyphens: bool = False
) -> Option:
    """Return the option of a parameter for a tool that takes hyphens and underscores."""
    both = f"--{name}", f"--{name.replace('_', '-')}"
    flags = both[::-1] if hyphens else both
    return Option((*flags, *more), name, default, not hyphens, isinstance(default, bool))


def _of_call(call: ast.Call, constants: Mapping[str, float], *, zeusrun: bool) -> Iterator[Option]:
    """Yield the option of a call of argparse or click, or a call of zeusrun with a default."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    keys = {word.arg: _value(word.value, constants) for word in call.keywords}
    if zeusrun and name in _CHOICES:
        first = keys.get("default", _value(call.args[0], constants) if call.args else None)
        yield Option((f"run.{name}",), name, first)
    elif name in {"add_argument", "option"}:
        texts = [text for each in call.args if isinstance(text := _constant(each), str)]
        flags = tuple(text for text in texts if text.startswith("-"))
        if not flags:
            return
        action = keys.get("action")
        switch = (isinstance(action, str) and action not in _VALUED) or bool(
            keys.get("is_flag") or keys.get("count")
        )
        default = keys.get("default", True if action == "store_false" else None)
        own = [text for text in texts if text not in flags]  # click: the name of the parameter
        longest = next((flag for flag in flags if flag.startswith("--")), flags[0])
        dest = keys.get("dest") or (own[0] if own else longest.lstrip("-").replace("-", "_"))
        yield Option(flags, str(dest), default, name == "add_argument", switch)


class _Signatures:
    """Reads the options that fire, typer, tyro and the like make of functions and dataclasses."""

    def __init__(
        self, tree: ast.Module, constants: Mapping[str, float], words: Sequence[str]
    ) -> None:
        self._constants, self._words = constants, words
        self._known = {
            node.name: node
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        self._wrapped = {  # by a decorator, such as draccus.wrap()
            id(call): node
            for node in self._known.values()
            if isinstance(node, ast.FunctionDef)
            for call in node.decorator_list
        }

    def read_call(self, call: ast.Call) -> Iterator[Option]:
        """Yield the options that one call makes."""
        tool = _READERS.fullmatch(dotted(call.func))
        if tool is None:
            return
        if tool["fire"]:
            yield from self._read_fire(call)
            return
        given: list[ast.AST] = [*call.args, *(word.value for word in call.keywords)]
        if (wrapped := self._wrapped.get(id(call))) is not None:
            given = [each.annotation for each in wrapped.args.args[:1] if each.annotation]
        for name in (
            each.id for node in given for each in ast.walk(node) if isinstance(each, ast.Name)
        ):
            for parameter in self._parameters(name):
                yield from self._read_parameter(*parameter, tool)

    def _read_fire(self, call: ast.Call) -> Iterator[Option]:
        target, words = call.args[0] if call.args else None, list(self._words)
        if target is None or isinstance(target, ast.Dict):
            command = words.pop(0) if words else ""
            keys = (
                {}
                if target is None
                else dict(zip(map(_constant, target.keys), target.values, strict=True))
            )
            target = keys.get(command, ast.Name(command))
        function = self._known.get(getattr(target, "id", ""))
        if not isinstance(function, ast.FunctionDef):
            return
        flags = [not word.startswith("-") for word in words]
        after = [False, *(word.startswith("-") and "=" not in word for word in words)]
        taken = sum(plain and not value for plain, value in zip(flags, after, strict=False))
        names = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
        first = [name[0] for name in names]
        for name, _, default in self._parameters(function.name):
            if name not in names[:taken]:  # arguments without a name come first
                short = [f"-{name[0]}", f"--{name[0]}"] if first.count(name[0]) == 1 else []
                yield _spell(name, _value(default, self._constants), short)

    def _parameters(self, name: str) -> Iterator[tuple[str, ast.AST | None, ast.AST]]:
        """Yield name, annotation and default of what a function or a dataclass takes."""
        node = self._known.get(name)
        if isinstance(node, ast.FunctionDef):
            own = node.args
            places = zip(reversed(own.args), reversed(own.defaults), strict=False)
            for each, default in itertools.chain(
                places, zip(own.kwonlyargs, own.kw_defaults, strict=True)
            ):
                if default is not None:
                    yield each.arg, each.annotation, default
        elif node is not None and any(
            dotted(getattr(each, "func", each)).endswith("dataclass")
            for each in node.decorator_list
        ):
            for base in node.bases:
                yield from self._parameters(getattr(base, "id", ""))
            for field in node.body:
                if (
                    isinstance(field, ast.AnnAssign)
                    and isinstance(field.target, ast.Name)
                    and field.value
                ):
                    yield field.target.id, field.annotation, field.value

    def _read_parameter(
        self, name: str, annotation: ast.AST | None, default: ast.AST, tool: re.Match[str]
    ) -> Iterator[Option]:
        calls = [
            each
            for node in (annotation, default)
            for each in (ast.walk(node) if node is not None else ())
            if isinstance(each, ast.Call)
        ]
        if any(dotted(each.func).endswith("Argument") for each in calls):
            return  # typer.Argument: it has no name in the command
        texts = [_constant(each) for call in calls for each in ast.walk(call)]
        flags = [text for text in texts if isinstance(text, str) and _FLAG.fullmatch(text)]
        if isinstance(default, ast.Call):  # typer.Option(64, ...), field(default=64)
            keys = {word.arg: word.value for word in default.keywords}
            first = default.args[0] if default.args else default
            default = keys.get("default", first)
        value = _value(default, self._constants)
        if tool["typer"] and flags:
            yield Option(tuple(flags), name, value, switch=isinstance(value, bool))
        else:
            yield _spell(name, value, flags, hyphens=tool["hyphens"] is not None)


def dotted(node: ast.AST) -> str:
    """Return a name with its attributes, such as ``mp.spawn``; empty for anything else."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


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


def _constant(node: ast.AST | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None

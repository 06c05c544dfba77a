"""What a script and its arguments say about batch size, learning rate and epochs."""

from __future__ import annotations

import ast
import contextlib
import math
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.saves import find_late_save

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

MAX_BYTES = 1 << 20
"""What is read of a script."""

_RANKS = r"(?:\w+\.)*(?:get_)?(?:\w*world_?size|n_?gpus?\w*|num_gpus|num_processes|nprocs)"
# No pattern begins with a repeat: in a long line of data it would be tried at every letter.
_RATE = r"(?:base_?lr|b?lr|learning_rate)\b"
_DIVIDES = re.compile(
    rf"batch_?size\s{{0,9}}\)?\s{{0,9}}//?=?\s*(?:\w+\()?{_RANKS}|split_batches=True", re.IGNORECASE
)
_SCALES = re.compile(
    rf"{_RATE}\s*\*=?\s*[^\n,#]{{0,60}}?(?P<by>{_RANKS}|batch_?size)"
    rf"|(?P<then>world_?size\b|num_processes\b|batch_?size\b)(?:\(\))?[^\n,#=]{{0,30}}\*\s*(?:\w+\.)*{_RATE}",
    re.IGNORECASE,
)
_OPTION = re.compile(r"(?P<name>(?:--?|\+{1,2})?[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_ADAM = re.compile(r"\bAdam|adamw")
_SGD_FIRST = re.compile(r"""default=["']sgd""", re.IGNORECASE)  # of an option for the optimizer
_FILE = re.compile(r"[^-\s]\S*\.(?:json|ya?ml|toml)")
_CHOICES = {"local_batch_size", "global_batch_size", "learning_rate", "epochs"}
# By library: what is imported, and what else the text contains.
_LIBRARIES = {
    "transformers": (r"transformers|trl|setfit", r"Trainer\(|TrainingArguments"),
    "timm": (r"timm", ""),
    "lightning": (r"(?:pytorch_)?lightning", ""),
    "accelerate": (r"accelerate", ""),
    # Its reference scripts; others only take data or a model from there.
    "torchvision": (r"torchvision", r"init_distributed_mode|presets|acc1"),
}
# Of transformers' TrainingArguments, which HfArgumentParser makes options of.
_OF_TRAINER = {"per_device_train_batch_size": 8.0, "learning_rate": 5e-5, "num_train_epochs": 3.0}


@dataclass(frozen=True)
class Script:
    """What the text of a script shows."""

    library: str | None = None  # whose conventions it follows: timm, nanoGPT, ...
    options: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # as written, default
    divides: bool = False  # its batch size by the number of processes
    scales_by: str | None = None  # by what it multiplies its learning rate
    uses_adam: bool = False
    late_save: int | None = None  # the line that saves a model after the training loop
    devices: int = 1  # of Lightning's Trainer, on which it starts processes itself


def read_text(*paths: Path) -> str:
    """Return the text of the first of these files that can be read as UTF-8, else an empty text."""
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # ValueError: no UTF-8; a NUL in the name
            if path.is_file():  # reading a pipe would block
                with path.open("rb") as file:
                    return file.read(MAX_BYTES).decode()
    return ""


def module_paths(folder: Path, module: str) -> tuple[Path, Path]:
    """Return where the file of a module, or of a package that can be run, would be."""
    stem = folder.joinpath(*module.split("."))
    return stem.with_suffix(".py"), stem / "__main__.py"


def normal(name: str) -> str:
    """Return the name of an option without dashes and sections: ``--data.batch-size``."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()


def _devices(text: str) -> int:
    found = re.search(r"\bdevices\s*=\s*(\d{1,3})\b", text)
    return max(1, int(found[1])) if found else 1


def read_script(text: str, words: Sequence[str] = ()) -> Script:
    """Read a script's text, which need not be one of this Python; ``words``: its arguments."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about the script's own text
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep
        tree = ast.Module([], [])
    library = _library(text)
    options = (
        dict(_assigned(tree))
        if library == "nanoGPT"
        else dict(_declared(tree, _CHOICES if "zeusrun" in text else ()))
    )
    if re.search(r"HfArgumentParser|TrlParser", text):
        options = {name: (f"--{name}", value) for name, value in _OF_TRAINER.items()} | options
    return Script(
        library=library,
        options=options,
        divides=_DIVIDES.search(text) is not None,
        scales_by=_scales_by(text),
        late_save=find_late_save(text, words),
        devices=_devices(text) if library == "lightning" else 1,
        uses_adam=library == "transformers"
        or (_ADAM.search(text) is not None and _SGD_FIRST.search(text) is None),
    )


def _library(text: str) -> str | None:
    if "configurator.py" in text:
        return "nanoGPT"
    for name, (module, use) in _LIBRARIES.items():
        imports = rf"^[ \t]*(?:from|import)\b.*\b(?:{module})\b"
        if re.search(imports, text, re.MULTILINE) and re.search(use, text):
            return name
    return None


def _scales_by(text: str) -> str | None:
    if "lr_base" in text and "batch" in text:
        return "lr_base"
    by = {(found["by"] or found["then"]).lower() for found in _SCALES.finditer(text)}
    if not by:
        return None
    return "batch size" if any("batch" in each for each in by) else "number of processes"


def _declared(
    tree: ast.Module, choices: Collection[str]
) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield options of argparse and click, and calls of zeusrun, with a number as default."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        is_choice = name in choices
        given = [word.value for word in node.keywords if word.arg == "default"]
        default = next(map(_number, given + node.args if is_choice else given), None)
        if default is None:
            continue
        if is_choice:
            yield name, (f"run.{name}", default)
        elif name in {"add_argument", "option"}:
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            flags = [text for text in texts if isinstance(text, str) and text.startswith("-")]
            for flag in flags:
                yield normal(flag), (max(flags, key=lambda flag: flag.startswith("--")), default)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield the variables that nanoGPT's configurator can set by ``--name=value``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _number(node.value)
            if value is not None:
                yield normal(name), (f"--{name}", value)


def _number(node: ast.AST) -> float | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):  # 5 * 8
        left, right = _number(node.left), _number(node.right)
        return None if left is None or right is None else left * right
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Found:
    """An option and its value, which is above 0."""

    name: str  # as ``normal`` returns it
    written: str  # in the command or the script
    value: float
    place: int | None  # of the word that contains the value; ``None`` if it is a default

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
        found = None
        for place, word in enumerate(self.words):
            match = _OPTION.fullmatch(word)
            if match is None or normal(match["name"]) not in names:
                continue
            text, where = match["value"], place
            if text is None and word.startswith("-") and place + 1 < len(self.words):
                text, where = self.words[place + 1], place + 1
            if (value := _read(text, whole=whole)) is not None:
                found = Found(normal(match["name"]), match["name"], value, where)
        if found is not None or not default or _FILE.fullmatch(" ".join(self.words)):
            return found  # a script whose only argument is a file reads its options there
        for name in names:
            written, text = self.script.options.get(name, ("", 0.0))
            if (value := _read(text, whole=whole)) is not None:
                return Found(name, written, value, None)
        return None

    def put(self, found: Found, placeholder: str) -> None:
        """Replace a value by a placeholder, or add the option if it is not in the command."""
        if found.place is None:
            if found.written.startswith("-"):
                self.words.append(f"{found.written}=${{{placeholder}}}")
            return
        name, equals, _ = self.words[found.place].partition("=")
        self.words[found.place] = f"{name}=${{{placeholder}}}" if equals else f"${{{placeholder}}}"


def _read(text: str | float | None, *, whole: bool) -> float | None:
    try:
        value = float(text or 0)
    except ValueError:
        return None
    return value if 0 < value < math.inf and (not whole or value == int(value)) else None

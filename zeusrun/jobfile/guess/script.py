"""What a script and its arguments say about batch size, learning rate and epochs."""

from __future__ import annotations

import ast
import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.options import Option, dotted, parse, read_options
from zeusrun.jobfile.guess.saves import find_late_save

if TYPE_CHECKING:
    from collections.abc import Sequence
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
_ADAM = re.compile(r"\bAdam|adamw")
_SGD_FIRST = re.compile(r"""default=["']sgd""", re.IGNORECASE)  # of an option for the optimizer
# By library: what is imported, and what else the text contains.
_LIBRARIES = {
    "transformers": (r"transformers|trl|setfit", r"Trainer\(|TrainingArguments"),
    "timm": (r"timm", ""),
    "lightning": (r"(?:pytorch_)?lightning", ""),
    "accelerate": (r"accelerate", ""),
    # Its reference scripts; others only take data or a model from there.
    "torchvision": (r"torchvision", r"init_distributed_mode|presets|acc1"),
}


@dataclass(frozen=True)
class Script:
    """What the text of a script shows."""

    library: str | None = None  # whose conventions it follows: timm, nanoGPT, ...
    options: tuple[Option, ...] = ()
    divides: bool = False  # its batch size by the number of processes
    scales_by: str | None = None  # by what it multiplies its learning rate
    uses_adam: bool = False
    spawns: bool = False  # whether it always starts training processes itself
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


def _devices(text: str) -> int:
    found = re.search(r"\bdevices\s*=\s*(\d{1,3})\b", text)
    return max(1, int(found[1])) if found else 1


def read_script(text: str, words: Sequence[str] = ()) -> Script:
    """Read a script's text, which need not be one of this Python; ``words``: its arguments."""
    library = _library(text)
    return Script(
        library=library,
        options=read_options(parse(text), text, words),
        divides=_DIVIDES.search(text) is not None,
        scales_by=_scales_by(text),
        spawns=find_spawn(text),
        late_save=find_late_save(text, words),
        devices=_devices(text) if library == "lightning" else 1,
        uses_adam=library == "transformers"
        or (_ADAM.search(text) is not None and _SGD_FIRST.search(text) is None),
    )


def find_spawn(text: str) -> bool:
    """Whether a script starts training processes, whatever its options are."""
    if not re.search(r"\b(?:spawn|start_processes|Process)\(", text):
        return False
    tree = parse(text)
    options = {option.dest for option in read_options(tree, text, ())}
    by_option = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and any(getattr(part, "attr", None) in options for part in ast.walk(node.test))
        for each in ast.walk(node)
    }
    return any(
        isinstance(node, ast.Call)
        and re.search(r"\b(?:spawn|start_processes|Process)$", dotted(node.func))
        and id(node) not in by_option
        for node in ast.walk(tree)
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

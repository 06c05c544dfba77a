"""What a script and its arguments say about batch size, learning rate and epochs."""

from __future__ import annotations

import ast
import contextlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from zeusrun.jobfile.guess.options import dotted, parse, read_options
from zeusrun.jobfile.guess.saves import find_late_save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.jobfile.guess.options import Option

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
_SPAWNS = re.compile(r"\b(?:spawn|start_processes|Process)\(")
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
    """A script, and what its text shows; each fact is read when it is first asked for."""

    text: str = ""  # it need not be Python
    words: Sequence[str] = ()  # its arguments

    @cached_property
    def library(self) -> str | None:
        """Whose conventions it follows: timm, nanoGPT, ..."""
        if "configurator.py" in self.text:
            return "nanoGPT"
        for name, (module, use) in _LIBRARIES.items():
            imports = rf"^[ \t]*(?:from|import)\b.*\b(?:{module})\b"
            if re.search(imports, self.text, re.MULTILINE) and re.search(use, self.text):
                return name
        return None

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options that it declares."""
        return read_options(self._tree, self.text, self.words)

    @property
    def divides(self) -> bool:
        """Whether it divides its batch size by the number of processes."""
        return _DIVIDES.search(self.text) is not None

    @property
    def scales_by(self) -> str | None:
        """By what it multiplies its learning rate."""
        if "lr_base" in self.text and "batch" in self.text:
            return "lr_base"
        by = {(found["by"] or found["then"]).lower() for found in _SCALES.finditer(self.text)}
        if not by:
            return None
        return "batch size" if any("batch" in each for each in by) else "number of processes"

    @property
    def uses_adam(self) -> bool:
        """Whether its optimizer is Adam or AdamW, unless an option says another one."""
        adam = _ADAM.search(self.text) is not None and _SGD_FIRST.search(self.text) is None
        return adam or self.library == "transformers"

    @property
    def devices(self) -> int:
        """On how many devices Lightning's Trainer starts processes itself."""
        found = re.search(r"\bdevices\s*=\s*(\d{1,3})\b", self.text)
        return max(1, int(found[1])) if found and self.library == "lightning" else 1

    @cached_property
    def spawns(self) -> bool:
        """Whether it starts training processes, whatever its options are."""
        if not _SPAWNS.search(self.text):
            return False
        attributes = {option.dest for option in self.options}
        by_option = {
            id(each)
            for node in ast.walk(self._tree)
            if isinstance(node, ast.If)
            and any(getattr(part, "attr", None) in attributes for part in ast.walk(node.test))
            for each in ast.walk(node)
        }
        return any(
            isinstance(node, ast.Call)
            and _SPAWNS.search(f"{dotted(node.func)}(")
            and id(node) not in by_option
            for node in ast.walk(self._tree)
        )

    @cached_property
    def late_save(self) -> int | None:
        """The line that saves a model after the training loop; ``None`` if there is none.

        A script that also saves within the loop keeps a model, and one that mentions zeusrun can
        end its loop itself: both have no late save. A save behind an option that is not among
        ``words`` is none.
        """
        if "zeusrun" in self.text:
            return None
        return find_late_save(self._tree, self.text, self.options, self.words)

    @cached_property
    def _tree(self) -> ast.Module:
        return parse(self.text)


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

"""What the text of a training script says about its arguments, without running it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_RANKS = r"(?:\w+\.)*(?:get_)?(?:\w*world_?size|n_?gpus?\w*|num_gpus|num_processes|nprocs)"
_RATE = r"(?:\w+\.)*(?:base_?lr|b?lr|learning_rate)\b"
_DIVIDES = re.compile(rf"batch_?size\s*\)?\s*//?=?\s*(?:\w+\()?{_RANKS}", re.IGNORECASE)
_DIVIDES_STEPS = re.compile(rf"accum\w*_steps\s*//?=?\s*{_RANKS}", re.IGNORECASE)
_SCALES = re.compile(
    rf"{_RATE}\s*\*=?\s*[^\n,#]{{0,60}}?(?P<by>{_RANKS}|batch_?size)"
    rf"|(?P<then>world_?size\b|num_processes\b|batch_?size\b)(?:\(\))?[^\n,#=]{{0,30}}\*\s*{_RATE}",
    re.IGNORECASE,
)
_CHOICES = {"local_batch_size", "global_batch_size", "learning_rate", "epochs"}
_LIBRARIES = {
    "timm": "timm",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "trl": "transformers",
    "setfit": "transformers",
    "accelerate": "accelerate",
    "torchvision": "torchvision",
}


@dataclass(frozen=True)
class Script:
    """What a text shows.

    Attributes:
        readable: Whether there was a text.
        library: Whose way it follows: ``transformers``, ``timm``, ``lightning``, ``accelerate``,
            ``torchvision`` (its reference scripts), ``nanoGPT``, or ``None``.
        options: By normal name: how an option is written, and its default.
        divides: Whether it divides its batch size by the number of processes.
        divides_steps: Whether it does so with its accumulation steps.
        samples: Whether it divides the data itself, by ``DistributedSampler`` or the like.
        scales_by: By what it multiplies its learning rate; ``None`` if it does not.
        spawns: Whether it seems to start processes itself.
        uses_adam: Whether Adam or one of its kind trains.
        asks: The methods of ``zeusrun.current()`` that it calls for a choice, with the default if
            that is a number.
        metrics: The names that it passes to zeusrun's ``report``.
        computes_metrics: Whether it gives ``compute_metrics`` to a ``Trainer``.
        reads_training_arguments: Whether its options are those of ``TrainingArguments``.
    """

    readable: bool = False
    library: str | None = None
    options: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    divides: bool = False
    divides_steps: bool = False
    samples: bool = False
    scales_by: str | None = None
    spawns: bool = False
    uses_adam: bool = False
    asks: Mapping[str, float | None] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    computes_metrics: bool = False
    reads_training_arguments: bool = False


def normal(name: str) -> str:
    """Return the name of an option without dashes and sections: ``--data.batch-size``."""
    return name.lstrip("-+").rpartition(".")[2].replace("-", "_").lower()


def read_script(text: str | None) -> Script:
    """Read a script's text; ``None`` if there is none."""
    if text is None:
        return Script()
    try:
        nodes = list(ast.walk(tree := ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):  # of another Python, or no Python
        nodes, tree = [], ast.Module([], [])
    nano = "configurator.py" in text
    options = dict(_assigned(tree)) if nano else dict(_declared(nodes))
    library = "nanoGPT" if nano else _library(nodes, text)
    return Script(
        readable=True,
        library=library,
        options=options,
        divides=_DIVIDES.search(text) is not None or "split_batches=True" in text,
        divides_steps=_DIVIDES_STEPS.search(text) is not None,
        samples=re.search(r"DistributedSampler|WORLD_SIZE|get_world_size", text) is not None,
        scales_by=_scales_by(text),
        spawns=re.search(r"\bspawn\(", text) is not None,
        uses_adam=library == "transformers" or re.search(r"\bAdam|adamw", text) is not None,
        asks=dict(_asked(nodes)) if "zeusrun" in text else {},
        metrics=tuple(dict.fromkeys(_reported(nodes))) if "zeusrun" in text else (),
        computes_metrics="compute_metrics" in text,
        reads_training_arguments="HfArgumentParser" in text or "TrlParser" in text,
    )


def _library(nodes: list[ast.AST], text: str) -> str | None:
    imported = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported.add(node.module.partition(".")[0])
    if "transformers" in imported and re.search(r"Trainer\(|TrainingArguments", text):
        return "transformers"
    if not re.search(r"init_distributed_mode|presets|acc1", text):
        imported.discard("torchvision")  # it only takes data or a model from there
    return next((name for module, name in _LIBRARIES.items() if module in imported), None)


def _scales_by(text: str) -> str | None:
    if "lr_base" in text and "batch" in text:
        return "lr_base"
    by = {(found["by"] or found["then"]).lower() for found in _SCALES.finditer(text)}
    if not by:
        return None
    return "batch size" if any("batch" in each for each in by) else "number of processes"


def _declared(nodes: list[ast.AST]) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield the options of argparse and click that have a number as default."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name not in {"add_argument", "option"}:
            continue
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        flags = [text for text in texts if isinstance(text, str) and text.startswith("-")]
        default = next((_number(k.value) for k in node.keywords if k.arg == "default"), None)
        if flags and default is not None:
            written = next((flag for flag in flags if flag.startswith("--")), flags[0])
            for flag in flags:
                yield normal(flag), (written, default)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, tuple[str, float]]]:
    """Yield the numbers that nanoGPT's configurator lets ``--name=value`` replace."""
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


def _asked(nodes: list[ast.AST]) -> Iterator[tuple[str, float | None]]:
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(called, ast.Attribute):
            defaults = [k.value for k in node.keywords if k.arg == "default"] + node.args
            if called.attr in _CHOICES:
                yield called.attr, _number(defaults[0]) if defaults else None


def _reported(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names = [k.arg for k in node.keywords if k.arg] if node.func.attr == "report" else []
            yield from (name for name in names if name != "epoch")

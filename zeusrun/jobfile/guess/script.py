"""What a script and its arguments say about batch size, learning rate, epochs and late saves.

A save after the training loop is late: a signal that ends the training would come before it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
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

    @property
    def devices(self) -> int:
        """On how many devices Lightning's Trainer starts processes itself."""
        found = re.search(r"\bdevices\s*=\s*(\d{1,3})\b", self.text)
        return max(1, int(found[1])) if found and self.library == "lightning" else 1

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The options that it declares."""
        from zeusrun.jobfile.guess.options import read_options  # noqa: PLC0415 - few submits need it

        return read_options(self._tree, self.text)

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
    def monitor(self) -> tuple[str, str | None]:
        """The metric by which it keeps a model or stops, or ``""``, and its mode if written."""
        return next(find_monitors(self._tree), ("", None))

    @cached_property
    def _tree(self) -> ast.Module:
        return parse(self.text)


def parse(text: str) -> ast.Module:
    """Return the tree of a script; an empty one if it is not of this Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about the script's own text
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep
        return ast.Module([], [])


def find_monitors(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Yield the metrics that callbacks and trainers get, with ``min`` or ``max``.

    The mode that is not written is the default of Lightning and transformers.
    """
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = {each.arg: getattr(each.value, "value", None) for each in call.keywords}
        if isinstance(name := given.get("monitor"), str):
            mode = given.get("mode", "min")
            yield name, mode if mode in {"min", "max"} else None
        if isinstance(name := given.get("metric_for_best_model"), str):
            greater = given.get("greater_is_better", not name.endswith("loss"))
            name = name if name.startswith("eval_") else f"eval_{name}"
            yield name, None if greater is None else "max" if greater else "min"


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


LATE_SAVE = (
    "saves after the training loop, so the script runs all its epochs; the cost counts up to the "
    "target. Cheaper: remove this line, and loop over zeusrun.current().epochs(default=...), which "
    "counts from 1 and ends at the target (docs/training-script.md)"
)
"""Why ``init`` lets a script with a late save finish, after the line of the save."""

_SAVES = re.compile(
    r"_?save_(?:pretrained|(?:the_)?model|network|weights|state|check_?point|ckpt|file|on_master)\w*"
)
_SAVERS = re.compile(
    r"torch|th|jit|xm|fabric|accelerator|\w*(?:model|net|saver|ckpt|check_?pointe?r?)",
    re.IGNORECASE,
)
_STEPPED = re.compile(r"\w*(?:opt|sched|scaler)\w*", re.IGNORECASE)
_OF_MODEL = re.compile(r"state_dict|model|weights|params", re.IGNORECASE)
_EVALUATES = re.compile(r"_?(?:do_|run_)?(?:eval|valid|test)", re.IGNORECASE)
_PREPARES = re.compile(r"scaler|encoder|transform|pca|imputer|vectorizer|tokenizer", re.IGNORECASE)
_LIGHTNING = re.compile(r"^[ \t]*(?:from|import)\b.*\blightning\b", re.MULTILINE)
_EPOCH = re.compile("epoch", re.IGNORECASE)
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def find_late_save(
    tree: ast.Module, text: str, options: Sequence[Option], words: Sequence[str]
) -> int | None:
    """Return the line that saves a model after the training loop; see ``Script.late_save``.

    ``options`` are those that the script declares, ``words`` its arguments.
    """
    from zeusrun.jobfile.guess.options import match_option  # noqa: PLC0415 - few submits need it

    try:
        stored = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }  # the script may give an option a value itself
        given = filter(None, (match_option(word, options) for word in words))
        on = {option.dest for option, *_ in given} | {each.dest for each in options if each.default}
        off = {option.dest for option in options} - on - stored
        flow = _Reader(tree, off, fits=_LIGHTNING.search(text) is None).read(tree.body)
    except RecursionError:  # nested too deep
        return None
    return None if flow.saves_within else flow.late


class _Flow(NamedTuple):
    """What a part of a script does, in the order of time."""

    trains: bool = False  # makes an optimizer step
    evaluates: bool = False  # outside of training loops
    between: bool = False  # the steps of a loop, it evaluates: the run may end before that loop
    loops: bool = False  # has a training loop
    saves_within: bool = False  # a training loop
    save: int | None = None  # the line of the first save outside of training loops
    late: int | None = None  # the same, after a training loop

    def then(self, later: _Flow) -> _Flow:
        late = self.late or (later.save if self.loops else None) or later.late
        either = (now or other for now, other in zip(self, later, strict=True))
        return _Flow._make(either)._replace(late=late)


class _Reader:
    """Reads a script in the order in which it runs, into the functions of the same file."""

    def __init__(self, tree: ast.Module, off: set[str], *, fits: bool) -> None:
        self._methods = {
            each.name: each
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for each in node.body
            if isinstance(each, _Function)
        }
        self._functions = {
            node.name: node
            for node in ast.walk(tree)
            if isinstance(node, _Function) and node is not self._methods.get(node.name)
        }
        self._off = off  # attributes of options that are not given
        self._fits = fits  # whether a method fit is a training loop that a signal ends
        self._known: dict[ast.AST, _Flow] = {}

    def read(self, nodes: Iterable[ast.AST]) -> _Flow:
        return functools.reduce(_Flow.then, map(self._read_one, nodes), _Flow())

    def _read_one(self, node: ast.AST) -> _Flow:
        if isinstance(node, _Function):  # runs when it is called; a decorator may call it
            return self.read(node.body) if node.decorator_list else _Flow()
        if isinstance(node, ast.If) and self._is_off(node.test):
            return self.read(node.orelse)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._read_loop(node)
        flow = self.read(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            name, of = _split_call(node.func)
            steps = name == "backward" or (name == "step" and _STEPPED.fullmatch(of))
            fits = self._fits and name == "fit" and of and not _PREPARES.search(of)
            flow = flow.then(
                _Flow(
                    trains=bool(steps),
                    evaluates=_EVALUATES.match(name) is not None,
                    loops=bool(fits) and name not in self._methods,
                    save=node.lineno if _is_save(node, name, of) else None,
                )
            )
        called = None
        if isinstance(node, ast.Name):
            called = self._functions.get(node.id)
        elif isinstance(node, ast.Attribute):
            called = self._methods.get(node.attr)
        return flow if called is None else flow.then(self._read_called(called))

    def _read_called(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Flow:
        if function not in self._known:
            self._known[function] = _Flow()  # for one that calls itself
            self._known[function] = self.read(function.body)
        return self._known[function]

    def _read_loop(self, node: ast.For | ast.AsyncFor | ast.While) -> _Flow:
        head = node.test if isinstance(node, ast.While) else ast.Tuple([node.target, node.iter])
        body = self.read([head, *node.body])
        if body.trains or body.loops or _EPOCH.search(ast.unparse(head)):
            late = body.late or body.save if body.between else None
            between = body.between or (body.trains and not body.loops and body.evaluates)
            within = body.saves_within or (body.save is not None and late is None)
            body = _Flow(body.trains, between=between, loops=True, saves_within=within, late=late)
        return body.then(self.read(node.orelse))

    def _is_off(self, test: ast.AST) -> bool:
        """Whether a condition needs an option that is not given."""
        if isinstance(test, ast.BoolOp):
            values = map(self._is_off, test.values)
            return any(values) if isinstance(test.op, ast.And) else all(values)
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.IsNot, ast.NotEq)):
            other = test.comparators[0]
            return self._is_off(test.left) and isinstance(other, ast.Constant) and not other.value
        return isinstance(test, ast.Attribute) and test.attr in self._off


def _split_call(function: ast.AST) -> tuple[str, str]:
    """Return the last two names of what is called, such as ``save`` and ``torch``."""
    if not isinstance(function, ast.Attribute):
        return getattr(function, "id", ""), ""
    of = function.value
    return function.attr, getattr(of, "attr", getattr(of, "id", ""))


def _is_save(call: ast.Call, name: str, of: str) -> bool:
    if name == "dump" and of in {"joblib", "pickle"}:
        return bool(call.args) and _OF_MODEL.search(ast.unparse(call.args[0])) is not None
    if name == "save" and of:
        return _SAVERS.fullmatch(of) is not None
    return (name, of) == ("export", "onnx") or _SAVES.fullmatch(name) is not None

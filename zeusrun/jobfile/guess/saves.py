"""Finds what a script saves only after its training loop, where a signal would end it before."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.jobfile.guess.options import match_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.jobfile.guess.options import Option

LATE_SAVE = (
    "saves after the training loop, so the script runs all its epochs; the cost counts up to the "
    "target. Cheaper: loop over zeusrun.current().epochs(), which ends at the target"
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
        either = (own or other for own, other in zip(self, later, strict=True))
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

"""How large the package is, and how far one submit walks through it: ``python -m tests.size``.

The size is the number of lines with code: no blank lines, comments and docstrings. The walk follows
the calls of ``launcher.recurrence.submit`` in the order of the source, into each function once, as a
reader does who wants to understand one submit. It stays within ``launcher`` and ``choice``. A stop
is a change of the file; a return is a stop at a file that was visited before. A call is followed
if its target can be told from names, annotations and constructors.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).resolve().parents[1] / "zeusrun"
START = ("zeusrun.launcher.recurrence", "submit")
WALKED = ("zeusrun.launcher.", "zeusrun.choice.")
_OPENED = ("__init__", "__post_init__", "__enter__")  # what a call of a class runs
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENDMARKER, tokenize.ENCODING),
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Place(NamedTuple):
    """A class, a function or a method, by its module and its dotted name."""

    module: str
    name: str


class Walk(NamedTuple):
    """What a walk has visited."""

    files: int
    stops: int
    returns: int


def count_code(path: Path) -> int:
    """Return the lines of a module that have code."""
    text = path.read_text(encoding="utf-8")
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


class Code:
    """The classes and functions of a package, and what their calls mean."""

    def __init__(self, package: Path) -> None:
        self.found: dict[Place, ast.AST] = {}
        self._imported: dict[str, dict[str, Place]] = {}
        for path in sorted(package.rglob("*.py")):
            parts = ("zeusrun", *path.relative_to(package).with_suffix("").parts)
            module = ".".join(parts).removesuffix(".__init__")
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    self.found[Place(module, node.name)] = node
                for method in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(method, ast.FunctionDef):
                        self.found[Place(module, f"{node.name}.{method.name}")] = method
            self._imported[module] = {
                alias.asname or alias.name: Place(str(node.module), alias.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }

    def named(self, module: str, name: str) -> Place | None:
        """Return what a name means in a module."""
        place = Place(module, name)
        place = place if place in self.found else self._imported[module].get(name, place)
        return place if place in self.found else None

    def bodies(self, place: Place) -> list[tuple[Place, ast.FunctionDef]]:
        """Return what a call runs: a function, or what makes an object of a class."""
        node = self.found[place]
        if isinstance(node, ast.FunctionDef):
            return [(place, node)]
        made = [Place(place.module, f"{place.name}.{name}") for name in _OPENED]
        return [(each, self.found[each]) for each in made if each in self.found]  # type: ignore[misc]

    def annotated(self, module: str, node: ast.AST | None) -> Place | None:
        """Return the class that an annotation names."""
        if isinstance(node, ast.BinOp):
            return self.annotated(module, node.left) or self.annotated(module, node.right)
        place = self.named(module, node.id) if isinstance(node, ast.Name) else None
        return place if isinstance(self.found.get(place or Place("", "")), ast.ClassDef) else None

    def target(
        self, module: str, owner: str, call: ast.expr, known: dict[str, Place]
    ) -> Place | None:
        """Return what a call runs; ``known`` are the classes of names and attributes."""
        if isinstance(call, ast.Name):
            return self.named(module, call.id)
        value = call.value if isinstance(call, ast.Attribute) else None
        own, holder = Place(module, owner), None
        if isinstance(value, ast.Name):
            imported = self._imported[module].get(value.id)
            if imported is not None and value.id not in known:
                inner = Place(
                    f"{imported.module}.{imported.name}", ast.unparse(call).split(".")[-1]
                )
                if inner in self.found:  # a function of a module
                    return inner
            holder = own if value.id == "self" and owner else known.get(value.id, imported)
        elif isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            name = value.value.id
            holder = self._attribute(own if name == "self" else known.get(name), value.attr)
        elif isinstance(value, ast.Call):
            holder = self.target(module, owner, value.func, known)
        return self._method(holder, call.attr) if isinstance(call, ast.Attribute) else None

    def _method(self, owner: Place | None, name: str) -> Place | None:
        place = None if owner is None else Place(owner.module, f"{owner.name}.{name}")
        return place if place in self.found else None

    def _attribute(self, owner: Place | None, name: str) -> Place | None:
        """Return the class of an attribute: of its annotation, property or assignment."""
        node = None if owner is None else self.found.get(owner)
        if owner is None or not isinstance(node, ast.ClassDef):
            return None
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == name:
                return self.annotated(owner.module, each.annotation)
            if isinstance(each, ast.FunctionDef) and each.name == name:
                return self.annotated(owner.module, each.returns)
        init = self.found.get(Place(owner.module, f"{owner.name}.__init__"))
        known = self.classes(owner.module, owner.name, init) if init is not None else {}
        return known.get(f"self.{name}")

    def classes(self, module: str, owner: str, function: ast.AST) -> dict[str, Place]:
        """Return the classes of a function's parameters and of what it assigns."""
        known: dict[str, Place] = {}
        if not isinstance(function, ast.FunctionDef):
            return known
        for argument in (*function.args.args, *function.args.kwonlyargs):
            if (place := self.annotated(module, argument.annotation)) is not None:
                known[argument.arg] = place
        for left, right in _assigned(function):
            place = known.get(right.id) if isinstance(right, ast.Name) else None
            if isinstance(right, ast.Call):
                place = self.target(module, owner, right.func, known)
                made = self.found.get(place) if place is not None else None
                if place is not None and isinstance(made, ast.FunctionDef):
                    place = self.annotated(place.module, made.returns)
            if place is not None:
                known[ast.unparse(left)] = place
        return known


def _assigned(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a function assigns to what, ``with`` included."""
    for node in ast.walk(function):
        if isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield node.optional_vars, node.context_expr
        elif isinstance(node, ast.Assign):
            left, right = node.targets[0], node.value
            if isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple):
                yield from zip(left.elts, right.elts, strict=False)
            else:
                yield left, right


def walk(package: Path, start: tuple[str, str] = START) -> Walk:
    """Walk through the calls of a function; see above."""
    code, seen, visited = Code(package), set[Place](), list[str]()

    def visit(place: Place) -> None:
        if place in seen or not place.module.startswith(WALKED):
            return
        seen.add(place)
        bodies = code.bodies(place)
        visited.extend([place.module] if bodies else [])
        for own, function in bodies:
            owner = own.name.rpartition(".")[0]
            known = code.classes(own.module, owner, function)
            for call in _calls(function):
                target = code.target(own.module, owner, call.func, known)
                if target is not None:
                    visit(target)

    visit(Place(*start))
    stops = [name for at, name in enumerate(visited) if at == 0 or visited[at - 1] != name]
    return Walk(len(set(stops)), len(stops), len(stops) - len(set(stops)))


def _calls(node: ast.AST) -> list[ast.Call]:
    """Return the calls within a node, in the order in which they are made."""
    found = [call for child in ast.iter_child_nodes(node) for call in _calls(child)]
    return [*found, node] if isinstance(node, ast.Call) else found


def main() -> None:
    """Print the size and the walk of the package."""
    package = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    lines = sum(map(count_code, package.rglob("*.py")))
    files, stops, returns = walk(package)
    sys.stdout.write(
        f"{lines:,} lines of code; one submit: {files} files, {stops} stops, {returns} returns\n"
    )


if __name__ == "__main__":
    main()

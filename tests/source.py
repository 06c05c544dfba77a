"""The source of the package, read and parsed once for all tests of a worker."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "zeusrun"
MODULES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def read(name: str) -> str:
    """Return the text of a module, which is named by its path, such as ``launcher/begin.py``."""
    return MODULES[name].read_text(encoding="utf-8")


@functools.cache
def parse(name: str) -> ast.Module:
    """Return the syntax tree of a module. Tests share it, so none may change it."""
    return ast.parse(read(name))


def trees() -> list[tuple[str, ast.Module]]:
    """Return the name and the syntax tree of every module."""
    return [(name, parse(name)) for name in MODULES]


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree."""
    return tuple(ast.walk(tree))


@functools.cache
def imports(tree: ast.AST) -> tuple[str, ...]:
    """Return every module named in an import, inside functions and for types only, too."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append("." * node.level + (node.module or ""))
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


@functools.cache
def calls(tree: ast.AST) -> frozenset[str]:
    """Return the dotted name of everything that is called."""
    return frozenset(ast.unparse(node.func) for node in nodes(tree) if isinstance(node, ast.Call))


def dotted(name: str) -> str:
    """Return the name of a module within the package, as imports write it."""
    return name.removesuffix("__init__.py").removesuffix(".py").replace("/", ".").rstrip(".")


def imported_modules(name: str) -> set[str]:
    """Return the modules of the package that a module imports or names in full, by their paths."""
    by_name = {f"zeusrun.{dotted(each)}": each for each in MODULES}
    named = {node.value for node in nodes(parse(name)) if isinstance(node, ast.Constant)}
    return {by_name[each] for each in {*imports(parse(name)), *named} & by_name.keys()} - {name}

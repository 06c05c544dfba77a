"""How large the package is, and how much of it one submit needs: ``python -m tests.size``.

The size is the number of lines with code: no blank lines, comments and docstrings. Scripts, styles
and manifests are a part of their own. Each part of the package has a budget, which ``test_size.py``
asserts: whoever needs more lines changes the number in the same commit.

The walk imitates a reader who wants to understand one submit. It follows the calls of
``launcher.attempts.recurrence.submit`` through all packages, in the order of the source, into each
function once. A stop is a change of the file; a return is a stop at a file that was visited before.
The walk follows a call if names, annotations and constructors show its target. If code calls a
method of each object in a list, the walk follows the call into all classes of the same package that
may be in the list.

What a submit loads is counted in the process of a real one: a local job with one rank.
"""

from __future__ import annotations

import ast
import collections
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.factories import with_fake_torchrun, write_job
from tests.source import MODULES, PACKAGE, dotted, nodes, parse, read, trees

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PARTS: Mapping[str, tuple[str, ...]] = {
    "adapt": ("adapt/",),
    "analysis": ("analysis/",),
    "backends": ("run_on/", "commands/follow.py", "jobfile/plugged.py", "parts.py"),
    "commands": ("commands/", "cli.py"),
    "elastic": ("elastic/",),
    "export": ("export/",),
    "gpu and energy": ("gpu/", "energy/"),
    "history": ("history/",),
    "hooks": ("worker/hooks/",),
    "hosts": (
        *("run_on/hosts/", "jobfile/hosts.py"),
        "jobfile/run_on_section.py",
    ),
    "jobfile": ("jobfile/",),
    "kubernetes": ("run_on/kubernetes/",),
    "launcher": ("launcher/",),
    "maintenance": ("maintenance/", "notify/"),
    "metrics": ("metrics/",),
    "policies": ("bandit/", "choice/"),
    "report": ("view/report/",),
    "schedule": ("schedule/",),
    "server": ("server/", "history/http/", "commands/server.py", "commands/connect.py"),
    "shared histories": ("history/shared/", "history/sql/"),
    "simulate": ("simulate/",),
    "slurm": ("run_on/slurm/",),
    "sync": ("sync/",),
    "loader": ("loader/",),
    "view": ("view/",),
    "watch": ("gradients/",),
    "worker": ("worker/", "sidecar/"),
    "values": ("",),
}
"""The parts of the package, by how the paths of their modules begin; the longest that fits wins."""

BUDGETS: Mapping[str, int] = {
    "adapt": 617,
    "analysis": 927,
    "backends": 436,
    "commands": 2_974,
    "elastic": 2_403,
    "export": 299,
    "gpu and energy": 2_162,
    "history": 1_065,
    "hooks": 1_518,
    "hosts": 1_641,
    "jobfile": 3_021,
    "kubernetes": 859,
    "launcher": 5_924,
    "maintenance": 988,
    "metrics": 2_006,
    "other files": 353,
    "policies": 3_203,
    "report": 1_385,
    "schedule": 996,
    "server": 3_361,
    "shared histories": 1_802,
    "simulate": 635,
    "slurm": 692,
    "sync": 912,
    "loader": 783,
    "values": 1_687,
    "view": 2_113,
    "watch": 704,
    "worker": 1_593,
}
"""Lines of code that a part may have; the whole is their sum."""
_OTHERS = (".css", ".html", ".js", ".yaml")  # lines that are not empty
SLACK = 20  # a budget that is further above what is there is to be lowered

_OPENED = ("__init__", "__post_init__", "__enter__")  # what a call of a class runs
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Place(NamedTuple):
    """A class, a function or a method, by its module and its dotted name."""

    module: str
    name: str


START = Place("zeusrun.launcher.attempts.recurrence", "submit")


class Walk(NamedTuple):
    """What a walk has visited."""

    files: int
    stops: int
    returns: int


class Loaded(NamedTuple):
    """What a submit has loaded."""

    modules: int
    lines: int


WALK_BUDGET = Walk(files=89, stops=322, returns=233)
LOADED_BUDGET = Loaded(modules=151, lines=17_887)


def count_code(text: str, tree: ast.Module) -> int:
    """Return the lines that have code, of a text and its syntax tree."""
    kept = {
        number
        for number, line in enumerate(text.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in nodes(tree):
        if isinstance(node, ast.JoinedStr) or isinstance(getattr(node, "value", None), str):
            kept.update(range(node.lineno, (node.end_lineno or 0) + 1))  # with empty lines
    for node in nodes(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            kept.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(kept)


@functools.cache
def count_lines(name: str) -> int:
    """Return the lines of a module of the package that have code."""
    return count_code(read(name), parse(name))


class Code:
    """The classes and functions of a package, and what their calls mean."""

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self.found: dict[Place, ast.AST] = {}
        self._imported: dict[str, dict[str, Place]] = {}
        for path, tree in modules.items():
            module = f"zeusrun.{dotted(path)}"
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

    def overriding(self, place: Place) -> list[Place]:
        """Return the methods of subclasses, in the same package, that replace a method."""
        base, _, method = place.name.rpartition(".")
        package = place.module.split(".")[1]
        found = []
        for each, node in self.found.items():
            if isinstance(node, ast.ClassDef) and each.module.split(".")[1] == package:
                bases = [self.annotated(each.module, base_node) for base_node in node.bases]
                if Place(place.module, base) in bases:
                    found.append(Place(each.module, f"{each.name}.{method}"))
        return [each for each in found if each in self.found]

    def annotated(self, module: str, node: ast.AST | None) -> Place | None:
        """Return the class that an annotation names."""
        if isinstance(node, ast.BinOp):
            return self.annotated(module, node.left) or self.annotated(module, node.right)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "list":
            return self.annotated(module, node.slice)  # of each of its objects
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
        for each in ast.walk(init) if init is not None else ():
            if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == f"self.{name}":
                return self.annotated(owner.module, each.annotation)
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

    def listed(self, function: ast.FunctionDef, known: dict[str, Place]) -> dict[str, Place]:
        """Return the classes of variables that take each object of an annotated list."""
        found = {}
        for node in ast.walk(function):
            of = node.iter if isinstance(node, ast.For) else None
            if isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name):
                place = self._attribute(known.get(of.value.id), of.attr)
                if place is not None:
                    found[ast.unparse(node.target)] = place
        return found


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


def walk(modules: Mapping[str, ast.Module]) -> Walk:
    """Walk through the calls of a submit; see above."""
    code, seen, visited = Code(modules), set[Place](), list[str]()

    def visit(place: Place) -> None:
        if place in seen:
            return
        seen.add(place)
        bodies = code.bodies(place)
        visited.extend([place.module] if bodies else [])
        for own, function in bodies:
            owner = own.name.rpartition(".")[0]
            known = code.classes(own.module, owner, function)
            listed = code.listed(function, known)
            for call in _calls(function):
                target = code.target(own.module, owner, call.func, known | listed)
                if target is not None:
                    visit(target)
                    is_each = ast.unparse(call.func).split(".")[0] in listed
                    for override in code.overriding(target) if is_each else ():
                        visit(override)

    visit(START)
    stops = [name for at, name in enumerate(visited) if at == 0 or visited[at - 1] != name]
    return Walk(len(set(stops)), len(stops), len(stops) - len(set(stops)))


def _calls(node: ast.AST) -> list[ast.Call]:
    """Return the calls within a node, in the order in which they are made."""
    found = [call for child in ast.iter_child_nodes(node) for call in _calls(child)]
    return [*found, node] if isinstance(node, ast.Call) else found


def part_of(name: str) -> str:
    """Return the part to which a module belongs, which is named by its path."""
    fitting = {begin: part for part in PARTS for begin in PARTS[part] if name.startswith(begin)}
    return fitting[max(fitting, key=len)]


def count_parts() -> dict[str, int]:
    """Return the lines of code of every part."""
    lines: collections.Counter[str] = collections.Counter()
    for name in MODULES:
        lines[part_of(name)] += count_lines(name)
    for path in (each for suffix in _OTHERS for each in PACKAGE.rglob(f"*{suffix}")):
        lines["other files"] += sum(map(bool, map(str.strip, path.read_text().splitlines())))
    return dict(sorted(lines.items()))


_SUBMIT = """
import sys
from zeusrun.cli import main
sys.argv[0] = "zeusrun"
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
with open("loaded", "w") as file:
    file.write(" ".join(sys.modules))
"""


def find_loaded(folder: Path) -> set[str]:
    """Run a submit in an empty folder; return the names of all modules that it has loaded.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    job = write_job(folder)
    own = {"HOME": str(folder), "ZEUSRUN_HOME": str(folder / "home"), "CUDA_VISIBLE_DEVICES": ""}
    env = with_fake_torchrun({"PATH": os.environ["PATH"], **own})
    argv = [sys.executable, "-c", _SUBMIT, "submit", str(job)]
    subprocess.run(argv, cwd=folder, env=env, check=True, capture_output=True)
    return set((folder / "loaded").read_text().split())


def count_loaded(names: set[str]) -> Loaded:
    """Return how much of the package is among the names of modules."""
    loaded = [name for name in MODULES if f"zeusrun.{dotted(name)}".strip(".") in names]
    return Loaded(len(loaded), sum(map(count_lines, loaded)))


def main() -> None:
    """Print the size of each part, the walk of a submit, and what one loads."""
    lines, walked = count_parts(), walk(dict(trees()))
    with tempfile.TemporaryDirectory() as folder:
        loaded = count_loaded(find_loaded(Path(folder)))
    for part, count in lines.items():
        sys.stdout.write(f"{count:7,} of {BUDGETS[part]:6,}  {part}\n")
    code = [part for part in lines if part != "other files"]
    sys.stdout.write(
        f"{sum(map(lines.get, code)):7,} of {sum(map(BUDGETS.get, code)):6,}  lines of code in all, "
        f"in {len(MODULES)} modules\n"
        f"reading one submit: {walked.files} files, {walked.stops} stops, {walked.returns} "
        f"returns (at most {WALK_BUDGET.files}, {WALK_BUDGET.stops}, {WALK_BUDGET.returns})\n"
        f"a local submit loads {loaded.modules} modules with {loaded.lines:,} lines of code "
        f"(at most {LOADED_BUDGET.modules}, {LOADED_BUDGET.lines:,})\n"
    )


if __name__ == "__main__":
    main()

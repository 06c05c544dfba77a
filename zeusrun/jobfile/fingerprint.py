"""The fingerprint of a training: one short hash for each part that can change what it learns.

The parts are ``script``, ``args``, ``env`` and ``learning``. ``script`` covers the syntax tree of
the script and of the modules of its own folder or package that it imports, directly or not, without
comments and docstrings. Installed packages and the standard library are not part of it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import warnings
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.jobfile.placeholders import expand_placeholders, find_placeholders
from zeusrun.jobfile.secrets import mask_items
from zeusrun.redaction import MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zeusrun.jobfile.spec import JobSpec

    Read = Callable[[str], bytes | None]  # a file by its path; ``None``: there is none

_MAX_FILES = 100
_MAX_BYTES = 1 << 20  # of all files together
_DIGITS = 12
_MAIN = "__main__"
# Which GPU a job gets does not change what it learns, and a queue chooses it.
_NOT_OF_TRAINING = frozenset({"CUDA_VISIBLE_DEVICES"})


class Fingerprint(NamedTuple):
    """A training as it would start now."""

    parts: dict[str, str]  # hashes by part; a part that cannot be read is absent
    script: str  # what people call the part ``script``


def take_fingerprint(spec: JobSpec) -> Fingerprint:
    """Return the fingerprint of a job as its files are now.

    A script or a working directory with a placeholder has no part ``script``.
    """
    args, env = mask_items(spec.args, spec.env, spec.secrets)  # a secret may be a part of a text
    args = [MASK if ("args", n) in spec.secrets else text for n, text in enumerate(args)]
    names = env.keys() - _NOT_OF_TRAINING
    env = {name: MASK if ("env", name) in spec.secrets else env[name] for name in names}
    parts = {"args": _hash(args), "env": _hash(env), "learning": _hash(_learning_keys(spec))}
    hashed = _read_script(spec)
    script = str(spec.module) if spec.script is None else Path(spec.script).name
    if hashed is None:
        return Fingerprint(parts, script)
    imported = " (or a module that it imports)" if hashed.modules > 1 else ""
    return Fingerprint({"script": hashed.digest, **parts}, f"{script}{imported}")


def _learning_keys(spec: JobSpec) -> dict[str, Any]:
    """Return the keys of a job file that change how a training learns with a given batch size.

    The number of processes is none of them: the batch size is that of all of them together.
    """
    rule, sizes = spec.learning_rate, spec.batch_size
    rate = None
    if rule is not None:
        # By its rate at batch size 1: another default with the same rates changes nothing.
        rate = [rule.scale, rule.apply, f"{rule.at(1 / sizes.default):.9g}"]
    objective = spec.objective
    return {
        "learning_rate": rate,
        "per_device_max": sizes.per_device_max,
        "metric": objective.metric,
        "mode": objective.mode,
    }


def _hash(value: object) -> str:
    return _digest(json.dumps(value, sort_keys=True))


def _digest(text: str | bytes) -> str:
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return sha256(content).hexdigest()[:_DIGITS]


class _Hashed(NamedTuple):
    digest: str
    modules: int  # the script included


def _read_script(spec: JobSpec) -> _Hashed | None:
    """Return the hash of a job's script, or ``None`` if there is no file to read."""
    if any(find_placeholders(text) for text in (spec.script or "", str(spec.workdir))):
        return None
    path, more = spec.script_path({}), _own_path(spec)
    if path is None:
        module = str(spec.module)
        read = _reader([spec.workdir_path({}), *more])
        return hash_script([f"{module}.{_MAIN}", module], read)
    path = Path(os.path.realpath(path))
    if path.is_dir():
        return hash_script([_MAIN], _reader([path, *more]))
    package = path.parent
    while (package / "__init__.py").is_file() and package != package.parent:
        package = package.parent
    return hash_script([_MAIN], _reader([path.parent, *more, package], path))


def _own_path(spec: JobSpec) -> list[Path]:
    """Return the folders of ``PYTHONPATH`` in ``env``."""
    text = spec.env.get("PYTHONPATH", "")
    if not text or ("env", "PYTHONPATH") in spec.secrets or find_placeholders(text):
        return []
    folder = spec.workdir_path({})
    return [folder / each for each in expand_placeholders(text, {}).split(os.pathsep) if each]


def _reader(folders: Sequence[Path], main: Path | None = None) -> Read:
    """Return a function that reads the first file with a relative path, within the limits.

    ``main`` is the file of the script itself, whatever it is called.
    """
    left = _MAX_BYTES

    def read(name: str) -> bytes | None:
        nonlocal left
        paths = [main] if main and name == f"{_MAIN}.py" else [each / name for each in folders]
        for path in paths if left > 0 else ():
            with contextlib.suppress(OSError, ValueError):
                if path.is_file():  # reading a pipe would block
                    with path.open("rb") as file:
                        content = file.read(left)
                    left -= len(content)
                    return content
        return None

    return read


def hash_script(mains: Iterable[str], read: Read) -> _Hashed | None:
    """Hash a script and the modules that it imports, found by static imports.

    Equal syntax trees have equal hashes under Python 3.10 to 3.13.

    Args:
        mains: The names of the module to start with; the first one that exists is it.
        read: Returns a file by its path relative to the folder of the script.

    Returns:
        ``None`` if the script cannot be read.
    """
    for main in mains:
        if found := _load(main, read):
            break
    else:
        return None
    package = main.rpartition(".")[0]
    digest, imports = _hash_module(found[0], package)
    digests, seen = {"": digest}, set[str]()  # whatever the script is called
    names = {*_prefixes(package), *imports}  # the ``__init__`` of its packages runs, too
    while names := names - seen:
        seen |= names
        following: set[str] = set()
        for name in sorted(filter(None, names)):
            if len(digests) < _MAX_FILES and (found := _load(name, read)):
                content, is_package = found
                parent = name if is_package else name.rpartition(".")[0]
                digests[name], imports = _hash_module(content, parent)
                following.update(imports)
        names = following
    return _Hashed(_hash(digests), len(digests))


def _prefixes(name: str) -> list[str]:
    """Return a dotted name and the names of the packages around it, the outermost first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _load(name: str, read: Read) -> tuple[bytes, bool] | None:
    """Return the content of a module, and whether it is a package."""
    path = name.replace(".", "/")
    for ending in ("/__init__.py", ".py"):
        content = read(path + ending)
        if content is not None:
            return content, ending.startswith("/")
    return None


def _hash_module(content: bytes, package: str) -> tuple[str, list[str]]:
    """Return the hash of a module, and the names of what it may import."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about the script's own text
            words, imports = _walk(ast.parse(content))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deep
        return _digest(content), []
    return _digest("\n".join(words)), [n for each in imports for n in _imported(each, package)]


def _imported(statement: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Return the names of the modules that a statement may import."""
    if isinstance(statement, ast.Import):
        return [name for alias in statement.names for name in _prefixes(alias.name)]
    module = statement.module or ""
    if statement.level:
        outer = package.split(".") if package else []
        if len(outer) < statement.level:
            return []  # beyond the outermost package
        outer = outer[: len(outer) - statement.level + 1]
        module = ".".join([*outer, *([module] if module else [])])
    return [*_prefixes(module), *(f"{module}.{alias.name}" for alias in statement.names)]


# Fields that say nothing of what the code does, or only where a name stands.
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_STATEMENTS = frozenset({"body", "orelse", "finalbody"})


def _walk(tree: ast.AST) -> tuple[list[str], list[ast.Import | ast.ImportFrom]]:
    """Return a syntax tree as words, level by level, and its import statements.

    ``ast.dump`` differs between versions of Python. Here, a field that is absent, ``None``, empty
    or 0 gives no word. A deep tree needs no deep stack of calls.
    """
    words: list[str] = []
    queue: list[Any] = [tree]
    for node in queue:  # it grows
        if isinstance(node, ast.Constant):
            words += ("Constant", _show(node.value))
            continue
        if not isinstance(node, ast.AST):  # a name, or ``None`` within a list
            words.append(str(node))
            continue
        words.append(node.__class__.__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if value and (name in _STATEMENTS or isinstance(node, ast.JoinedStr)):
                value = _normal(name, value)
            if not value or name in _LEFT_OUT:
                continue
            words.append(name)
            if isinstance(value, list):
                words.append(str(len(value)))
                queue += value
            elif isinstance(value, ast.AST):
                queue.append(value)
            else:
                words.append(str(value))  # a name or a small number
    return words, [node for node in queue if isinstance(node, (ast.Import, ast.ImportFrom))]


def _show(value: object) -> str:
    """Return a constant in ASCII, because what is printable depends on the version of Python."""
    # Python refuses to write a long number in decimal.
    return hex(value) if value.__class__ is int else ascii(value)


def _normal(name: str, values: Any) -> Any:  # noqa: ANN401 - of a node
    """Return a field of a node: no docstrings, and an f-string in its fewest parts.

    How the constants of an f-string are split depends on the version of Python.
    """
    if not isinstance(values, list):
        return values  # the body of a lambda
    if name in _STATEMENTS:
        return [each for each in values if not _is_text(each)]
    parts: list[Any] = []
    for part in values:
        if not isinstance(part, ast.Constant):
            parts.append(part)
        elif parts and isinstance(parts[-1], ast.Constant):
            parts[-1] = ast.Constant(str(parts[-1].value) + str(part.value))
        elif part.value:
            parts.append(part)
    return parts


def _is_text(statement: ast.AST) -> bool:
    """Whether a statement is nothing but a string, as a docstring is."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)

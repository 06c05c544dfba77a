"""Reads a job file's YAML into plain values, and remembers where each of them stands.

The values come straight from PyYAML's node graph: there is no constructor, so no tag can create an
object, and only YAML 1.2's core types exist (``no`` is text, ``1e-3`` a number, ``1:30`` text).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml
from yaml import AliasEvent, MappingNode, MarkedYAMLError, ScalarNode, SequenceNode
from yaml.composer import Composer, ComposerError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from zeusrun.errors import JobFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from yaml import Node

KeyPath: TypeAlias = "tuple[str | int, ...]"
"""Where a value stands: ``("objective", "target")``, ``("args", 3)``; ``()`` is the whole file."""

MAX_BYTES = 64 * 1024  # pure-Python YAML takes about 10 us a byte; a real job file has 2 KB
MAX_DEPTH = 16  # the composer recurses; a real job file is 3 deep
MAX_DIGITS = 18  # fits 64 bits, so no later conversion to float or C integer can overflow

_VERBATIM = ("args", "env")  # these end as text, and "1.10" must not arrive there as "1.1"
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+\Z")
# Wider than PyYAML's own, which takes 1e-3 for text.
_FLOAT = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)


@dataclass(frozen=True)
class Problem:
    """Something wrong in a job file: the place and a sentence about it."""

    path: KeyPath
    sentence: str


@dataclass
class JobDocument:
    """A job file as plain values.

    Attributes:
        label: The file as the user named it.
        data: Mappings, lists, str, int, float, bool and None.
        problems: What is wrong although it is YAML, such as a key given twice.
        origins: For each path, ``file:line`` or the override that set it.
    """

    label: str
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def find_written(self, path: KeyPath) -> KeyPath:
        """Return ``path`` itself if it was written, else the nearest section that was."""
        while path and path not in self.origins:
            path = path[:-1]
        return path

    def find_origin(self, path: KeyPath) -> str:
        """Return where ``path`` was written, as ``file:line`` or the override."""
        return self.origins.get(self.find_written(path), f"{self.label}:1")


def read_job_file(path: Path, overrides: Sequence[str]) -> JobDocument:
    """Read a job file and apply overrides to it.

    Args:
        path: The job file.
        overrides: ``key.path=value`` each, the value in YAML; later ones win.

    Raises:
        JobFileError: If the file cannot be read, is not YAML, or holds no keys; or an override is
            not of that form.
    """
    document = JobDocument(str(path))
    node = _compose(_read_text(path), document.label, numbered=True)
    if node is None or (isinstance(node, ScalarNode) and node.tag == _TAG + "null"):
        raise JobFileError(f"{path}: is empty; a job needs at least a name, a script, an objective")
    if not isinstance(node, MappingNode):
        kind = "a list" if isinstance(node, SequenceNode) else "a single value"
        raise JobFileError(f"{path}:1: holds {kind}; a job file is made of 'key: value' lines")
    document.data = _build(node, (), document, None)
    for override in overrides:
        _apply_override(document, override)
    return document


def write_job_yaml(record: Mapping[str, Any]) -> str:
    """Return YAML that ``read_job_file`` reads as ``record``."""
    return yaml.dump(dict(record), Dumper=_CoreDumper, sort_keys=False, allow_unicode=True)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise JobFileError(f"{path}: there is no such file") from error
    except IsADirectoryError as error:
        raise JobFileError(f"{path}: is a directory; name the job file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise JobFileError(f"{str(path)!r} cannot be read: {reason}") from error
    if len(content) > MAX_BYTES:
        raise JobFileError(f"{path}: is larger than {MAX_BYTES // 1024} KiB; is it a job file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JobFileError(f"{path}:{line}: is not UTF-8 text; is it a job file?") from error


class _CoreComposer(Reader, Scanner, Parser, Composer, BaseResolver):
    """Text to nodes: YAML 1.2's core types, no aliases, a bounded depth."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call] # the stubs have none
        if self.check_event(AliasEvent):
            raise ComposerError(None, None, "aliases ('*name') are not supported here", mark)
        if self._depth >= MAX_DEPTH:
            raise ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _kind, _pattern, _first in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _CoreComposer.add_implicit_resolver(_TAG + _kind, _pattern, _first)


class _CoreDumper(yaml.SafeDumper):
    """Quotes also the texts that are numbers here and text to PyYAML, such as ``1e-3``."""


_CoreDumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))

_SYNTAX_HINTS = (
    ("'\\t'", "a tab cannot indent YAML; use spaces"),
    ("another document", "a job file holds one job: remove the '---' that starts a second one"),
    ("mapping values are not allowed", "a second ':' on one line, or an indentation that is off"),
    ("got '{'", 'quote a placeholder inside [ ] or { }, as in "${max_epochs}"'),
    ("found duplicate anchor", "an anchor ('&name') is given twice; anchors are not needed here"),
)


def _compose(text: str, label: str, *, numbered: bool) -> Node | None:
    """Compose ``text``; errors start with ``label`` and, if ``numbered``, a line number."""
    try:
        node: Node | None = _CoreComposer(text).get_single_node()
    except ReaderError as error:
        where = f"{label}:{text.count(chr(10), 0, error.position) + 1}" if numbered else label
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise JobFileError(
            f"{where}: the character U+{code:04X} cannot stand in a job file; is it a text file?"
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}" if numbered and mark else label
        problem = error.problem or error.context or "it cannot be read"
        hint = next((hint for sign, hint in _SYNTAX_HINTS if sign in problem), problem)
        raise JobFileError(f"{where}: not usable YAML: {hint}") from error
    except (ValueError, OverflowError) as error:  # PyYAML leaks these at "\UFFFFFFFF"
        raise JobFileError(f"{label}: not usable YAML: {error}") from error
    return node


def _build(node: Node, path: KeyPath, document: JobDocument, origin: str | None) -> Any:  # noqa: ANN401 - a YAML value is any
    """Turn a node into plain values; ``origin`` is None for the file's own lines."""
    if isinstance(node, SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            where = (*path, index)
            document.origins[where] = origin or f"{document.label}:{item.start_mark.line + 1}"
            items.append(_build(item, where, document, origin))
        return items
    if isinstance(node, MappingNode):
        section: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = f"{document.label}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, ScalarNode):
                document.problems.append(Problem(path, "a list or section cannot be a key"))
                continue
            where = (*path, key_node.value)
            if key_node.value in section:
                first = document.origins[where].removeprefix(f"{document.label}:")
                stands = "" if origin else f"; it stands on line {first} already"
                where = (*where, len(document.origins))  # or it would carry the first one's line
                document.origins[where] = origin or line
                sentence = f"the key {key_node.value!r} is given twice{stands}"
                document.problems.append(Problem(where, sentence))
                continue
            document.origins[where] = origin or line
            section[key_node.value] = _build(value_node, where, document, origin)
        return section
    if not isinstance(node, ScalarNode):
        raise TypeError(f"PyYAML has no node like {node!r}")
    return _build_scalar(node, path, document)


def _build_scalar(
    node: ScalarNode, path: KeyPath, document: JobDocument
) -> str | float | bool | None:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    if kind == "str":
        if any("\ud800" <= character <= "\udfff" for character in text):
            document.problems.append(Problem(path, "half a surrogate pair ('\\ud800') is no text"))
        return text
    if kind in ("int", "float") and path[:1] and path[0] in _VERBATIM:
        return text
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in ("int", "float") and _FLOAT.match(text):
        return _build_number(text, path, document)
    document.problems.append(Problem(path, f"the tag '{node.tag}' is not supported; leave it out"))
    return None


def _build_number(text: str, path: KeyPath, document: JobDocument) -> float:
    if not _INT.match(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if len(text) > MAX_DIGITS:
        document.problems.append(Problem(path, f"the number {text[:24]}... is far too large"))
        return 0
    return int(text)


def _apply_override(document: JobDocument, override: str) -> None:
    name, equals, text = override.partition("=")
    keys = tuple(key.strip() for key in name.split("."))
    if keys[0] == "env":  # it may be a secret, and this is shown
        override = f"{name}{equals}..."
    shown = override if override.isprintable() else ascii(override)
    origin = f"--set {shown}"
    if not equals or not all(keys):
        raise JobFileError(f"{origin}: write it as key=value, such as objective.eta_knob=0.8")
    section = document.data
    for depth, key in enumerate(keys[:-1], start=1):
        inner = section.get(key)
        if inner is None:
            document.origins[keys[:depth]] = origin
            inner = section[key] = {}
        if not isinstance(inner, dict):
            dotted = ".".join(keys[:depth])
            raise JobFileError(f"{origin}: '{dotted}' has no keys of its own; set it as a whole")
        section = inner
    for path in [path for path in document.origins if path[: len(keys)] == keys]:
        del document.origins[path]  # what stood there is gone, lines and all
    document.origins[keys] = origin
    node = _compose(text, origin, numbered=False)
    section[keys[-1]] = None if node is None else _build(node, keys, document, origin)

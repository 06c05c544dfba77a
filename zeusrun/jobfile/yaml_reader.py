"""Reads the YAML of a job file into plain values, and keeps the line of each.

The values come straight from PyYAML's node graph: there is no constructor, so no tag can create an
object, and only YAML 1.2's core types exist (``no`` is text, ``1e-3`` a number, ``1:30`` text).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml
from yaml import AliasEvent, MappingNode, MarkedYAMLError, ScalarNode, SequenceNode
from yaml.composer import ComposerError
from yaml.reader import ReaderError

from zeusrun.errors import JobFileError
from zeusrun.run_on.registry import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from yaml import Node

KeyPath: TypeAlias = "tuple[str | int, ...]"
"""The place of a value: ``("objective", "target")``, ``("args", 3)``; ``()`` is the whole file."""

MAX_BYTES = 64 * 1024  # pure-Python YAML takes about 10 us a byte; a real job file has 2 KB
MAX_DIGITS = 18  # fits 64 bits, so no later conversion to float or C integer can overflow

_VERBATIM = ("args", "env")  # these end as text, and "1.10" must not arrive there as "1.1"
_SHORT = {"history": "url"}  # sections for which a text stands, and the key that it is then
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+\Z")
# Wider than PyYAML's own, which takes 1e-3 for text.
_FLOAT = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_VALUE_SHOWN = re.compile("(?!arg|env)[a-z_]*")  # not of args, env and what is meant as one
_SYNTAX_HINTS = {
    "'\\t'": "a tab cannot indent YAML; use spaces",
    "another document": "a job file holds one job: remove the '---' that starts a second one",
    "mapping values are not allowed": "a second ':' on one line, or an indentation that is off",
    "<block mapping start>": "the line is indented by more or by less than those that it goes with",
    "got '{'": 'quote a placeholder inside [ ] or { }, as in "${max_epochs}"',
}


@dataclass(frozen=True)
class JobFileProblem:
    """Something wrong in a job file: the place and a sentence about it."""

    path: KeyPath
    sentence: str


@dataclass
class JobDocument:
    """A job file as plain values: mappings, lists, str, int, float, bool and None."""

    label: str  # the file as the user named it
    data: dict[str, Any] = field(default_factory=dict)
    problems: list[JobFileProblem] = field(default_factory=list)  # such as a key given twice
    origins: dict[KeyPath, str] = field(default_factory=dict)  # file:line, or the override

    def complain(self, path: KeyPath, sentence: str) -> None:
        """Add a problem."""
        self.problems.append(JobFileProblem(path, sentence))

    def blame_overrides(self) -> None:
        """Let every problem have its origin in the overrides, because the file alone has none."""
        given = {path: origin for path, origin in self.origins.items() if _is_override(origin)}
        for path, origin in self.origins.items():
            if not _is_override(origin):
                near = [text for other, text in given.items() if other[:1] == path[:1]]
                self.origins[path] = " ".join(dict.fromkeys(near or given.values())) or origin

    def find_origin(self, path: KeyPath) -> tuple[int, str]:
        """Return where ``path``, or else the nearest section around it, was written.

        The number sorts places: overrides first, then as in the file.
        """
        while path and path not in self.origins:
            path = path[:-1]
        origin = self.origins.get(path, f"{self.label}:1")
        rank = [*self.origins].index(path) if path else -1
        return rank - len(self.origins) * _is_override(origin), origin


def _is_override(origin: str) -> bool:
    return origin.startswith("--set ")


def read_job_file(path: Path, overrides: Sequence[str]) -> JobDocument:
    """Read a job file and apply overrides, ``key.path=value`` in YAML; later ones win.

    Raises:
        JobFileError: If the file cannot be read, is not YAML, or holds no keys; or an override is
            not of that form.
    """
    document = read_document(path)
    if not document.data and not document.problems:
        raise JobFileError(
            f"{path} is empty; a job needs at least a name, a script, an objective and batch sizes"
        )
    for override in overrides:
        _apply_override(document, override)
    return document


def read_document(path: Path) -> JobDocument:
    """Read a file of keys and values; it may be empty, unlike a job file.

    Raises:
        JobFileError: If the file cannot be read, or is not YAML.
    """
    return parse_document(read_text(path, MAX_BYTES, "job file"), str(path))


def parse_document(text: str, label: str) -> JobDocument:
    """Return the keys and values of a text; errors start with ``label``. See ``read_document``."""
    if len(text) > MAX_BYTES:
        raise JobFileError(f"{label} is larger than {MAX_BYTES // 1024} KiB; is it a job file?")
    document = JobDocument(label)
    node = _compose(text, label, numbered=True)
    if node is None or (isinstance(node, ScalarNode) and node.tag == _TAG + "null"):
        return document
    if not isinstance(node, MappingNode):
        kind = "a list" if isinstance(node, SequenceNode) else "a single value"
        raise JobFileError(
            f"{label}:1: the file holds {kind}; it must be made of 'key: value' lines"
        )
    document.data = _build(node, (), document, None)
    return document


def write_job_yaml(record: Mapping[str, Any]) -> str:
    """Return YAML that ``read_job_file`` reads as ``record``."""
    return yaml.dump(dict(record), Dumper=_CoreDumper, sort_keys=False, allow_unicode=True)


def read_text(path: Path, max_bytes: int, kind: str) -> str:
    """Return the text of a file that the user has named; ``kind`` names its format in messages.

    Raises:
        JobFileError: If the file cannot be read, is larger than ``max_bytes``, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:  # may be a pipe: <(scontrol show hostnames)
            content = file.read(max_bytes + 1)
    except FileNotFoundError as error:
        meant = path.with_name(f"{path.name}.yaml") if path.name else path
        hint = f"; did you mean {meant}?" if os.path.isfile(meant) else ""  # noqa: PTH113 - never raises
        raise JobFileError(f"{path}: there is no such file{hint}") from error
    except IsADirectoryError as error:
        raise JobFileError(f"{path} is a directory; name the {kind} in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise JobFileError(f"{str(path)!r} cannot be read: {reason}") from error
    if len(content) > max_bytes:
        raise JobFileError(f"{path} is larger than {max_bytes // 1024:,} KiB; is it a {kind}?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise JobFileError(
            f"{path}:{line}: this line is not UTF-8 text; is it a {kind}? Save it in UTF-8"
        ) from error


class _CoreLoader(yaml.SafeLoader):
    """Text to nodes: YAML 1.2's core types, no aliases. Its constructors are not used."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as PyYAML declares it

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.check_event(AliasEvent):  # a few could expand to gigabytes
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call] # the stubs have none
            raise ComposerError(None, None, "aliases ('*name') are not supported here", mark)
        return super().compose_node(parent, index)


class _CoreDumper(yaml.SafeDumper):
    """Quotes also the texts that are numbers here and text to PyYAML, such as ``1e-3``.

    A text of several lines is written as such.
    """

    def ignore_aliases(self, data: object) -> bool:
        """Whether a value is written again where it comes a second time: aliases are not read."""
        del data
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        style = "|" if "\n" in data else None
        return self.represent_scalar(_TAG + "str", data, style)


_CoreDumper.add_representer(str, _CoreDumper.represent_str)
_CoreDumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
for _kind, _pattern, _first in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
):
    _CoreLoader.add_implicit_resolver(_TAG + _kind, _pattern, _first)


def _compose(text: str, label: str, *, numbered: bool) -> Node | None:
    """Compose ``text``; errors start with ``label`` and, if ``numbered``, a line number."""

    def error_at(line: int | None, sentence: str) -> JobFileError:
        where = f"{label}:{line + 1}" if numbered and line is not None else label
        return JobFileError(f"{where}: {sentence}")

    try:
        node: Node | None = _CoreLoader(text).get_single_node()
    except ReaderError as error:
        character = text[error.position]
        sentence = f"the character U+{ord(character):04X} is not allowed in a job file"
        line = text.count("\n", 0, error.position)
        raise error_at(line, f"{sentence}; is it a text file?") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "it cannot be read"
        hint = next((hint for sign, hint in _SYNTAX_HINTS.items() if sign in problem), problem)
        raise error_at(mark.line if mark else None, f"not usable YAML: {hint}") from error
    except RecursionError as error:
        raise error_at(None, "not usable YAML: nested too deeply") from error
    except (ValueError, OverflowError) as error:  # PyYAML leaks these at "\UFFFFFFFF"
        raise error_at(None, f"not usable YAML: {error}") from error
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
    if isinstance(node, ScalarNode):
        return _build_scalar(node, path, document)
    section: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = f"{document.label}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, ScalarNode):
            document.complain(path, "a list or section cannot be a key")
            continue
        key = _join_pairs(key_node.value)
        where, repeated = (*path, key), key in section
        if repeated:
            first = document.origins[where].removeprefix(f"{document.label}:")
            stands = "" if origin else f"; it is already on line {first}"
            where = (*where, len(document.origins))  # or it would carry the first one's line
            document.complain(where, f"the key {key!r} is given twice{stands}")
        document.origins[where] = origin or line
        if not repeated:
            section[key] = _build(value_node, where, document, origin)
    return section


def _build_scalar(
    node: ScalarNode, path: KeyPath, document: JobDocument
) -> str | float | bool | None:
    text = _join_pairs(node.value)
    kind = node.tag.removeprefix(_TAG)
    if "\ufffd" in text and "\ufffd" not in node.value:
        document.complain(path, "half a surrogate pair is not text")
    if kind == "str" or (kind in ("int", "float") and path[:1] and path[0] in _VERBATIM):
        return text
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind not in ("int", "float") or not _FLOAT.match(text):
        sentence = f"the tag '{node.tag}' is not supported; leave it out"
        if path[:1] and path[0] in _VERBATIM:  # it may be a secret
            sentence = "a text that begins with '!' needs quotes"
    elif not _INT.match(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    elif len(text) <= MAX_DIGITS:
        return int(text)
    else:
        sentence = f"the number {text[:24]}... is far too large"
    document.complain(path, sentence)
    return None


def _join_pairs(text: str) -> str:
    """Return a text with each surrogate pair, as JSON writes an emoji, as its one character.

    What is half a pair becomes U+FFFD.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _apply_override(document: JobDocument, override: str) -> None:
    name, equals, text = override.partition("=")
    keys = tuple(key.strip() for key in name.split("."))
    if _VALUE_SHOWN.fullmatch(keys[0]) is None:  # its value may be a secret, and this is shown
        override = f"{name}=..." if equals else re.sub(r"\W.*", "...", name, flags=re.DOTALL)
    origin = f"--set {override if override.isprintable() else ascii(override)}"
    if not equals or not all(keys):
        raise JobFileError(f"{origin}: write it as key=value, such as objective.eta_knob=0.8")
    section = document.data
    if keys[0] in _SHORT and len(keys) > 1 and isinstance(section.get(keys[0]), str):
        section[keys[0]] = {_SHORT[keys[0]]: section[keys[0]]}
    if keys[0] == "run_on" and len(keys) > 1 and section.get("run_on") in ("local", *BACKENDS):
        # The same, in which a key can be set.
        section["run_on"] = None if section["run_on"] == "local" else {section["run_on"]: {}}
    for depth, key in enumerate(keys[:-1], start=1):
        if section.get(key) is None:
            document.origins[keys[:depth]] = origin
            section[key] = {}
        section = section[key]
        if not isinstance(section, dict):
            dotted = ".".join(keys[:depth])
            raise JobFileError(f"{origin}: '{dotted}' has no keys of its own; set it as a whole")
    for path in [path for path in document.origins if path[: len(keys)] == keys]:
        del document.origins[path]  # what stood there is gone, lines and all
    document.origins[keys] = origin
    node = _compose(text, origin, numbered=False)
    section[keys[-1]] = None if node is None else _build(node, keys, document, origin)

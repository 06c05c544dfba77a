"""Turns what is wrong with a job into sentences for people, with places and "did you mean"."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from zeusrun.errors import JobFileError
from zeusrun.jobfile.yaml_reader import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.yaml_reader import JobDocument, KeyPath

MAX_SHOWN = 8  # more scroll the first, usually the cause of the rest, off a terminal

_WANTED = {
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "string_too_short": "something, such as a name",
    "too_short": "a list of at least one",
    "dict_type": "a section of 'key: value' lines",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_type": "a section of 'key: value' lines",
    "path_type": "a path",
    "string_type": "text",
    "string_unicode": "text without half a surrogate pair",  # a key; values are checked on reading
    "tuple_type": "a list, such as [a, b]",
}
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
# What people call a key here and in neighbouring tools, where spelling alone finds nothing.
_OTHER_NAMES = {
    "arms": "batch_size.candidates",
    "batch_sizes": "batch_size.candidates",
    "batchsize": "batch_size.default",
    "cwd": "workdir",
    "direction": "objective.mode",
    "environment": "env",
    "epochs": "objective.max_epochs",
    "eta": "objective.eta_knob",
    "goal": "objective.target",
    "gpus": "launch.nproc_per_node",
    "lr": "learning_rate.base",
    "sizes": "batch_size.candidates",
    "timeout": "timeout_s",
    "world_size": "launch.nproc_per_node",
}


def collect_problems(document: JobDocument, problems: Sequence[Problem]) -> JobFileError:
    """Return one error with a line for each problem, overrides first, then as in the file.

    The first ``MAX_SHOWN`` are spelt out; how many more there are is said.
    """
    rank = {path: number for number, path in enumerate(document.origins)}

    def place(problem: Problem) -> tuple[bool, int]:
        in_file = not document.find_origin(problem.path).startswith("--set ")
        return in_file, rank.get(document.find_written(problem.path), -1)

    ordered = sorted(problems, key=place)
    shown = ordered[:MAX_SHOWN]
    lines = [_printable(f"{document.find_origin(p.path)}: {p.sentence}") for p in shown]
    if len(ordered) > MAX_SHOWN:
        lines.append(f"... and {len(ordered) - MAX_SHOWN} more")
    return JobFileError("\n".join(lines))


def describe_error(
    error: Mapping[str, Any], sections: Mapping[str, Sequence[str]], source: str
) -> Problem:
    """Translate one pydantic error.

    Args:
        error: One of ``ValidationError.errors()``: ``type``, ``loc``, ``input``, ``msg``, ``ctx``.
        sections: The keys of each section by its name; the top level is ``""``.
        source: The job file, to tell in which file a key is missing.
    """
    path: KeyPath = tuple(part for part in error["loc"] if part != "[key]")
    kind = error["type"]
    if kind == "extra_forbidden":
        return Problem(path, _unknown_key(path, sections))
    if kind == "missing":
        section = _dotted(path[:-1])
        where = f"under '{section}'" if section else f"at the top level of {source}"
        return Problem(path, f"the key '{path[-1]}' is missing {where}")
    if kind == "value_error":
        return Problem(path, f"'{_dotted(path)}' {error['ctx']['error']}")
    return Problem(path, f"'{_dotted(path)}' must be {_wanted(kind, error)}")


def _wanted(kind: str, error: Mapping[str, Any]) -> str:
    value, context = _shown(error["input"]), error.get("ctx", {})
    if kind in _WANTED:
        return f"{_WANTED[kind]}, not {value}{_advice(kind, error['input'])}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"{words} {context[key]:g}, not {value}"
    if kind == "literal_error":
        return f"{context['expected']}, not {value}"
    return f"something else than {value}: {error['msg']}"


def _unknown_key(path: KeyPath, sections: Mapping[str, Sequence[str]]) -> str:
    section, key = _dotted(path[:-1]), str(path[-1])
    where = f" under '{section}'" if section else ""
    return f"unknown key {key!r}{where}; {_meant(section, key, sections)}"


def _meant(section: str, key: str, sections: Mapping[str, Sequence[str]]) -> str:
    """Say which key was probably meant: the most certain guess, or the keys there are."""
    homes = [name for name, keys in sections.items() if key in keys]
    if homes:
        place = f"under '{homes[0]}'" if homes[0] else "at the top level"
        return f"'{key}' belongs {place}"
    word = key.lower().replace("-", "_")
    here = sections[section]
    if close := difflib.get_close_matches(word, here, n=1, cutoff=0.7):
        return f"did you mean '{close[0]}'?"
    if other := _OTHER_NAMES.get(word):
        return f"did you mean '{other.removeprefix(section + '.')}'?"
    elsewhere = {key: name for name, keys in sections.items() if name for key in keys}
    if close := difflib.get_close_matches(word, elsewhere, n=1, cutoff=0.7):
        return f"did you mean '{elsewhere[close[0]]}.{close[0]}'?"
    if close := difflib.get_close_matches(word, here, n=1):
        return f"did you mean '{close[0]}'?"
    return f"known are {', '.join(here)}"


def _printable(text: str) -> str:
    """Escape what would move a terminal's cursor, or that it cannot show: keys are any text."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _shown(value: object) -> str:
    """Name a value as its writer would: in YAML's words, and not at length."""
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"


def _advice(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return f'; put it in quotes: "{_shown(value)}"'
    if kind == "string_type" and value is None:
        return '; for an empty text write ""'
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return "; remove the quotes" if _NUMBER.fullmatch(value) else ""
    return ""

"""What all sections of a job file have in common: strict keys, and errors as sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from zeusrun.errors import JobFileError
from zeusrun.jobfile.yaml_reader import JobFileProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pydantic_core import ErrorDetails

    from zeusrun.jobfile.yaml_reader import JobDocument, KeyPath

_Kind = TypeVar("_Kind", bound="Section")

MAX_SHOWN = 8  # the first one usually causes the others, and must not scroll away

NO_CANDIDATE = "no_candidate"
"""The kind of error of a default batch size that is not among the candidates."""

# Where pydantic's words ("a valid number", "greater than 0") are not those of a YAML file.
_WANTED = {
    "bool_type": "true or false",
    "dict_type": "a section of 'key: value' lines",
    "float_type": "a number",
    "int_type": "a whole number",
    "path_type": "a path",
    "model_type": "a section of 'key: value' lines",
    "string_too_short": "something, such as a name",
    "string_type": "text",
    "too_short": "a list of at least one",
    "tuple_type": "a list, such as [a, b]",
}
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")
# Names for a key that people use, or that other tools use, where the spelling is not close.
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
    "machines": "run_on.hosts",
    "nodes": "run_on.hosts",
    "sizes": "batch_size.candidates",
    "timeout": "timeout_s",
    "world_size": "launch.nproc_per_node",
}


class Section(BaseModel):
    """Frozen, strict (``true`` and ``"1"`` are not 1), closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )
    summary: ClassVar[str] = ""
    """What ``zeusrun schema`` says of a section that is plugged in."""
    other_names: ClassVar[Mapping[str, str]] = {}
    """Dotted names that people use for keys of the section, and the keys that they mean."""


def list_keys(
    section: type[Section], hidden: Collection[str] = (), name: str = ""
) -> dict[str, list[str]]:
    """Return the keys of a section and of those within it, by their dotted names.

    ``hidden`` are fields of the section itself that are no keys.
    """
    found = {name: [key for key in section.model_fields if key not in hidden]}
    for key, kind in _list_sections(section):
        found |= list_keys(kind, (), f"{name}.{key}" if name else key)
    return found


def _list_sections(section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield the sections within a section, by their keys; those that are plugged in, too."""
    for key, field in section.model_fields.items():
        plugged = (each.load() for each in field.metadata if hasattr(each, "load"))
        for kind in (field.annotation, *get_args(field.annotation), *plugged):
            if isinstance(kind, type) and issubclass(kind, Section):
                yield key, kind


def _list_other_names(section: type[Section]) -> dict[str, str]:
    found = dict(section.other_names)
    for _, kind in _list_sections(section):
        found |= _list_other_names(kind)
    return found


def _flat(errors: Sequence[ErrorDetails], place: tuple[int | str, ...] = ()) -> list[ErrorDetails]:
    """Return errors with those of plugged sections in the place of the one that contains them."""
    found: list[ErrorDetails] = []
    for error in errors:
        within, at = error.get("ctx", {}).get("error"), (*place, *error["loc"])
        if isinstance(within, ValidationError):
            found += _flat(within.errors(include_url=False), at)
        else:
            found.append({**error, "loc": at})
    return found


def validate(
    kind: type[_Kind],
    document: JobDocument,
    values: Mapping[str, object] | None = None,
    hidden: Collection[str] = (),
    show: Callable[[JobFileProblem], JobFileProblem] = lambda problem: problem,
) -> _Kind:
    """Return the section that a document, or else ``values`` from it, describes.

    ``hidden`` are fields that are no keys of the file; ``show`` masks a problem.

    Raises:
        JobFileError: If anything is wrong. It names each problem, as ``load_spec`` does.
    """
    problems, found = [*document.problems], None
    seen = {problem.path for problem in problems}
    values = document.data if values is None else values
    given = set(hidden) & document.data.keys() & values.keys()
    errors: list[Mapping[str, Any]] = [{"type": "extra_forbidden", "loc": (key,)} for key in given]
    try:
        found = kind.model_validate(values)
    except ValidationError as error:
        errors += _flat(error.errors(include_url=False))
    # Outside of the handler: the cause would quote what was given, passwords included.
    if errors:
        names = _OTHER_NAMES | _list_other_names(kind)
        described = describe_errors(errors, list_keys(kind, hidden), names, document)
        problems += [show(each) for each in described if each.path not in seen]
    if found is None or problems:
        raise collect_problems(document, problems)
    return found


def collect_problems(document: JobDocument, problems: Sequence[JobFileProblem]) -> JobFileError:
    """Return one error with a line for each problem, overrides first, then as in the file.

    Only the first ``MAX_SHOWN`` are written out.
    """
    ordered = sorted((*document.find_origin(each.path), each.sentence) for each in problems)
    lines = [f"{origin}: {sentence}" for _, origin, sentence in ordered[:MAX_SHOWN]]
    # A key may be any text: escape what a terminal would obey, or cannot show.
    lines = ["".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines]
    if len(ordered) > MAX_SHOWN:
        lines.append(f"... and {len(ordered) - MAX_SHOWN} more")
    return JobFileError("\n".join(lines))


def describe_errors(
    errors: Sequence[Mapping[str, Any]],
    sections: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    document: JobDocument,
) -> list[JobFileProblem]:
    """Translate pydantic's ``ValidationError.errors()``.

    A key that is absent because its name is misspelt is one problem: the unknown key.
    ``sections`` holds the keys of each section by its name, those of the top level under ``""``;
    ``names`` holds other names of keys.
    """
    problems, meant = [], set()
    for error in errors:
        if error["type"] == "extra_forbidden":
            *place, key = error["loc"]
            section = dotted(tuple(place))
            where = f" under '{section}'" if section else ""
            other, hint = _meant(_section(place), str(key), sections, names)
            meant.add(other)
            sentence = f"unknown key {str(key)!r}{where}; {hint}"
            problems.append(JobFileProblem((*place, key), sentence))
    if "script" in meant:
        meant.add("module")  # which names the error if both are absent
    for error in errors:
        path: KeyPath = tuple(part for part in error["loc"] if part != "[key]")
        misspelt = path not in document.origins and _section(path) in meant
        if error["type"] != "extra_forbidden" and not misspelt:
            problems.append(JobFileProblem(path, _describe(error, path, document)))
    return problems


def _describe(error: Mapping[str, Any], path: KeyPath, document: JobDocument) -> str:
    kind = error["type"]
    if kind == "missing":
        section = dotted(path[:-1])
        where = f"under '{section}'" if section else f"at the top level of {document.label}"
        sentence = f"the key '{path[-1]}' is missing {where}"
    elif kind == NO_CANDIDATE and path not in document.origins:
        sentence = f"'{dotted(path)}' is {error['input']} because the file gives none; give "
        sentence += error["msg"]
    elif kind == "value_error":
        sentence = f"'{dotted(path)}' {error['ctx']['error']}"
    else:
        wanted = _WANTED.get(kind, error["msg"].removeprefix("Input should be "))
        given, advice = _shown(error["input"]), _advice(kind, error["input"])
        sentence = f"'{dotted(path)}' must be {wanted}, not {given}{advice}"
    return sentence


def _meant(
    section: str, key: str, sections: Mapping[str, Sequence[str]], names: Mapping[str, str]
) -> tuple[str | None, str]:
    """Return the key that was probably meant, ``None`` if no key is similar; and a hint."""
    word = key.lower().replace("-", "_")
    if close := difflib.get_close_matches(word, sections[section], n=1, cutoff=0.85):
        return _join(section, close[0]), f"did you mean '{close[0]}'?"
    other = names.get(f"{section}.{word}")
    homes = [] if other else [name for name, keys in sections.items() if key in keys]
    homes.sort(key=lambda home: not home.startswith(f"{section}."))  # those within it first
    if homes:
        place = f"under '{homes[0]}'" if homes[0] else "at the top level"
        return _join(homes[0], key), f"'{key}' belongs {place}"
    other = other or names.get(word)
    if other is None and (close := difflib.get_close_matches(word, sections[section], n=1)):
        other = _join(section, close[0])
    elsewhere = {key: name for name, keys in sections.items() if name for key in keys}
    if other is None and (close := difflib.get_close_matches(word, elsewhere, n=1, cutoff=0.7)):
        other = _join(elsewhere[close[0]], close[0])
    if other is None:
        return None, f"known: {', '.join(sections[section])}"
    return other, f"did you mean '{other.removeprefix(section + '.')}'?"


def _join(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def dotted(path: KeyPath) -> str:
    """Return the name of a key: ``args[3]``, ``objective.target``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _section(path: Sequence[str | int]) -> str:
    """Return a dotted name without the numbers of rows: all rows of a list have the same keys."""
    return ".".join(part for part in path if isinstance(part, str))


def _shown(value: object) -> str:
    """Return a value as in YAML, shortened."""
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
    is_number = isinstance(value, str) and _NUMBER.fullmatch(value)
    return "; remove the quotes" if kind in ("int_type", "float_type") and is_number else ""

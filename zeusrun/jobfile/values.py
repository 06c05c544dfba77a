"""The types of single values in a job file: a rule for pydantic and a form for the JSON Schema."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from zeusrun.jobfile.placeholders import expand_placeholders, find_placeholders
from zeusrun.jobfile.validators import check_env_name, check_name, duration_s, time_of_day
from zeusrun.plugins import BUILT_IN, device_kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.plugins import Group


def check_text(text: str, info: ValidationInfo) -> str:
    """Return a text with placeholders if it can be expanded and passed to a process."""
    if "\0" in text:
        raise ValueError("contains a NUL character; arguments, variables and paths cannot")
    # Absent when the section is itself wrong: then its own error is the one to show.
    has_learning_rate = info.data.get("learning_rate", ...) is not None
    if "learning_rate" in find_placeholders(text) and not has_learning_rate:
        raise ValueError(
            "uses '${learning_rate}', but the job has no learning_rate; "
            "add for example learning_rate: {base: 0.05, scale: linear}"
        )
    return text


def _check_process_count(value: object) -> object:
    if value in ("gpu", "cpu", "auto") or (type(value) is int and value >= 1):
        return value
    if isinstance(value, str) and value in device_kinds():
        return value
    raise ValueError("must be a whole number from 1, or gpu, cpu or auto")


def read_by(rule: Callable[[str], object]) -> BeforeValidator:
    """Keep a text that ``rule`` can read; ``rule`` also words the error for a number."""

    def check(value: object) -> object:
        if isinstance(value, (str, int, float)):
            rule(str(value))
        return value

    return BeforeValidator(check)


def goes_with(
    key: str, *choices: str, example: str = "", usual: str | None = None
) -> AfterValidator:
    """Allow a value only if a key above it has one of some choices.

    With an ``example``, these choices require a value. The value ``usual`` is always allowed.
    """

    def check(value: object, info: ValidationInfo) -> object:
        chosen = info.data.get(key)  # absent if that key has an error, which is reported
        if value is None and example and chosen in choices:
            raise ValueError(f"is missing: {key} {chosen} needs it, for example {example}")
        if chosen not in (None, *choices) and value not in (None, (), usual):
            raise ValueError(f"only goes with {key}: {', '.join(choices)}, not {chosen}")
        return value

    return AfterValidator(check)


def _any_of(*forms: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [*forms]})


_TEXT = {"type": "string"}
_ANY_TEXT = {"type": ["string", "number"]}  # where a text is passed on, a number stays as written
_MARKED = {
    "type": "object",
    "description": "secret: a text that zeusrun masks in records and in what it prints; "
    "secret_file: a file that contains such a text, relative to the job file; plain: a text that "
    "is no secret, whatever its name.",
    "properties": dict.fromkeys(("secret", "secret_file", "plain"), _ANY_TEXT),
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
_COUNTS = ({"type": "integer", "minimum": 1}, {"enum": ["gpu", "cpu", "auto"]}, _TEXT)


def _named(group: Group) -> Any:  # noqa: ANN401 - the type of a field
    """Return the type of the name of a built-in or of a plugin."""
    rule = AfterValidator(lambda name: check_name(name, group))
    return Annotated[str, rule, _any_of({"enum": [*BUILT_IN[group]]}, _TEXT)]


Template = Annotated[str, AfterValidator(check_text)]
PassedText = Annotated[Template, _any_of(_ANY_TEXT, _MARKED)]
EnvName = Annotated[str, AfterValidator(check_env_name)]
PolicyName = _named("zeusrun.policies")
SourceName = _named("zeusrun.metric_sources")
Processes = Annotated[int | str, BeforeValidator(_check_process_count), _any_of(*_COUNTS)]
Event = Literal["reached", "missed", "failed", "lost", "regression", "recovered"]
Duration = Annotated[str, read_by(duration_s)]
TimeOfDay = Annotated[str, read_by(time_of_day)]

_MAIN = ("__main__.py", "__main__.pyc")


def resolve_path(source: Path, text: str, *, escape: bool = False) -> Path:
    """Return the absolute form of a path in the job file ``source``.

    ``escape`` doubles a ``$`` in the directory, for a result that will be expanded.
    """
    directory = str(source.parent)
    return Path(os.path.normpath(Path(directory.replace("$", "$$") if escape else directory, text)))


def user_path(folder: Path, text: str) -> Path:
    """Return a path as absolute; it may be relative to a folder, or begin with ``~``."""
    return Path(os.path.normpath(folder / os.path.expanduser(text)))  # noqa: PTH111 - never raises


def check_path(
    info: ValidationInfo, text: str, exists: Callable[[Path], bool], what: str, lacks: str = ""
) -> None:
    """Raise ``ValueError`` if a path is missing; one with a placeholder cannot be checked yet.

    ``lacks`` says what a directory would need.
    """
    if not find_placeholders(text):
        path = resolve_path(info.data["source"], expand_placeholders(text, {}))
        if not exists(path):
            if os.path.isdir(path):  # noqa: PTH112 - never raises
                raise ValueError(f"{what}, but it is a directory{lacks}: {path}")
            raise ValueError(f"{what} that is missing: {path}")


def can_run(path: Path) -> bool:
    """Whether Python may run a path: a file, or a folder with a ``__main__.py``."""
    return any(os.path.isfile(each) for each in (path, *(path / name for name in _MAIN)))  # noqa: PTH113 - never raises


Pue = Annotated[float, Field(ge=1, le=10)]
"""Power usage effectiveness; a larger number is a percentage."""
